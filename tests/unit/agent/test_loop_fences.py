"""Whatever goes wrong on a guest's or the host's behalf is a note; the loop goes on for the others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.agent_world import ClockOfFreeDecisions, World, guest
from vmplace.actuation.journal import Journal
from vmplace.actuation.pinner import Pinner, pin_all
from vmplace.agent import report
from vmplace.agent.config import LoadedConfig
from vmplace.agent.config_sections import Config
from vmplace.agent.loop import Agent
from vmplace.agent.orders import Order
from vmplace.agent.parts import Parts
from vmplace.agent.wakeup import Wakeup
from vmplace.interfaces.agent_command import run_agent
from vmplace.interfaces.control import ControlServer
from vmplace.policy import home
from vmplace.policy.plan import PlacementPlan, Snapshot, VcpuMove
from vmplace.topology.guest import GuestTopology

WRONG = [ValueError("bad data"), MemoryError(), RecursionError("deep"), OSError(24, "too many open files")]


class Failing(World):
    """A world in which calls of one name, ``broken``, fail."""

    broken: str = ""
    error: Exception = ValueError()

    def __getattribute__(self, name: str) -> Any:
        if name != object.__getattribute__(self, "broken"):
            return object.__getattribute__(self, name)

        def fail(*_: object) -> None:
            raise object.__getattribute__(self, "error")

        return fail


@pytest.mark.parametrize("error", WRONG, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("call", ["host", "guests", "own", "apply", "copies"])
def test_a_part_that_fails_is_a_note_and_the_loop_goes_on(call: str, error: Exception):
    world = Failing([guest("db1"), guest("web")])
    agent = world.agent()
    agent.run(windows=1)
    # Their memory is away again, so that there is something to move.
    world.nid_of.clear()
    world.broken, world.error = call, error
    agent.run(windows=3)
    assert agent.status.windows == 3
    assert set(agent.status.guests) == {"db1", "web"}
    reported = str(error) or type(error).__name__
    assert any(reported in note for note in agent.status.notes)


def test_a_guest_that_cannot_be_asked_whether_it_holds_up_ends_no_loop():
    class Planned(World):
        """Once there is a plan, guests cannot be asked."""

        is_planned = False

        def holds(self, guest: GuestTopology) -> bool:
            if self.is_planned:
                self.is_planned = False
                raise RuntimeError("can't start new thread")
            return False

    def planned(snapshot: Snapshot) -> PlacementPlan:
        world.is_planned = True
        return home.plan(snapshot)

    world = Planned([guest("db1")])
    parts = Parts(world, world, planned, "auto", world, holds=world.holds, clock=ClockOfFreeDecisions())
    agent = Agent(LoadedConfig(Config(window_ms=20, longest_rest_ms=0), ()), parts, world.wakeup)
    agent.run(windows=1)
    assert world.applied == [] and any("can't start" in note for note in agent.status.notes)
    agent.run(windows=2)


def test_a_guest_that_fails_again_and_again_is_logged_once_and_reported_always(
    caplog: pytest.LogCaptureFixture,
):
    world = World([guest("bad"), guest("good")])
    world.harvest_errors["bad"] = ValueError("bad data")
    agent = world.agent()
    for windows in range(1, 6):
        agent.run(windows=windows)
        assert "bad data" in str(agent.status.guests["bad"].problem)
    assert caplog.text.count('reason="ValueError: bad data"') == 1
    world.harvest_errors.clear()
    agent.run(windows=6)
    assert agent.status.guests["bad"].problem is None


def test_a_later_step_that_works_does_not_hide_an_earlier_one_that_failed():
    agent = World([guest("db1")]).agent()
    agent.run(windows=1)
    (tracked,) = agent.roster

    def fails(_: GuestTopology) -> None:
        raise OSError(5, "input/output error")

    assert not agent.roster.tried(tracked, fails)
    assert agent.roster.tried(tracked, lambda _: None)
    assert "input/output error" in str(tracked.problem)


def test_a_part_that_cannot_forget_a_guest_stops_nobody():
    class Unforgetting(World):
        def forget(self, guest: GuestTopology) -> None:
            raise KeyError(guest.name)

    world = Unforgetting([guest("db1"), guest("web")])
    agent = world.agent()
    agent.run(windows=1)
    world.running.pop(0)
    agent.run(windows=3)
    assert agent.status.windows == 3 and set(agent.status.guests) == {"web"}


def test_a_guest_whose_figures_cannot_be_shown_hides_nobody_elses(monkeypatch: pytest.MonkeyPatch):
    count = report.bytes_by_movability

    def counted(one: GuestTopology) -> dict[str, int]:
        if one.name == "bad":
            raise ZeroDivisionError("page size 0")
        return count(one)

    monkeypatch.setattr(report, "bytes_by_movability", counted)
    agent = World([guest("bad"), guest("good")]).agent()
    agent.run(windows=2)
    assert agent.status.guests["good"].estimated_lar == 1.0
    assert agent.roster.get("bad").problem == "ZeroDivisionError: page size 0"  # type: ignore[union-attr]


def test_an_order_that_fails_is_reported_to_who_gave_it_and_ends_nothing():
    class Broken(World):
        def undo(self, guest: GuestTopology | None, *_: object) -> tuple[str, ...]:
            raise IndexError("cut journal")

    agent = Broken([guest("db1")]).agent()
    order = Order("undo")
    agent.inbox.submit(order)
    agent.run(windows=1)
    assert isinstance(order.answer.exception(0), IndexError)


def test_a_guest_whose_vcpus_cannot_be_pinned_stops_no_other(tmp_path: Path):
    class Odd(Pinner):
        def pin_together(self, guest: GuestTopology, *_: object, **__: object) -> bool:
            if guest.name == "bad":
                raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte")
            return True

    moves = [VcpuMove(name, {0: (0,)}, (0,), 0, "test") for name in ("bad", "good")]
    guests: Mapping[str, GuestTopology] = {name: guest(name) for name in ("bad", "good")}
    with Journal(tmp_path / "journal") as journal:
        outcome = pin_all(Odd(journal), moves, guests)
    assert outcome.refused == {"bad"} and [move.guest for move in outcome.pinned] == ["good"]


@pytest.mark.usefixtures("own_process")
def test_a_thread_that_dies_ends_the_agent_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def dies(_self: ControlServer, _longest_s: float = 60.0) -> None:
        raise ZeroDivisionError("in the thread")

    monkeypatch.setattr(ControlServer, "_turn", dies)
    monkeypatch.setattr(Wakeup, "stop_on_signals", lambda *_: None)
    world = World([guest("db1")])
    config = Config(
        state_dir=str(tmp_path), socket=str(tmp_path / "run/control.sock"), numa_balancing="leave"
    )
    parts = Parts(world, world, home.plan, "auto", world, clock=ClockOfFreeDecisions())
    with pytest.raises(Exception, match="thread control died: ZeroDivisionError: in the thread"):
        run_agent(LoadedConfig(config), lambda *_: parts)
