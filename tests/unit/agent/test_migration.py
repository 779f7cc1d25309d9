"""What the agent does to a guest that migrates: it lets go before the first round, and takes it up again."""

import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import pytest

from tests.unit.agent.agent_world import World, guest
from tests.unit.agent.test_loop import Running
from vmplace.agent.loop import Agent
from vmplace.agent.news import News
from vmplace.agent.orders import Order
from vmplace.agent.roster import MIGRATING_S
from vmplace.sampling.sample import SampleBatch
from vmplace.topology.guest import GuestTopology, Identity

UUID = "8f1d3c52-0000-0000-0000-000000000001"
LET_GO = ["source db1", "actuator db1"]


@dataclass
class MigratingWorld(World):
    """A world that calls ``armed_last`` once all are armed, or whose source cannot let go."""

    armed_last: Callable[[], None] = lambda: None
    cannot_forget: bool = False
    undoing: Callable[[], None] = lambda: None
    let_go_in_undo: list[str] = field(default_factory=list)
    harvested: list[str] = field(default_factory=list)

    def arm(self, guest: GuestTopology) -> None:
        super().arm(guest)
        if guest.name == self.running[-1].name:
            self.armed_last()

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        self.harvested.append(guest.name)
        return super().harvest(guest)

    def undo(
        self,
        guest: GuestTopology | None,
        is_stopping: Callable[[], bool],
        held: Collection[Identity] = (),
    ) -> tuple[str, ...]:
        self.undoing()
        # Asked before each call of the kernel, for minutes.
        assert not is_stopping()
        self.let_go_in_undo += self.let_go
        return super().undo(guest, is_stopping, held)

    def forget(self, guest: GuestTopology) -> None:
        if self.cannot_forget:
            raise OSError(5, "Input/output error")
        super().forget(guest)


def world_of(*names: str) -> World:
    return World([replace(guest(name), uuid=UUID) if name == "db1" else guest(name) for name in names])


def rested_s(agent: Agent, seconds: float) -> float:
    """Return how long the agent's rest of so many seconds lasted."""
    started = time.monotonic()
    agent.waits.rest(seconds, until_asked=True)
    return time.monotonic() - started


