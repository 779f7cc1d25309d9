"""kMAF, against its equations and groups of threads that are known beforehand."""

import numpy as np
import pytest

from vmplace.policy import policy_kmaf as kmaf


def test_exclusivity_is_a_quarter_to_one_on_four_nodes():
    assert kmaf.exclusivity(np.array([[5, 5, 5, 5], [7, 0, 0, 0], [6, 2, 0, 0.0]])).tolist() == [
        0.25,
        1.0,
        0.75,
    ]


@pytest.mark.parametrize(
    ("vector", "apart"), [([1, 0], False), ([2, 0], True), ([5, 2], False), ([6, 2], True)]
)
def test_a_page_moves_when_the_highest_count_is_more_than_twice_the_second_plus_one(vector, apart: bool):
    assert kmaf.moves(np.array([vector], float)).tolist() == [apart]


def test_vcpus_that_share_are_mapped_to_one_node():
    pytest.importorskip("pymetis", reason="pymetis (extra: plan) is not there")
    groups = np.arange(16) % 4
    sharing = np.where(groups[:, None] == groups[None, :], 100.0, 1.0) * (1 - np.eye(16))
    node = kmaf.mapped(sharing, [4, 4, 4, 4])
    assert np.bincount(node).tolist() == [4, 4, 4, 4]
    assert all(len(set(node[groups == group])) == 1 for group in range(4))


def test_no_node_gets_more_vcpus_than_it_has_cores():
    pytest.importorskip("pymetis", reason="pymetis (extra: plan) is not there")
    sharing = np.ones((7, 7)) - np.eye(7)
    assert np.bincount(kmaf.mapped(sharing, [4, 2, 1])).tolist() == [4, 2, 1]
