"""kMAF, against its equations and groups of threads that are known beforehand."""

import numpy as np
import pytest

from vmplace.model.published import square
from vmplace.policy.baselines import kmaf
from vmplace.policy.host_view import GuestEvidence, HostView


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


def seen(sharing, vcpu_node, faults) -> GuestEvidence:
    pages = len(faults)
    return GuestEvidence(
        "g",
        np.zeros_like(faults),
        np.zeros(pages, np.bool_),
        np.zeros(pages, np.int8),
        np.ones(2, np.bool_),
        np.ones(pages, np.int64),
        None,
        4.0,
        9.0,
        2.0,
        recent=faults,
        sharing=sharing,
        vcpu_node=np.array(vcpu_node),
    )


def host(guest: GuestEvidence, now_ns: float) -> HostView:
    system = square(local=100.0, hop=100.0, controller=0.04, link=0.03, queue=1.0)
    return HostView(system, np.full(4, 1e6), (guest,), 2000.0, now_ns=now_ns)


def pairs(strong: float) -> np.ndarray:
    """vCPUs 0 and 2 share, 1 and 3 share; all others a little."""
    sharing = np.ones((4, 4)) - np.eye(4)
    sharing[[0, 2, 1, 3], [2, 0, 3, 1]] = strong
    return sharing


@pytest.mark.parametrize(("strong", "moves"), [(1.2, False), (50.0, True)])
def test_vcpus_are_mapped_anew_only_where_much_more_sharing_comes_together(strong: float, moves: bool):
    pytest.importorskip("pymetis", reason="pymetis (extra: plan) is not there")
    guest = seen(pairs(strong), [0, 0, 1, 1], np.zeros((3, 4)))
    (found,) = kmaf.KmafPlanner().plan(host(guest, 0.0)).vcpu_node or [None]
    assert (found is not None) == moves


def test_what_is_known_of_pages_goes_with_the_vcpus():
    pytest.importorskip("pymetis", reason="pymetis (extra: plan) is not there")
    planner = kmaf.KmafPlanner(next_ns=1.0)
    # Page 0 is vCPU 1's, which runs on node 0 and is mapped to another with vCPU 3; page 1 both nodes use.
    faults = np.array([[0, 0, 1.0, 0], [4, 0, 4, 0]])
    planner.plan(host(seen(None, [0, 0, 2, 2], faults), 0.0))
    (nodes,) = planner.plan(host(seen(pairs(50.0), [0, 0, 2, 2], faults * 0), 1.0)).vcpu_node or [None]
    assert nodes is not None and (nodes != [0, 0, 2, 2]).sum() == 2
    # Half of each node's vCPUs went to the other node.
    assert planner.vectors["g"].tolist() == [[0.5, 0, 0.5, 0], [4, 0, 4, 0]]