def until(is_so: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(0.002)
    return bool(is_so())


def test_roots_and_copies_come_off_in_the_middle_of_a_window():
    world = world_of("db1", "web")
    # No window of this length will end within the test, so there is no status to wait for.
    running = Running(world, window_ms=3_600_000)
    running.thread.start()
    with contextlib.ExitStack() as stack:
        stack.push(running.__exit__)
        assert until(lambda: {"db1", "web"} <= set(world.armed))
        running.agent.inbox.tell(News("event-migrating", "db1", UUID))
        assert until(lambda: len(world.let_go) == 2)
    assert world.let_go == LET_GO and running.agent.status.windows == 0


def test_roots_and_copies_come_off_in_the_middle_of_a_rest():
    world = world_of("db1")
    agent = world.agent()
    agent.run(windows=1)
    agent.inbox.tell(News("event-migrating", "db1", UUID))
    agent.waits.rest(3600, until_asked=True)
    assert world.let_go == LET_GO


def test_roots_and_copies_come_off_in_the_middle_of_an_undo():
    world = MigratingWorld(world_of("db1", "web").running)
    agent = world.agent()
    agent.run(windows=1)
    world.undoing = lambda: agent.inbox.tell(News("event-migrating", "db1", UUID))
    order = Order("undo", "web")
    agent.inbox.submit(order)
    agent.state.commands.serve()
    assert order.answer.result(0) == ("undone",)
    assert world.let_go_in_undo == LET_GO


def test_further_rounds_end_no_rest_and_ask_libvirt_nothing():
    world = world_of("db1")
    agent = world.agent()
    agent.run(windows=1)
    agent.inbox.tell(News("event-migrating", "db1", UUID))
    world.migrating = frozenset({UUID})
    agent.run(windows=2)
    asked = world.asked
    for _ in range(5):
        agent.inbox.tell(News("event-migrating", "db1", UUID))
    assert rested_s(agent, 0.5) >= 0.5
    assert world.asked == asked and not agent.inbox.has_news
    assert world.let_go == LET_GO


@pytest.mark.parametrize("operation", ["prepare", "start", "started"])
def test_steps_of_a_guest_that_arrives_end_no_rest_and_ask_libvirt_nothing(operation: str):
    """Its memory is on its way, or it stands still: a look at it then would take CPU from that."""
    world = world_of("web")
    agent = world.agent()
    agent.run(windows=1)
    agent.inbox.tell(News("migrate", "db1", UUID))
    agent.run(windows=2)
    asked = world.asked
    agent.inbox.tell(News(operation, "db1", UUID))
    assert rested_s(agent, 0.2) >= 0.2
    agent.run(windows=3)
    assert world.asked == asked
    agent.inbox.tell(News("event-state", "db1", UUID))
    assert rested_s(agent, 60) < 60
    agent.run(windows=4)
    assert world.asked > asked


@pytest.mark.parametrize("operation", ["prepare", "start", "started"])
def test_a_guest_that_starts_here_ends_a_rest(operation: str):
    agent = world_of("web").agent()
    agent.run(windows=1)
    agent.inbox.tell(News(operation, "db1", UUID))
    assert rested_s(agent, 60) < 60


@pytest.mark.parametrize(("after_s", "is_heard"), [(MIGRATING_S - 1, False), (MIGRATING_S + 1, True)])
def test_a_start_long_after_an_arrival_that_failed_is_heard(after_s: float, is_heard: bool):
    roster = world_of("web").agent().state.roster
    roster.follow_news(News("migrate", "db1", UUID), 100.0)
    assert roster.is_under_way(News("start", "db1", UUID), 100.0 + after_s) != is_heard


def test_a_guest_that_migrates_is_neither_armed_nor_harvested():
    world = world_of("db1", "web")
    agent = world.agent()
    agent.run(windows=1)
    world.armed.clear()
    world.migrating = frozenset({UUID})
    agent.run(windows=3)
    # No hook came: libvirt's answer is enough.
    assert world.let_go == LET_GO
    assert set(world.armed) == {"web"}
    assert agent.status.guests["db1"].state == "migrating"


def test_a_migration_that_is_reported_in_a_window_ends_that_guests_window_alone():
    world = MigratingWorld(world_of("db1", "web").running)
    agent = world.agent(window_ms=200)
    world.armed_last = lambda: agent.inbox.tell(News("event-migrating", "db1", UUID))
    agent.run(windows=1)
    assert world.harvested == ["web"]
    assert [one.problem for one in agent.roster] == [None, None]


def test_roots_come_back_after_a_migration_that_failed():
    world = world_of("db1")
    agent = world.agent()
    agent.run(windows=1)
    agent.inbox.tell(News("event-migrating", "db1", UUID))
    world.migrating = frozenset({UUID})
    agent.run(windows=2)
    world.armed.clear()
    world.migrating = frozenset()
    agent.inbox.tell(News("event-state", "db1", UUID))
    agent.run(windows=3)
    assert world.armed == ["db1"]
    # And the next one finds it again.
    agent.inbox.tell(News("event-migrating", "db1", UUID))
    agent.run(windows=4)
    assert world.let_go == LET_GO * 2


def test_a_guest_that_cannot_be_let_go_is_noted_and_left_alone_all_the_same():
    world = MigratingWorld(world_of("db1", "web").running)
    agent = world.agent()
    agent.run(windows=1)
    world.cannot_forget = True
    world.migrating = frozenset({UUID})
    agent.run(windows=2)
    assert any("db1 is not let go" in note for note in agent.status.notes)
    assert world.let_go == ["actuator db1"] and world.applied.count("db1") == 1
    # It is tried again until it worked, and no more then.
    world.cannot_forget = False
    world.let_go.clear()
    agent.run(windows=4)
    assert world.let_go == LET_GO
    assert not any("db1 is not let go" in note for note in agent.status.notes)
