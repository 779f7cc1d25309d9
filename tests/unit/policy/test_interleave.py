"""Every guest over all nodes, but those that the operator excludes."""

import numpy as np

from tests.unit.policy.views import NPAGES, guest_view, host
from vmplace.policy.baselines.interleave import plan
from vmplace.policy.plan import GuestSettings, Snapshot


def test_each_node_ends_with_a_quarter() -> None:
    result = plan(Snapshot(host(), (guest_view([0, 1], 0),), None))
    (move,) = result.moves
    assert set(move.from_nid) == {0}
    moved = np.bincount(move.to_nid, weights=move.npages, minlength=4)
    assert np.abs(moved[1:] - NPAGES / 4).max() <= 1
    assert "all nodes" in move.reason


def test_what_is_distributed_already_stays() -> None:
    assert plan(Snapshot(host(), (guest_view([0], np.arange(NPAGES) % 4),), None)).moves == ()


def test_a_node_that_is_not_allowed_gets_nothing() -> None:
    settings = GuestSettings(allowed_nids=(1, 3))
    (move,) = plan(Snapshot(host(), (guest_view([0], 1, settings=settings),), None)).moves
    assert set(move.to_nid) == {3}
    assert abs(int(move.npages.sum()) - NPAGES / 2) <= 1
