"""The loop undoes what made a guest slower, and leaves it alone then."""

from collections.abc import Callable

from tests.unit.agent.agent_world import World, guest
from vmplace.policy.trial import AFTER, BEFORE
from vmplace.topology.guest import GuestTopology


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


def test_a_guest_that_cannot_be_measured_is_placed_at_once_and_not_judged() -> None:
    world = world_with(None)
    agent = world.agent()
    agent.run(windows=1)
    assert world.applied == ["db1"]
    agent.run(windows=12)
    assert world.undone == []


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
