"""When are summaries of guests written and taken out, and whose are read?"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.unit.agent.agent_world import HOST, World, guest
from tests.unit.model.test_handover import a_guest, halves, handed_over, watched, window
from vmplace.agent import handovers as handovers_module
from vmplace.agent.clock import HostClock
from vmplace.agent.config import LoadedConfig
from vmplace.agent.config_sections import Config, MigrationSection
from vmplace.agent.handovers import Handovers
from vmplace.agent.loop import Agent
from vmplace.agent.parts import Parts
from vmplace.agent.tracked_guest import TrackedGuest
from vmplace.errors import UnsupportedHostError
from vmplace.model.handover import Handover, handover_of, handover_text, parse_handover
from vmplace.policy.plan import GuestSettings, Mode
from vmplace.sampling.sample import SampleBatch
from vmplace.topology.domain_policy import DomainPolicy, Word
from vmplace.topology.guest import GuestTopology
from vmplace.topology.host import HostTopology

UUID = "8f1d3c52-0000-0000-0000-000000000001"


class HandClock(HostClock):
    """A clock that a test sets forward."""

    ahead_s = 0.0

    def pass_(self, seconds: float) -> None:
        self.ahead_s += seconds

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


@dataclass
class Written:
    """Keeps what is written; only libvirt is unreal."""

    texts: list[dict[str, str]] = field(default_factory=list)
    busy: bool = False
    problem: Exception | None = None

    def is_busy(self) -> bool:
        problem, self.problem = self.problem, None
        if problem:
            raise problem
        return self.busy

    def write(self, texts: Mapping[str, str]) -> None:
        self.texts.append(dict(texts))

    def finish(self, patience_s: float) -> None:
        problem, self.problem = self.problem, None
        if problem:
            raise problem

    def close(self) -> None:
        pass


def tracked(mode: Mode = Mode.AUTO, **changes: object) -> TrackedGuest:
    topology = replace(replace(a_guest(0, 1), uuid=UUID), **changes)  # type: ignore[arg-type]
    return TrackedGuest(topology, GuestSettings(mode), watched(topology, halves(), 0, 1))


def handovers(written: Written, every_s: float = 300) -> tuple[Handovers, HandClock]:
    clock = HandClock()
    return Handovers(written, every_s, clock), clock


def test_a_summary_is_written_when_it_is_due_and_not_before():
    written = Written()
    commands, clock = handovers(written)
    one = tracked()
    commands.write_due([one], HOST)  # type: ignore[arg-type]
    assert written.texts == []
    for count in (1, 2):
        clock.pass_(301)
        commands.write_due([one], HOST)  # type: ignore[arg-type]
        commands.write_due([one], HOST)  # type: ignore[arg-type]
        assert len(written.texts) == count
    assert parse_handover(written.texts[0][UUID]).groups == ((0,), (1,))
    commands.close()
    assert written.texts[-1] == {UUID: ""}


@pytest.mark.parametrize("problem", [UnsupportedHostError("one domain is held up"), TimeoutError()])
def test_a_last_text_that_was_not_written_keeps_no_text_from_being_taken_out(problem: Exception):
    written = Written()
    commands, clock = handovers(written)
    clock.pass_(301)
    commands.write_due([tracked()], HOST)  # type: ignore[arg-type]
    written.problem = problem
    commands.close()
    assert written.texts[-1] == {UUID: ""}


def test_a_text_that_came_along_is_taken_out_too():
    written = Written()
    commands, _ = handovers(written)
    one = tracked()
    one.said = DomainPolicy(placement="of an agent that is far away")
    commands.prior(one, HOST, window(one.topology, None))
    commands.close()
    assert written.texts == [{UUID: ""}]


def test_of_a_guest_that_is_not_to_be_touched_any_more_it_is_taken_out_at_once():
    written = Written()
    commands, clock = handovers(written)
    one = tracked()
    for mode in (Mode.AUTO, Mode.MANUAL, Mode.MANUAL):
        one.settings = GuestSettings(mode)
        clock.pass_(301)
        commands.write_due([one], HOST)  # type: ignore[arg-type]
    assert len(written.texts) == 2 and written.texts[-1] == {UUID: ""}


def test_of_guests_that_left_nothing_is_remembered():
    written = Written()
    commands, clock = handovers(written)
    clock.pass_(301)
    commands.write_due([tracked()], HOST)  # type: ignore[arg-type]
    clock.pass_(301)
    commands.write_due([], HOST)  # type: ignore[arg-type]
    commands.close()
    assert len(written.texts) == 1


def test_a_guest_that_cannot_be_summed_up_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch):
    def short_of_memory(host: HostTopology, topology: GuestTopology, *words: Any, **more: Any) -> Any:
        if topology.uuid == "large":
            raise MemoryError
        return handover_of(host, topology, *words, **more)

    monkeypatch.setattr(handovers_module, "handover_of", short_of_memory)
    written = Written()
    commands, clock = handovers(written)
    large = tracked(uuid="large")
    clock.pass_(301)
    commands.write_due([large, tracked()], HOST)  # type: ignore[arg-type]
    assert set(written.texts[0]) == {UUID}
    assert large.problem


def test_each_summary_is_a_beat_to_who_watches_the_loop():
    clock, beats = HandClock(), []
    commands = Handovers(Written(), 300, clock, lambda: beats.append(1))
    clock.pass_(301)
    commands.write_due([tracked(), tracked(uuid="another")], HOST)  # type: ignore[arg-type]
    assert len(beats) == 2


@pytest.mark.parametrize(
    ("mode", "changes"),
    [(Mode.ADVISE, {}), (Mode.MANUAL, {}), (Mode.AUTO, {"origin": "kvm"}), (Mode.AUTO, {"uuid": None})],
)
def test_nothing_is_written_of_others(mode: Mode, changes: dict[str, object]):
    written = Written()
    commands, clock = handovers(written)
    clock.pass_(301)
    commands.write_due([tracked(mode, **changes)], HOST)  # type: ignore[arg-type]
    migrating = tracked()
    migrating.is_migrating = True
    clock.pass_(301)
    commands.write_due([migrating], HOST)  # type: ignore[arg-type]
    commands.close()
    assert written.texts == []


def test_where_it_is_off_or_busy_nothing_is_written():
    for every_s, busy in ((0, False), (300, True)):
        written = Written(busy=busy)
        commands, clock = handovers(written, every_s)
        clock.pass_(301)
        commands.write_due([tracked()], HOST)  # type: ignore[arg-type]
        assert written.texts == []


def test_what_the_last_host_knew_is_taken_up_and_is_the_older_the_longer_ago_it_was():
    commands, clock = handovers(Written())
    handover = replace_times(handed_over(halves(), 0, 1), int(clock.unix_s()) - 600, 400)
    one = tracked()
    one.pages, one.said = None, DomainPolicy(placement=handover_text(handover))
    pages = commands.prior(one, HOST, window(one.topology, None))
    assert pages is not None and one.known_s == pytest.approx(200, rel=0.01)
    assert one.view.known_s == one.known_s


@pytest.mark.parametrize("placement", ["", "nonsense", "AAAA"])
def test_what_is_no_summary_changes_nothing(placement: str):
    commands, _ = handovers(Written())
    one = tracked()
    one.said = DomainPolicy(placement=placement)
    assert commands.prior(one, HOST, window(one.topology, None)) is None and one.known_s == 0


def replace_times(handover: Handover, unix_s: int, known_s: int) -> Handover:
    return Handover(handover.version, unix_s, known_s, handover.groups, handover.runs)


class SeeingWorld(World):
    """A world whose source sees nodes: nobody touches anything."""

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        return window(guest, None)


def agent_of(world: World, summaries: Written) -> Agent:
    config = Config(window_ms=20, longest_rest_ms=0, migration=MigrationSection(summary_s=86_400))
    parts = Parts(world, world, world.policy, "auto", world, summaries=summaries)
    return Agent(LoadedConfig(config), parts, world.wakeup)


@pytest.mark.parametrize(("mode", "windows"), [("auto", 4), ("manual", None)])
def test_the_first_window_of_a_guest_counts_as_the_fourth_but_never_where_hands_are_off(
    mode: str, windows: int | None
):
    topology = replace(a_guest(0, 1), uuid=UUID)
    world = SeeingWorld([topology])
    now = replace_times(handed_over(halves(), 0, 1), int(time.time()), 400)
    said = DomainPolicy((Word("mode", mode, 1),), has_policy=True, placement=handover_text(now))
    world.policies = {UUID: said}
    agent = agent_of(world, Written())
    agent.run(windows=1)
    (one,) = agent.roster
    assert (one.pages.windows if one.pages else None) == windows
    assert bool(one.known_s) == (mode == "auto")


def test_a_summary_that_cannot_be_written_is_noted_and_stops_nothing():
    world = World([guest("db1")])
    agent = agent_of(world, Written(problem=UnsupportedHostError("libvirt does not answer")))
    agent.run(windows=1)
    assert any("summaries for other hosts" in note for note in agent.status.notes)
    assert world.applied == ["db1"]


def test_summaries_are_within_the_budget_of_decisions(monkeypatch: pytest.MonkeyPatch):
    agent = agent_of(World([guest("db1")]), Written())
    due, allowed = [], iter([True, False, True])
    monkeypatch.setattr(
        agent.state.decisions, "begin", lambda **_: setattr(agent.state.decisions, "allows", next(allowed))
    )
    monkeypatch.setattr(
        agent.state.handovers, "write_due", lambda *_: due.append(agent.state.decisions.allows)
    )
    agent.run(windows=3)
    assert due == [True, True]
