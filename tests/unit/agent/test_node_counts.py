"""Which nodes' vCPUs made a guest's accesses?"""

from dataclasses import replace

import pytest

from tests.unit.agent.agent_world import HOST, World, guest
from vmplace.agent.node_counts import NodeCounts
from vmplace.agent.tracked_guest import COUNTS_KEPT_S, TrackedGuest
from vmplace.model.pages import HISTORY_WINDOWS
from vmplace.policy.plan import NodeShares, PlacementPlan, Snapshot
from vmplace.sampling.guest_cost import ByCpus, MemoryRate
from vmplace.topology.guest import GuestTopology

FIRST, SECOND = HOST.nodes[0].cpus, HOST.nodes[1].cpus


def counted(*windows: ByCpus | None, window_s: float = 1.0) -> NodeShares | None:
    nodes = NodeCounts()
    for one in windows:
        nodes.add(one, window_s)
    return nodes.shares(HOST)


def both(first: float | None, second: float | None) -> ByCpus:
    return (FIRST, 2, first), (SECOND, 2, second)


def test_windows_count_by_how_long_they_were() -> None:
    nodes = NodeCounts()
    nodes.add(both(3.0, 1.0), 1.0)
    nodes.add(both(0.0, 2.0), 2.0)
    shares = nodes.shares(HOST)
    assert shares is not None
    assert shares.whole == pytest.approx((3 / 8, 5 / 8)) and shares.newest == (0.0, 1.0)


def test_as_many_windows_count_as_pages_remember() -> None:
    shares = counted(both(1e9, 0.0), *[both(1.0, 1.0)] * HISTORY_WINDOWS)
    assert shares is not None and shares.whole == (0.5, 0.5)


@pytest.mark.parametrize(
    "by_cpus",
    [
        (),
        (((*FIRST, *SECOND), 2, 1.0), (FIRST, 2, 1.0)),
        both(0.0, 0.0),
        both(5e-4, 4e-4),
        both(1.0, None),
        both(9.0, -1.0),
    ],
    ids=["not apart", "on several nodes", "idle", "few", "a node without counts", "began anew"],
)
def test_where_nodes_are_not_apart_nothing_is_known(by_cpus: ByCpus) -> None:
    assert counted(by_cpus) is None


def test_once_vcpus_may_run_anywhere_what_was_counted_before_tells_nothing() -> None:
    assert counted(both(1.0, 1.0), ()) is None
    assert counted(both(1.0, 1.0), (((*FIRST, *SECOND), 2, 1.0), (FIRST, 2, 1.0))) is None
    assert counted(both(1.0, 1.0), (), None) is None


@pytest.mark.parametrize("missed", [None, both(1.0, None)], ids=["all", "a node"])
def test_a_window_that_missed_counts_leaves_what_was_known(missed: ByCpus | None) -> None:
    shares = counted(both(1.0, 3.0), missed)
    assert shares == NodeShares((0.25, 0.75), None)


def test_of_a_large_guest_counted_vcpus_stand_for_the_others_of_their_node() -> None:
    """Six vCPUs on the first node, of which one was counted; one on the second."""
    groups = tuple(((FIRST[0],), 1, 1.0 if number == 3 else None) for number in range(6))
    shares = counted((*groups, (SECOND, 1, 2.0)))
    assert shares is not None and shares.whole == (0.75, 0.25)


def test_counts_of_a_while_ago_and_of_memory_that_is_not_counted_tell_nothing() -> None:
    tracked = TrackedGuest(guest("db1"))
    rate = MemoryRate(2.0, 2.0, by_cpus=both(1.0, 1.0))
    tracked.take_rate(rate, 1.0)
    tracked.by_cpus.add(rate.by_cpus, 1.0)
    assert tracked.shares(HOST, 1.0) is not None
    assert tracked.shares(HOST, 1.0 + COUNTS_KEPT_S) is None
    tracked.take_rate(replace(rate, misses_cpuless=True), 2.0)
    cpuless = tuple(replace(node, cpus=()) if node.nid == HOST.nids[1] else node for node in HOST.nodes)
    assert tracked.shares(replace(HOST, nodes=cpuless), 2.0) is None


class Counters:
    """Counts more on one node than on the other."""

    name = "test"

    def cost(self, guest: GuestTopology) -> float | None:
        return 1.0

    def rate(self, guest: GuestTopology) -> MemoryRate:
        return MemoryRate(4.0, 4.0, by_cpus=both(3e6, 1e6))

    def forget(self, guest: GuestTopology) -> None:
        return None

    def close(self) -> None:
        return None


def test_plans_know_what_was_counted() -> None:
    known: list[NodeShares | None] = []

    def policy(snapshot: Snapshot) -> PlacementPlan:
        known.extend(view.node_shares for view in snapshot.guests)
        return PlacementPlan()

    world = World([guest("db1")], counters=Counters(), policy=policy)
    world.agent().run(windows=2)
    assert known[-1] == NodeShares((0.75, 0.25), (0.75, 0.25))
