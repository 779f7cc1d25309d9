"""Are copies dropped once all vCPUs of their guest run on one node, and kept for those that float again?"""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.policy.test_own_limits import READ_BY_ALL, reader
from tests.unit.policy.views import HVA, NPAGES, host, moved
from vmplace.agent.planning import planned
from vmplace.policy.plan import GuestView, Mode, PlacementPlan, Snapshot, VcpuMove
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.policy.unneeded_copies import NOT_ALLOWED, ON_ONE_NODE, UnneededCopies

S = 10**9
FLOATS = VcpuMove("a", {0: (0, 2)}, (1,), None, "they float again")


def on(view: GuestView, *cpus: int) -> GuestView:
    """Return the guest with its vCPUs on these CPUs, of which each node has two."""
    vcpus = tuple(replace(one, cpus=(cpu,)) for one, cpu in zip(view.topology.vcpus, cpus, strict=True))
    return replace(view, topology=replace(view.topology, vcpus=vcpus))


COPIED = replace(reader(READ_BY_ALL), copied_bytes=3 * NPAGES * 4096)
LONE = on(COPIED, 2, 3, 2, 3)


def drops(now: GuestView, then: GuestView | None = None, *moves: VcpuMove) -> list[str]:
    """Return why copies are dropped, by a plan for the same as the one before it."""
    before, after, lone = Snapshot(host(), (now,)), Snapshot(host(), (then or now,)), UnneededCopies()
    first, second = (lone.drops(before, after, moves) for _ in range(2))
    assert not first
    return [one.reason for one in second]


def test_a_guest_whose_vcpus_came_to_one_node_keeps_no_copies() -> None:
    snapshot, lone = Snapshot(host(), (LONE,)), UnneededCopies()
    lone.drops(snapshot, snapshot, ())
    (drop,) = lone.drops(snapshot, snapshot, ())
    assert (drop.hva.tolist(), drop.npages.tolist(), drop.is_all) == ([HVA], [NPAGES], True)
    assert drop.size_bytes == COPIED.copied_bytes
    assert drops(LONE) == [ON_ONE_NODE.format(1)]


def test_one_look_alone_decides_nothing() -> None:
    lone, found = UnneededCopies(), []
    elsewhere, other = on(COPIED, 0, 1, 0, 1), replace(LONE.topology, start_time=LONE.topology.start_time + 1)
    for view in (LONE, COPIED, LONE, elsewhere, replace(LONE, topology=other), LONE, LONE):
        snapshot = Snapshot(host(), (view,))
        found.append(len(lone.drops(snapshot, snapshot, ())))
    assert found == [0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("unknown", [(), (99,), (2, 99)])
def test_nothing_is_dropped_while_a_vcpus_cpus_are_not_known(unknown: tuple[int, ...]) -> None:
    first, *others = LONE.topology.vcpus
    vcpus = (replace(first, cpus=unknown), *others)
    assert drops(replace(LONE, topology=replace(LONE.topology, vcpus=vcpus))) == []
    assert drops(replace(LONE, topology=replace(LONE.topology, vcpus=()))) == []


@pytest.mark.parametrize(
    ("now", "then", "moves"),
    [
        (COPIED, COPIED, ()),
        # This plan ties the vCPUs: they are not there yet.  It gives them back: they are there no more.
        (COPIED, LONE, ()),
        (LONE, COPIED, ()),
        (LONE, COPIED, (FLOATS,)),
        (LONE, LONE, (FLOATS,)),
        (replace(LONE, copied_bytes=0), LONE, ()),
        (replace(LONE, copied_bytes=None), LONE, ()),
        (replace(LONE, settings=replace(LONE.settings, mode=Mode.MANUAL)), LONE, ()),
    ],
)
def test_where_vcpus_are_or_will_be_on_several_nodes_nothing_is_dropped_nor_where_there_is_nothing(
    now: GuestView, then: GuestView, moves: tuple[VcpuMove, ...]
) -> None:
    assert drops(now, then, *moves) == []


@pytest.mark.parametrize("settings", [{"replicates": False}, {"replica_bytes": 0}])
@pytest.mark.parametrize("view", [COPIED, LONE])
def test_a_guest_whose_policy_allows_no_copies_keeps_none(view: GuestView, settings: dict[str, Any]) -> None:
    def first_drops(view: GuestView) -> list[str]:
        snapshot = Snapshot(host(), (view,))
        return [one.reason for one in UnneededCopies().drops(snapshot, snapshot, ())]

    forbidden = replace(view, settings=replace(view.settings, **settings))
    assert first_drops(forbidden) == [NOT_ALLOWED]
    assert first_drops(replace(forbidden, copied_bytes=0)) == []
    manual = replace(forbidden.settings, mode=Mode.MANUAL)
    assert first_drops(replace(forbidden, settings=manual)) == []


def plans(*views: GuestView) -> list[PlacementPlan]:
    """Return the plans of a window each."""
    policy, lone = AutoPolicy(), UnneededCopies()

    def blame(name: str, err: Exception) -> None:
        raise err

    return [
        planned(policy, Snapshot(host(), (view,), None, 0.25, True, now_ns=second * S), blame, lone)
        for second, view in enumerate(views, 1)
    ]


def test_a_plan_has_the_memory_of_a_lone_guest_follow_and_asks_for_no_copies_for_one_node() -> None:
    *spread, first, second, last = plans(*[COPIED] * 12, LONE, LONE, replace(LONE, copied_bytes=0))
    assert spread[-1].replications and not spread[-1].collapses
    assert moved(first) == {1: set(range(NPAGES))} and not first.collapses
    assert [one.reason for one in second.collapses] == [ON_ONE_NODE.format(1)]
    assert not last.collapses and not any(one.replications for one in (first, second, last))


def test_a_plan_counts_no_copies_that_a_policy_forbids_though_not_all_are_gone() -> None:
    """Else their gain would be credited, and pages would stay where they lie badly without."""
    forbidden = replace(COPIED, settings=replace(COPIED.settings, replicates=False))
    *_, first, second = plans(*[COPIED] * 12, forbidden, forbidden)
    for plan in (first, second):
        assert [one.reason for one in plan.collapses] == [NOT_ALLOWED] and not plan.replications


def test_vcpus_that_come_back_to_several_nodes_get_copies_anew() -> None:
    views = [COPIED] * 12 + [LONE] * 2 + [replace(COPIED, copied_bytes=0)] * 2
    assert plans(*views)[-1].replications


def test_a_guest_of_more_memory_than_figures_hold_is_planned_for_as_well() -> None:
    wide = tuple(replace(ram, npages=1 << 32) for ram in LONE.topology.ram)
    assert drops(replace(LONE, topology=replace(LONE.topology, ram=wide))) == [ON_ONE_NODE.format(1)]
