"""The loop undoes what made a guest slower, and leaves it alone then."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from tests.unit.agent.agent_world import HOST, NPAGES, ClockOfFreeDecisions, World, guest
from vmplace.actuation.result import ActuationResult, MoveOutcome
from vmplace.agent.config import GuestRule
from vmplace.agent.loop import Agent
from vmplace.agent.orders import Order, Verb
from vmplace.agent.tracked_guest import TrackedGuest
from vmplace.agent.trials import LEAST_SHARE, Trials
from vmplace.errors import VmplaceError
from vmplace.policy import home
from vmplace.policy.plan import Collapse, GuestSettings, Mode, PlacementPlan, Snapshot
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.policy.trial import AFTER, BEFORE, FIRST_WAIT_S, Verdict
from vmplace.sampling.sample import NodeBits, SampleBatch
from vmplace.topology.guest import GuestTopology, Vcpu


class Cost:
    """What an instruction takes, by the node of the guest's memory."""

    name = "cost"

    def __init__(self, of: Callable[[str], float | None]) -> None:
        self._of = of
        self.forgotten: list[str] = []
        self.closed = 0

    def cost(self, guest: GuestTopology) -> float | None:
        return self._of(guest.name)

    def forget(self, guest: GuestTopology) -> None:
        self.forgotten.append(guest.name)

    def close(self) -> None:
        self.closed += 1


def world_with(costs: dict[int, float] | None, *names: str) -> World:
    """Return a world in which an instruction takes ``costs`` by node; every policy moves memory to node 1."""
    world = World([guest(name) for name in names or ("db1",)])
    world.counters = Cost(lambda name: costs[world.nid_of.get(name, 0)] if costs else None)
    return world


def test_memory_that_runs_better_stays_where_it_was_moved() -> None:
    world = world_with({0: 2.0, 1: 1.0})
    agent = world.agent()
    agent.run(windows=BEFORE + AFTER + 4)
    assert (world.applied, world.undone) == (["db1"], [])
    assert "kept" in agent.status.guests["db1"].reasons[-1]


def test_memory_that_runs_worse_is_put_back_and_left_alone() -> None:
    world = world_with({0: 1.0, 1: 1.3})
    agent = world.agent()
    agent.run(windows=2 * (BEFORE + AFTER) + 6)
    assert (world.applied, world.undone, world.nid_of) == (["db1"], ["db1"], {})
    assert "+30 %" in agent.status.guests["db1"].reasons[-1]


@dataclass
class CopiedWorld(World):
    """A world that notes whose copies are dropped."""

    dropped: list[str] = field(default_factory=list)

    def apply(
        self, plan: PlacementPlan, guests: Mapping[str, GuestTopology], is_stopping: Callable[[], bool]
    ) -> ActuationResult:
        self.dropped += [one.guest for one in plan.collapses]
        return super().apply(plan, guests, is_stopping)


def with_drop(snapshot: Snapshot) -> PlacementPlan:
    """Return the plan of each guest's home, and a drop of copies."""
    unwanted = Collapse("db1", np.zeros(1, np.uint64), np.ones(1, np.int32), "they are written")
    return replace(home.plan(snapshot), collapses=(unwanted,))


def test_copies_that_do_harm_go_at_once_also_while_a_guest_is_measured_and_while_it_is_left_alone() -> None:
    costs = {0: 1.0, 1: 1.3}
    world = CopiedWorld([guest("db1")], policy=with_drop)
    world.counters, windows = Cost(lambda name: costs[world.nid_of.get(name, 0)]), 2 * (BEFORE + AFTER) + 6
    world.agent().run(windows=windows)
    assert (world.applied, world.undone) == (["db1"], ["db1"])
    assert world.dropped == ["db1"] * windows


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.MANUAL])
def test_copies_of_a_guest_that_is_not_to_be_touched_stay(mode: Mode) -> None:
    world = CopiedWorld([guest("db1")], policy=with_drop)
    world.agent(GuestRule("*", GuestSettings(mode))).run(windows=3)
    assert world.dropped == []


def test_a_guest_that_cannot_be_measured_is_placed_at_once_and_not_judged() -> None:
    world = world_with(None)
    agent = world.agent()
    agent.run(windows=1)
    assert world.applied == ["db1"]
    agent.run(windows=12)
    assert world.undone == []


