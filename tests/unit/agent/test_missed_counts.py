"""A window in which nobody could count a guest's accesses: it is planned for as in the window before."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.agent.agent_world import HOST, ClockOfFreeDecisions, World, batch, guest
from tests.unit.model.known_pages import with_history
from tests.unit.policy.spread_guests import narrow_host
from tests.unit.policy.views import HVA, NPAGES, bits, guest_view
from vmplace.agent.tracked_guest import COUNTS_KEPT_S, TrackedGuest
from vmplace.agent.trials import Trials
from vmplace.model.page_windows import absorbed
from vmplace.policy.plan import Snapshot
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.sampling.guest_cost import MemoryRate
from vmplace.topology.guest import GuestTopology

RATE = MemoryRate(cpus=4.0, dram_per_us=1.4, waits=0.1, lar=0.75)


class Counters:
    """Tells ``now`` of each guest."""

    name = "counters"
    now: MemoryRate | None = RATE

    def cost(self, guest: GuestTopology) -> float | None:
        return 1.0

    def rate(self, guest: GuestTopology) -> MemoryRate | None:
        return self.now

    def forget(self, guest: GuestTopology) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("missed", [None, MemoryRate(3.0, None)], ids=["all", "accesses"])
def test_the_last_count_holds_for_a_while_and_no_longer(missed: MemoryRate | None) -> None:
    counters, tracked = Counters(), TrackedGuest(guest("db1"))
    trials = Trials(counters)

    def window(now_s: float) -> TrackedGuest:
        trials.begin([tracked], 1.0)
        trials.end([tracked], now_s)
        return tracked

    assert window(1.0).view.dram_per_us == 1.4
    counters.now = missed
    # Three of the four CPUs make three quarters of the accesses.
    kept = 1.4 * (missed.cpus / 4 if missed and missed.cpus else 1)
    assert window(2.0).view.dram_per_us == pytest.approx(kept)
    assert tracked.view.cpus == (missed.cpus if missed else 4.0)
    assert tracked.rate and tracked.rate.waits is None and tracked.rate.lar == 0.75
    assert window(COUNTS_KEPT_S).view.dram_per_us == pytest.approx(kept)
    assert window(1.0 + COUNTS_KEPT_S).view.dram_per_us is None
    counters.now = replace(RATE, dram_per_us=2.0)
    assert window(2.0 + COUNTS_KEPT_S).view.dram_per_us == 2.0


def test_plans_go_by_the_lar_that_was_counted_lately_and_only_where_it_is_of_nodes() -> None:
    tracked = TrackedGuest(guest("db1"))
    assert tracked.lar_of_nodes(HOST, 0.0) is None
    tracked.take_rate(RATE, 1.0)
    assert tracked.lar_of_nodes(HOST, 1.0) == 0.75
    assert tracked.lar_of_nodes(replace(HOST, sockets=len(HOST.nodes)), 1.0) == 0.75
    # Two nodes of a socket: what is local may be of either.
    assert tracked.lar_of_nodes(replace(HOST, sockets=1), 1.0) is None
    tracked.take_rate(MemoryRate(3.0, None), 2.0)
    assert tracked.lar_of_nodes(HOST, 2.0) == 0.75
    assert tracked.lar_of_nodes(HOST, 1.0 + COUNTS_KEPT_S) is None


@pytest.mark.parametrize("gap", [0, 10])
def test_a_guest_does_not_move_to_and_fro_where_each_tenth_window_is_not_counted(gap: int) -> None:
    """Its controller is full, so pages lie on two nodes; uncounted, all would go home, and out again."""
    policy, node, tracked = AutoPolicy(), np.zeros(NPAGES, int), TrackedGuest(guest("db1"))
    window, moved = bits({0: range(NPAGES)}, range(NPAGES)), []
    for now_s in range(1, 51):
        missed = gap and now_s > 20 and now_s % gap == 0
        tracked.take_rate(None if missed else RATE, now_s)
        seen = guest_view([0, 1, 0, 1], node)
        assert seen.pages
        ranges = tuple(with_history(one, *[window] * 4) for one in seen.pages.ranges)
        seen = replace(seen, pages=replace(seen.pages, ranges=ranges), dram_per_us=tracked.view.dram_per_us)
        seen = replace(seen, cpus=4.0, known_s=3600.0 + now_s)
        plan = policy(Snapshot(narrow_host(), (seen,), 256 << 20, 0, True, now_ns=(3600 + now_s) * 1e9))
        for move in plan.moves:
            node[((move.hva - HVA) // 4096).astype(int)] = move.to_nid
        moved.append(sum(len(move.hva) for move in plan.moves))
    assert sum(moved[:20]) > 0 and sum(moved[20:]) < NPAGES


def test_the_lar_by_counters_is_of_the_last_count() -> None:
    agent = World([guest("db1")], counters=Counters()).agent()
    agent.run(windows=1)
    assert agent.status.guests["db1"].counted_lar == 0.75
    (tracked,) = agent.roster
    tracked.take_rate(MemoryRate(4.0, 1.4), COUNTS_KEPT_S)
    # Events that do not tell nodes apart tell no share.
    assert tracked.rate and tracked.rate.lar is None


class ClockAhead(ClockOfFreeDecisions):
    """Is ``ahead_s`` ahead of the machine's."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        """Return that time."""
        return super().monotonic() + self.ahead_s


def test_the_lar_by_counters_of_a_guest_that_is_not_sampled_is_that_of_a_while_ago_at_most() -> None:
    migrating = replace(guest("db1"), uuid="4dea22b3-1d52-d8f3-2516-782e98ab3fa0")
    world, clock = World([migrating], counters=Counters()), ClockAhead()
    agent = world.agent(clock=clock)
    agent.run(windows=1)
    world.migrating = frozenset({str(migrating.uuid)})
    for windows, ahead_s, lar in ((2, COUNTS_KEPT_S / 2, 0.75), (3, COUNTS_KEPT_S, None)):
        clock.ahead_s = ahead_s
        agent.run(windows=windows)
        status = agent.status.guests["db1"]
        assert (status.state, status.counted_lar) == ("migrating", lar)


@pytest.mark.parametrize(
    ("misses_cpuless", "cpuless_nid", "is_known", "lar"),
    [
        (False, 0, True, 0.75),
        # The guest's memory is on node 0.
        (True, 0, True, None),
        (True, 1, True, 0.75),
        (True, 1, False, None),
        (True, None, False, 0.75),
    ],
    ids=["all is counted", "memory there", "memory elsewhere", "nobody knows", "no such node"],
)
def test_the_lar_of_memory_whose_accesses_nobody_counts_is_not_known(
    misses_cpuless: bool, cpuless_nid: int | None, is_known: bool, lar: float | None
) -> None:
    tracked = TrackedGuest(guest("db1"), pages=absorbed(None, batch(guest("db1"))) if is_known else None)
    nodes = tuple(replace(node, cpus=()) if node.nid == cpuless_nid else node for node in HOST.nodes)
    tracked.take_rate(replace(RATE, misses_cpuless=misses_cpuless), 1.0)
    assert tracked.counted_lar(replace(HOST, nodes=nodes), 2.0) == lar


def test_a_window_in_which_no_vcpu_ran_leaves_the_last_count_of_use() -> None:
    tracked = TrackedGuest(guest("db1"))
    for now_s, rate in enumerate((RATE, MemoryRate(0.0, None), MemoryRate(4.0, None))):
        tracked.take_rate(rate, float(now_s))
    assert tracked.view.dram_per_us == pytest.approx(1.4)
