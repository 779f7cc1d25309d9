"""Busy guests on one node beside one that spans all: does its memory leave their node, and stay away?"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.model.known_pages import with_history
from tests.unit.policy.spread_guests import Spread, narrow_host, sampled
from tests.unit.policy.views import NPAGES, bits
from vmplace.policy.full_controllers import CALM_S, Crowding, asked_if_even
from vmplace.policy.plan import GuestSettings, GuestView, Snapshot


def spanning(host: Spread, mb_per_s: float) -> GuestView:
    """Return guest "s", whose vCPUs run on all nodes and use all of its memory alike."""
    guest = sampled("s", [0, 2, 4, 6], host.node["s"], mb_per_s, known_s=float(host.now_s))
    assert guest.pages
    history = [bits({nid: range(NPAGES) for nid in range(4)})] * 4
    ranges = tuple(replace(with_history(one, *history), sampled=True) for one in guest.pages.ranges)
    topology = replace(guest.topology, pid=guest.topology.pid + 1)
    return replace(guest, topology=topology, pages=replace(guest.pages, ranges=ranges))


def beside(host: Spread, mb_per_s: float, ask: float, seconds: int, **more: object) -> int:
    """Let "s" run beside "a", which asks for ``ask``; return how many pages of "s" moved."""
    moved = 0
    for _ in range(seconds):
        busy = [replace(host.guest("a", ask), **more)] if ask else []  # type: ignore[arg-type]
        plan = host.window(*busy, spanning(host, mb_per_s))
        moved += sum(len(move.hva) for move in plan.moves if move.guest == "s")
    return moved


def on_first(host: Spread) -> float:
    """Return which share of the memory of "s" is on the node of "a"."""
    return float((host.node["s"] == 0).mean())


@pytest.mark.parametrize(("ask", "expected"), [(0, 0.25), (8, 0.25), (45, 0.0)])
def test_memory_that_all_nodes_use_leaves_the_node_of_a_guest_that_is_busy(
    ask: float, expected: float
) -> None:
    """Together they fill its controller, and the guest that is at home there does not fill it by itself."""
    host = Spread()
    host.node["s"] = np.zeros(NPAGES, int)
    beside(host, 120.0, ask, 20)
    assert on_first(host) == pytest.approx(expected, abs=0.05)
    assert not host.away()


def test_memory_that_left_does_not_come_back_because_it_left() -> None:
    """Once it is away, the controller is not full: that says nothing of what it would be."""
    host = Spread()
    host.node["s"] = np.arange(NPAGES) % 4
    assert beside(host, 140.0, 40.0, 20) > NPAGES / 8
    host.now_s += int(CALM_S) - 10
    assert beside(host, 140.0, 40.0, 30) < NPAGES / 50


def test_it_comes_back_once_the_busy_guest_is_quiet() -> None:
    """Else others would give way for long to a protected guest that was busy for a moment."""
    host = Spread()
    host.node["s"] = np.arange(NPAGES) % 4
    protected = {"settings": GuestSettings(protected=True)}
    beside(host, 120.0, 45.0, 10, **protected)
    away = on_first(host)
    beside(host, 120.0, 4.0, 20, **protected)
    assert away < 0.05 and on_first(host) == pytest.approx(0.25, abs=0.05)


def test_others_do_not_give_way_to_a_protected_guest_of_a_node_that_has_time() -> None:
    host = Spread()
    host.node["s"] = np.arange(NPAGES) % 4
    assert beside(host, 160.0, 12.0, 20, settings=GuestSettings(protected=True)) < NPAGES / 50


def felt(crowding: Crowding, at_s: float, ask: float, others: float = 280.0, nid: int = 0) -> Crowding:
    """Return what holds once "a", on node ``nid``, and "s" asked for so much."""
    host = Spread(node={"a": np.full(NPAGES, nid), "s": np.arange(NPAGES) % 4})
    guest = sampled("a", [2 * nid, 2 * nid + 1] * 2, host.node["a"], ask, nid)
    guests = (guest, spanning(host, others))
    return crowding.now(Snapshot(narrow_host(), guests, None, 0, now_ns=int(at_s * 1e9)))


def test_who_is_felt_stays_so_for_a_while_but_not_once_quiet_nor_on_another_node() -> None:
    """70 of 100 MB/s are asked for by the others."""
    assert not felt(Crowding(), 1, 9.0).felt_s
    once = felt(Crowding(), 1, 12.0)
    assert list(once.felt_s.values()) == [(0, 1.0)]
    assert felt(once, 2, 8.0).felt_s == once.felt_s == felt(once, CALM_S, 8.0).felt_s
    assert not felt(once, CALM_S + 2, 8.0).felt_s
    assert not felt(once, 2, 6.0).felt_s
    assert not felt(once, 2, 8.0, nid=1).felt_s
    assert felt(once, 2, 12.0, others=160.0).felt_s == once.felt_s


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, [70, 20, 20, 20]),
        ({"interleaves": False}, [90, 40, 0, 0]),
        ({"allowed_nids": (0,)}, [130, 0, 0, 0]),
    ],
)
def test_what_is_asked_for_goes_by_where_a_plan_may_spread_memory(
    settings: dict[str, Any], asked: list[float]
) -> None:
    host = Spread(node={"s": np.zeros(NPAGES, int)})
    guest = spanning(host, 80.0)
    on_two = zip(guest.topology.vcpus, range(4), strict=True)
    vcpus = tuple(replace(one, cpus=(cpu,)) for one, cpu in on_two)
    topology = replace(guest.topology, vcpus=vcpus)
    guest = replace(guest, topology=topology, settings=GuestSettings(**settings))
    shares = asked_if_even(narrow_host(), (guest,), {0: 0.5, 1: 0.0, 2: 0.0, 3: 0.0})
    assert [round(100 * shares[nid]) for nid in range(4)] == asked


def test_where_counts_do_not_follow_what_the_model_says_the_plan_rests() -> None:
    """A guest may ask for the same wherever its memory is."""
    host = Spread()
    host.node["s"] = np.arange(NPAGES) % 4
    beside(host, 200.0, 48.0, 20)
    assert beside(host, 200.0, 48.0, 20) < NPAGES / 50
