"""Kernel balancing and vmplace work at the same time only where they cannot undo each other's moves."""

import time
from dataclasses import replace
from itertools import cycle

import pytest

from tests.unit.agent.agent_world import World, guest
from vmplace.agent.config import GuestRule
from vmplace.agent.idle_backoff import LONGEST_DEAR_MS, IdleBackoff
from vmplace.agent.orders import Order
from vmplace.policy.plan import GuestSettings, Mode, PlacementPlan
from vmplace.sampling.sample import SourceCoverage
from vmplace.topology.guest import GuestTopology, Vcpu

WIDE = replace(guest("wide"), vcpus=(Vcpu(0, 1, (0,)), Vcpu(1, 2, (2,))))


def cells(*cpus: tuple[int, ...]) -> GuestTopology:
    """Return a guest whose vNUMA cells have one vCPU each, with those CPUs."""
    vcpus = tuple(Vcpu(i, 1 + i, cpu, i) for i, cpu in enumerate(cpus))
    (ram,) = guest("cells").ram
    parts = tuple(replace(ram, hva=ram.hva + i * ram.size_bytes, cell=i) for i in range(len(cpus)))
    return replace(guest("cells"), vcpus=vcpus, ram=parts)


@pytest.mark.parametrize(
    ("spans", "sees_nodes", "said", "settings", "taken"),
    [
        (True, False, "auto", GuestSettings(), False),
        (False, False, "auto", GuestSettings(), True),
        (True, True, "auto", GuestSettings(), True),
        (True, False, "take", GuestSettings(), True),
        # The kernel would carry its memory out of the nodes that are allowed.
        (True, False, "auto", GuestSettings(allowed_nids=(0,)), True),
        (True, False, "auto", GuestSettings(preferred_nids=(0,)), True),
        (True, False, "auto", GuestSettings(moves=False, interleaves=False), True),
        (True, False, "auto", GuestSettings(place_vcpus=True), True),
        (True, False, "auto", GuestSettings(Mode.ADVISE), False),
    ],
)
def test_kernel_balancing_stays_at_work_where_it_alone_places_a_guest(
    spans: bool, sees_nodes: bool, said: str, settings: GuestSettings, taken: bool
):
    wide = replace(guest("wide"), vcpus=(Vcpu(0, 1, (0,)), Vcpu(1, 2, (2 if spans else 1,))))
    world = World([wide], coverage=SourceCoverage(accessor_nid=sees_nodes))
    agent = world.agent(GuestRule("*", settings), numa_balancing=said)
    agent.run(windows=2)
    assert world.owned[-1] == taken
    left = [note for note in agent.status.notes if "numa_balancing stays" in note]
    assert bool(left) == (not taken and settings.mode is Mode.AUTO)


@pytest.mark.parametrize(
    ("others", "taken"),
    [
        ([], False),
        # Cells that span nodes say no more than the guest does; one that has a node is moved there.
        ([cells((0, 2), (1, 3))], False),
        ([cells((0,), (2,))], True),
        ([cells((2,), (1, 2))], True),
        # Its memory goes to the one node of its vCPUs, whoever moves it.
        ([guest("small")], False),
        ([guest("small"), cells((0,), (2,))], True),
    ],
)
def test_kernel_balancing_is_off_while_vmplace_moves_what_the_kernel_would_move_back(
    others: list[GuestTopology], taken: bool
):
    world = World([WIDE, *others])
    together: list[bool] = []
    carry_out = world.apply

    def apply(plan, guests, is_stopping):
        together.extend(name != "small" for name in plan_guests(plan) if not world.owning)
        return carry_out(plan, guests, is_stopping)

    world.apply = apply  # type: ignore[method-assign]
    world.agent().run(windows=3)
    assert set(world.owned) == {taken} and not any(together)
    assert set(world.applied) == {one.name for one in others if one.name == "small" or taken}


def plan_guests(plan: PlacementPlan) -> set[str]:
    return {move.guest for move in plan.moves}


def test_kernel_balancing_leaves_a_held_guest_where_an_undo_put_it():
    world = World([WIDE])
    agent = world.agent()
    agent.run(windows=1)
    assert world.owned == [False]
    order = Order("undo", "wide")
    agent.inbox.submit(order)
    agent.run(windows=3)
    assert order.answer.result(0) == ("undone",) and world.owned[-1]


def test_kernel_balancing_is_off_in_the_window_of_an_order():
    world = World([WIDE, guest("asked")])
    agent = world.agent(GuestRule("asked", GuestSettings(Mode.ADVISE)))
    agent.run(windows=1)
    assert world.owned == [False]
    agent.inbox.submit(Order("apply", "asked"))
    owned_as_it_moved: list[bool] = []
    carry_out = world.apply

    def apply(plan, guests, is_stopping):
        owned_as_it_moved.append(world.owning)
        return carry_out(plan, guests, is_stopping)

    world.apply = apply  # type: ignore[method-assign]
    agent.run(windows=3)
    assert world.applied == ["asked"] and owned_as_it_moved == [True]


class Restless:
    """Costs that double and halve: a guest that does something else all the time."""

    name = "restless"

    def __init__(self) -> None:
        self._costs = cycle([1.0, 2.0])

    def cost(self, guest: GuestTopology) -> float | None:
        return next(self._costs)

    def forget(self, guest: GuestTopology) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(("one", "is_whole"), [(WIDE, True), (guest("small"), False)])
def test_a_guest_that_the_kernel_places_ends_no_rest_whatever_it_does(one: GuestTopology, is_whole: bool):
    agent = World([one], counters=Restless()).agent()
    agent.run(windows=1)
    began = time.monotonic()
    agent.waits.rest(1.0, until_asked=True)
    assert (time.monotonic() - began >= 1.0) == is_whole


@pytest.mark.parametrize(("one", "rest_ms"), [(WIDE, LONGEST_DEAR_MS), (guest("small"), 40)])
def test_rests_are_long_while_the_kernel_places_a_guest(one: GuestTopology, rest_ms: int):
    world = World([one], nid_of={"small": 1})
    agent = world.agent()
    agent.state.backoff = IdleBackoff(20, None)
    agent.waits.rest = lambda seconds, *, until_asked: None  # type: ignore[method-assign]
    agent.run(windows=4)
    assert agent.status.rest_ms == rest_ms