class SeenWorld(World):
    """A world whose source may see which node touches a page."""

    sees = False

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        batch = super().harvest(guest)
        if not self.sees:
            return batch
        bits = np.full((len(HOST.nids) + 1, NPAGES // 64), ~np.uint64(0))
        return replace(
            batch, ranges=tuple(replace(one, by_node=NodeBits(bits, None)) for one in batch.ranges)
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sees", "cpus", "policy_name", "is_judged"),
    [
        (True, (0, 2), "auto", False),
        # One node is home whatever is seen; without bits nothing is planned by pages.
        (True, (2, 3), "auto", True),
        (False, (0, 2), "auto", True),
        # Another policy has no guard of its own.
        (True, (0, 2), "interleave", True),
    ],
)
def test_what_is_planned_by_pages_is_judged_by_the_plan_alone(
    sees: bool, cpus: tuple[int, ...], policy_name: str, is_judged: bool
) -> None:
    """It costs 30 % more on node 1: undone only where a trial judges."""
    vcpus = tuple(Vcpu(at, 50 + at, (cpu,)) for at, cpu in enumerate(cpus))
    costs = {0: 1.0, 1: 1.3}
    auto = AutoPolicy()
    world = SeenWorld(
        [replace(guest("db1"), vcpus=vcpus)],
        # Which guests it plans by pages is what the shipped policy says.
        policy=lambda snapshot: replace(to_node_1(snapshot), weighings=auto(snapshot).weighings),
    )
    world.sees, world.counters = sees, Cost(lambda name: costs[world.nid_of.get(name, 0)])
    agent = world.agent()
    agent.state.parts = replace(agent.state.parts, policy_name=policy_name)
    agent.run(windows=2 * (BEFORE + AFTER) + 6)
    assert world.applied == ["db1"]
    assert world.undone == (["db1"] if is_judged else [])


def to_node_1(snapshot: Snapshot) -> PlacementPlan:
    """Move all that is not there, whoever touches it."""
    return home.plan_for(snapshot, lambda host, guest, ram, allowed: home.Target({1: 1.0}, "by the test"))


def test_one_guests_loss_is_no_other_guests() -> None:
    world = world_with(None, "db1", "web")
    world.counters = Cost(lambda name: 2.0 if name == "db1" and world.nid_of.get(name) else 1.0)
    world.agent().run(windows=BEFORE + AFTER + 4)
    assert world.undone == ["db1"]
    assert world.nid_of == {"web": 1}


def test_counters_are_let_go_with_the_guest_and_with_the_agent() -> None:
    world = world_with({0: 1.0, 1: 1.0})
    counters = world.counters
    assert isinstance(counters, Cost)
    agent = world.agent()
    agent.run(windows=1)
    world.running.clear()
    agent.run(windows=2)
    assert counters.forgotten == ["db1"]
    assert counters.closed == 2


def test_moves_that_are_little_in_each_window_are_tried_by_their_sum() -> None:
    """A page of 1,024 in each of two windows is all that moves, and it costs 30 %."""
    of = guest("db1")
    assert LEAST_SHARE * NPAGES >= 1
    moved, verdicts = 0, list[Verdict]()
    trials, tracked = Trials(Cost(lambda _: 1.3 if moved == 2 else 1.0)), TrackedGuest(of)
    for window in range(BEFORE + AFTER + 6):
        trials.begin([tracked], 1.0)
        trials.end([tracked], float(window))
        now = 1 if window in {BEFORE, BEFORE + 2} else 0
        result = ActuationResult((MoveOutcome("db1", moved=now, calls=now),))
        verdicts += trials.settle([tracked], result, float(window)).values()
        moved += now
    assert verdicts == [Verdict.UNDO]


def test_a_trial_that_was_begun_before_the_guest_was_planned_by_pages_undoes_nothing_afterwards() -> None:
    """What moved in between is not known to it; the guest is 20 % slower, of its own accord."""
    cost, is_judged, verdicts = [1.0], [True], list[Verdict]()
    trials, tracked = Trials(Cost(lambda _: cost[0]), lambda _: is_judged[0]), TrackedGuest(guest("db1"))
    for window in range(BEFORE + 40):
        is_judged[0] = not BEFORE < window < BEFORE + 20
        cost[0] = 1.2 if window >= BEFORE + 20 else 1.0
        trials.begin([tracked], 1.0)
        trials.end([tracked], float(window))
        moved = NPAGES if window == BEFORE else 0
        result = ActuationResult((MoveOutcome("db1", moved=moved, calls=1),))
        verdicts += trials.settle([tracked], result, float(window)).values()
    assert verdicts == []


def paused_at_the_verdict(world: World, clock: ClockOfFreeDecisions | None = None) -> Agent:
    """Return an agent that was paused between the first placement, which costs 30 %, and its verdict."""
    agent = world.agent(clock=clock)
    agent.run(windows=BEFORE + 2)
    assert world.applied == ["db1"]
    ordered(agent, "pause", None)
    agent.run(windows=BEFORE + AFTER + 6)
    assert "30 %" in agent.status.guests["db1"].reasons[-1]
    return agent


def ordered(agent: Agent, verb: Verb, name: str | None) -> None:
    agent.inbox.submit(Order(verb, name))
    agent.state.commands.serve()


def test_a_pause_holds_for_what_made_a_guest_slower_too_until_resume() -> None:
    world = world_with({0: 1.0, 1: 1.3})
    agent = paused_at_the_verdict(world)
    assert (world.undone, world.nid_of) == ([], {"db1": 1})
    ordered(agent, "resume", None)
    agent.run(windows=agent.status.windows + 1)
    assert (world.undone, world.nid_of) == (["db1"], {})
    assert agent.status.guests["db1"].reasons[-1].startswith("undone")
    # It is left alone, and measured anew where it is now.
    agent.run(windows=agent.status.windows + BEFORE + AFTER + 2)
    assert (world.applied, world.undone) == (["db1"], ["db1"])


def test_an_order_that_comes_with_the_verdict_is_heard_before_anything_is_undone() -> None:
    world = world_with({0: 1.0, 1: 1.3})
    agent = world.agent()
    end = agent.state.trials.settle

    def settled(*args: Any) -> Mapping[str, Verdict]:
        if verdicts := end(*args):
            agent.inbox.submit(Order("pause"))
        return verdicts

    agent.state.trials.settle = settled  # type: ignore[assignment,method-assign]
    agent.run(windows=BEFORE + AFTER + 6)
    assert (world.undone, agent.state.commands.paused) == ([], True)


def test_what_root_had_moved_since_the_verdict_is_not_undone_by_it() -> None:
    world = world_with({0: 1.0, 1: 1.3})
    agent = paused_at_the_verdict(world)
    world.nid_of["db1"] = 0
    agent.inbox.submit(Order("apply", "db1"))
    agent.run(windows=agent.status.windows + 1)
    assert world.applied == ["db1", "db1"]
    ordered(agent, "resume", None)
    agent.run(windows=agent.status.windows + 1)
    assert (world.undone, world.nid_of) == ([], {"db1": 1})


def test_what_an_earlier_agent_placed_is_not_undone_with_what_this_one_moved() -> None:
    """The journal holds the places from before that one, too."""
    world = world_with({0: 1.0, 1: 1.3})
    world.placed_before = {world.running[0].identity: "db1"}
    agent = world.agent()
    agent.run(windows=BEFORE + AFTER + 6)
    assert (world.applied, world.undone) == (["db1"], [])
    assert agent.status.guests["db1"].reasons[-1].startswith("left as it is")


def test_a_guest_that_was_missed_for_one_look_keeps_what_it_had_before() -> None:
    costs = {0: 2.0, 1: 1.0}
    world = world_with(costs)
    agent = world.agent()
    agent.run(windows=BEFORE + AFTER + 4)
    running, world.running = world.running, []
    agent.run(windows=agent.status.windows + 1)
    world.running = running
    # Somebody puts it back, and the next placement makes it slower.
    world.nid_of, costs[1] = {}, 3.0
    agent.run(windows=agent.status.windows + BEFORE + AFTER + 6)
    assert (world.applied, world.undone) == (["db1", "db1"], [])


class LaterClock(ClockOfFreeDecisions):
    """A clock that a test sets on."""

    later_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.later_s


class FullWorld(World):
    """A world whose node 0 has no room, so that nothing goes back to it."""

    is_full = True

    def undo(self, *args: Any) -> tuple[str, ...]:
        if self.is_full:
            self.undone.append("tried")
            raise VmplaceError("not everything was restored: no room on node 0")
        return super().undo(*args)


def test_an_undo_that_failed_stays_due_and_is_tried_again_after_a_while() -> None:
    world, costs, clock = FullWorld([guest("db1")]), {0: 1.0, 1: 1.3}, LaterClock()
    world.counters = Cost(lambda name: costs[world.nid_of.get(name, 0)])
    agent = world.agent(clock=clock)
    agent.run(windows=BEFORE + AFTER + 6)
    assert (world.undone, world.nid_of) == (["tried"], {"db1": 1})
    assert agent.status.guests["db1"].reasons[-1].startswith("not all undone: an instruction takes +30 %")
    world.is_full, clock.later_s = False, FIRST_WAIT_S
    agent.run(windows=agent.status.windows + 1)
    assert (world.undone, world.nid_of) == (["tried", "db1"], {})
    assert agent.status.guests["db1"].reasons[-1].startswith("undone: an instruction takes +30 %")


def test_what_is_due_to_be_undone_is_not_moved_on_at_resume() -> None:
    """The pause outlasts the wait after the verdict; the plan has something to move again by then."""
    clock = LaterClock()
    world = world_with({0: 1.0, 1: 1.3})
    agent = paused_at_the_verdict(world, clock)
    clock.later_s, world.nid_of["db1"] = 2 * FIRST_WAIT_S, 0
    ordered(agent, "resume", None)
    agent.run(windows=agent.status.windows + 1)
    assert (world.applied, world.undone) == (["db1"], ["db1"])


def test_what_is_due_stays_due_for_a_guest_that_was_missed_for_one_look() -> None:
    world = world_with({0: 1.0, 1: 1.3})
    agent = paused_at_the_verdict(world)
    running, world.running = world.running, []
    agent.run(windows=agent.status.windows + 1)
    world.running = running
    agent.run(windows=agent.status.windows + 1)
    assert agent.status.guests["db1"].reasons[-1].startswith("to be undone")
    ordered(agent, "resume", None)
    agent.run(windows=agent.status.windows + 1)
    assert (world.undone, world.nid_of) == (["db1"], {})


def test_what_is_due_stays_due_for_a_guest_that_is_planned_by_pages_from_then_on() -> None:
    is_judged, moved = True, 0
    cost = lambda _: 1.3 if moved else 1.0  # noqa: E731
    trials, tracked = Trials(Cost(cost), lambda _: is_judged), TrackedGuest(guest("db1"))
    for window in range(BEFORE + AFTER + 6):
        moved = NPAGES if window >= BEFORE else 0
        now = NPAGES if window == BEFORE else 0
        trials.begin([tracked], 1.0)
        trials.end([tracked], float(window))
        trials.settle([tracked], ActuationResult((MoveOutcome("db1", moved=now, calls=1),)), float(window))
        is_judged = not tracked.trial.is_undo_due
    assert not is_judged and tracked.trial.is_undo_due and not trials.may_move(tracked, 1e9)
    trials.settle([tracked], ActuationResult((MoveOutcome("db1", moved=NPAGES, calls=1),)), 1e3)
    assert not tracked.trial.is_undo_due


def test_what_root_had_moved_in_mode_advise_stays_and_status_says_how_to_undo_it() -> None:
    world = world_with({0: 1.0, 1: 1.3})
    agent = world.agent(GuestRule("db1", GuestSettings(Mode.ADVISE)))
    agent.run(windows=BEFORE + 1)
    assert world.applied == []
    agent.inbox.submit(Order("apply", "db1"))
    agent.run(windows=agent.status.windows + AFTER + 6)
    assert (world.applied, world.undone) == (["db1"], [])
    reason = agent.status.guests["db1"].reasons[-1]
    assert reason.startswith("left as it is (mode advise; `vmplace undo db1`): an instruction takes +30 %")
