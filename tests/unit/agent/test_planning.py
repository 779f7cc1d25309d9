"""A guest that no plan can be made for costs nobody else's plan, and plans cost no more than their share."""

import pytest

from tests.unit.agent.agent_world import World, guest
from vmplace.agent.clock import HostClock
from vmplace.agent.config import GuestRule
from vmplace.agent.config_sections import DecisionsSection
from vmplace.agent.orders import Order
from vmplace.agent.planning import CpuBudget
from vmplace.agent.run_recorder import RecordedPolicy
from vmplace.policy import home
from vmplace.policy.plan import GuestSettings, Mode, PlacementPlan, Snapshot


def fails_for_bad(snapshot: Snapshot) -> PlacementPlan:
    if any(view.topology.name == "bad" for view in snapshot.guests):
        raise ZeroDivisionError("no pages")
    return home.plan(snapshot)


def test_the_others_are_placed_and_the_guest_is_named():
    world = World([guest("bad"), guest("good")], policy=fails_for_bad)
    agent = world.agent()
    agent.run(windows=2)
    assert world.applied == ["good"]
    assert "ZeroDivisionError: no pages" in str(agent.status.guests["bad"].problem)
    assert agent.status.guests["good"].problem is None
    assert any("guest bad is planned for no more" in note for note in agent.status.notes)


class Remembers:
    """A policy that remembers of which guests it made plans."""

    def __init__(self) -> None:
        self.planned: tuple[tuple[str, ...], ...] = ()

    def __call__(self, snapshot: Snapshot) -> PlacementPlan:
        plan = fails_for_bad(snapshot)
        self.planned = (*self.planned, names_of(snapshot))
        return plan


def names_of(snapshot: Snapshot) -> tuple[str, ...]:
    return tuple(view.topology.name for view in snapshot.guests)


@pytest.mark.parametrize("is_kept", [False, True], ids=["not recorded", "recorded"])
def test_to_find_the_guest_that_fails_charges_nobody_for_a_plan(is_kept: bool) -> None:
    policy, kept = Remembers(), []
    watched = RecordedPolicy(policy, lambda snapshot, _: kept.append(names_of(snapshot)))
    world = World([guest("bad"), guest("good"), guest("fine")], policy=watched if is_kept else policy)
    world.agent().run(windows=2)
    assert {frozenset(names) for names in policy.planned} == {frozenset({"good", "fine"})}
    assert kept == (list(policy.planned) if is_kept else [])


class ManualClock:
    """Time that the test sets."""

    def __init__(self) -> None:
        self.now_s, self.cpu_ns = 0.0, 0

    def monotonic(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def cpu_s(self) -> float:
        return self.cpu_ns / 1e9

    def thread_cpu_ns(self) -> int:
        return self.cpu_ns


@pytest.mark.parametrize(
    ("cost_ms", "decided"),
    [(0, 40), (100, 40), (250, 16), (1000, 4)],
    ids=["nothing", "as much as there is", "2.5 windows' share", "10 windows' share"],
)
def test_decisions_take_their_share_and_no_more(cost_ms: int, decided: int):
    clock = ManualClock()
    budget = CpuBudget(0.1, clock)
    count = 0
    for _ in range(40):
        clock.now_s += 1
        budget.begin(is_asked=False)
        if budget.allows:
            count += 1
            with budget.charged():
                clock.cpu_ns += cost_ms * 1_000_000
        budget.end()
    # The first one has no price yet.
    assert decided <= count <= decided + 1


def test_what_was_asked_for_is_decided_and_paid_for_later():
    clock = ManualClock()
    budget = CpuBudget(0.1, clock)
    allowed = []
    for asked in (True, True, False, False, False):
        clock.now_s += 1
        budget.begin(is_asked=asked)
        allowed.append(budget.allows)
        with budget.charged():
            clock.cpu_ns += 100_000_000 if budget.allows else 0
        budget.end()
        clock.cpu_ns += 1
    assert allowed[:2] == [True, True]
    budget.begin(is_asked=False)
    assert "takes 100 ms of CPU: one in 1.0 s" in budget.note


def test_what_is_done_now_and_then_is_paid_for_but_raises_no_price():
    clock = ManualClock()
    budget = CpuBudget(0.1, clock)
    decided_at = []
    for second in range(1, 41):
        clock.now_s += 1
        budget.begin(is_asked=False)
        if budget.allows:
            decided_at.append(second)
            with budget.charged():
                clock.cpu_ns += 100_000_000
            if second == 10:
                with budget.charged_extra():
                    clock.cpu_ns += 1_000_000_000
        budget.end()
    # A tenth of a CPU: ten seconds for what was extra, and after them a decision a second as before.
    assert decided_at == [*range(1, 11), *range(21, 41)]


class CostlyPlans(HostClock):
    """Each plan takes 100 s of CPU; time passes as it does, which earns none of the tests' agents so much."""

    def __init__(self) -> None:
        self.cpu_ns = 0

    def thread_cpu_ns(self) -> int:
        return self.cpu_ns

    def plan(self, snapshot: Snapshot) -> PlacementPlan:
        self.cpu_ns += 100 * 10**9
        return home.plan(snapshot)


def test_status_says_that_the_budget_bites_and_guests_are_placed_all_the_same():
    clock = CostlyPlans()
    world = World([guest("db1")], policy=clock.plan)
    agent = world.agent(clock=clock, decisions=DecisionsSection(share=0.05))
    agent.run(windows=6)
    assert agent.status.windows == 6 and world.applied == ["db1"]
    assert any("keeps within 5% of a CPU" in note for note in agent.status.notes)
    assert set(agent.status.guests) == {"db1"}


def test_an_order_to_apply_is_never_left_to_the_budget():
    clock = CostlyPlans()
    world, rule = World([guest("db1")], policy=clock.plan), GuestRule("*", GuestSettings(Mode.ADVISE))
    agent = world.agent(rule, clock=clock, decisions=DecisionsSection(share=0.01))
    agent.run(windows=2)
    order = Order("apply", "db1")
    agent.inbox.submit(order)
    agent.run(windows=4)
    assert world.applied == ["db1"] and "moved_bytes" in order.answer.result(0)[0]
