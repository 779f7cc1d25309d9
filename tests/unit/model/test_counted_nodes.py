"""Samples of pages beside counts of nodes."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.model.known_pages import with_nodes
from tests.unit.model.test_touched_pages import BLOCK, large
from vmplace.model.counted_nodes import MOST, as_counted, shares_of_some
from vmplace.sampling.sample import NodeHits


def test_each_node_has_the_share_that_was_counted_and_pages_differ_as_they_did() -> None:
    heat = np.random.default_rng(1).poisson(3.0, (100, 3)).astype(float)
    before, shares = heat.copy(), [0.5, 0.3, 0.2]
    as_counted(heat, shares)
    assert heat.sum(axis=0) / heat.sum() == pytest.approx(shares)
    assert heat.sum() == pytest.approx(before.sum())
    assert heat[:, 0] == pytest.approx(before[:, 0] * heat[0, 0] / before[0, 0])


def test_a_lone_sample_does_not_stand_for_all_that_its_node_does() -> None:
    heat = np.zeros((100, 2))
    heat[:, 0], heat[7, 1] = 1.0, 1.0
    as_counted(heat, [0.1, 0.9])
    assert heat[7, 1] / heat[7, 0] == pytest.approx(MOST * MOST)


def test_what_was_sampled_elsewhere_is_not_asked_of_some_ranges() -> None:
    """Of 40 samples 10 of node 1 are of the other range: of the first one, half are each node's."""
    first, other = with_nodes(large(1), np.zeros(BLOCK)), with_nodes(large(1), np.zeros(BLOCK))
    mine = NodeHits(np.arange(30), np.repeat([0, 1], 15))
    first = replace(first, counted=(mine,))
    theirs = NodeHits(np.arange(10), np.ones(10, np.int64))
    other = replace(other, ram=replace(other.ram, hva=7 << 40), counted=(theirs,))
    found = shares_of_some([15 / 40, 25 / 40], [first, other], {first.ram.hva})
    assert found == pytest.approx([0.5, 0.5])
    assert shares_of_some([0.0, 1.0], [replace(first, counted=())], set()).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("shares", [[1.0], [0.2] * 5], ids=["too few", "too many"])
def test_shares_of_other_nodes_change_nothing(shares: list[float]) -> None:
    heat = np.ones((4, 2))
    as_counted(heat, shares)
    assert (heat == 1).all()


def test_a_guest_without_samples_stays_without_heat() -> None:
    heat = np.zeros((4, 2))
    as_counted(heat, [0.5, 0.5])
    assert not heat.any()
