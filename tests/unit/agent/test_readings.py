"""When bits are read before a window ends, and what that may cost; by a clock that the test moves."""

from dataclasses import dataclass, field

import pytest

from tests.unit.agent.agent_world import World, guest
from vmplace.agent.config import GuestRule, LoadedConfig
from vmplace.agent.config_sections import Config, ReadingsSection
from vmplace.agent.loop import Agent
from vmplace.agent.parts import Parts
from vmplace.agent.readings import Readings
from vmplace.agent.roster import Roster
from vmplace.agent.tracked_guest import TrackedGuest
from vmplace.errors import GuestGoneError
from vmplace.policy.plan import GuestSettings, Mode, PlacementPlan
from vmplace.topology.guest import GuestTopology, Vcpu

WINDOW_MS = 1000


@dataclass
class Reader:
    """A source whose readings take ``cost_ms`` of CPU, and the clock."""

    cost_ms: dict[str, int] = field(default_factory=dict)
    now_s: float = 100.0
    cpu_ms: int = 0
    read: list[tuple[str, int]] = field(default_factory=list)
    armed_s: float = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def cpu_s(self) -> float:
        return self.cpu_ms / 1000

    def thread_cpu_ns(self) -> int:
        return self.cpu_ms * 10**6

    def read_early(self, guest: GuestTopology) -> None:
        if guest.name == "gone":
            raise GuestGoneError("ended")
        self.cpu_ms += self.cost_ms.get(guest.name, 0)
        self.read.append((guest.name, round((self.now_s - self.armed_s) * 1000)))


@pytest.fixture
def reader() -> Reader:
    return Reader()


def a_window(reader: Reader, readings: Readings, *names: str, late_ms: int = 0) -> list[tuple[str, int]]:
    """Return which guests were read in a window, and how many ms after they were armed."""
    roster, before = Roster(LoadedConfig(Config())), len(reader.read)
    roster.update([guest(name) for name in names], (0, 1))
    reader.armed_s = reader.now_s
    for one in roster:
        readings.begin(one, guests=len(names))
    while (due := readings.next_s()) is not None:
        reader.now_s = due + late_ms / 1000
        readings.read_due(roster)
    readings.end()
    reader.now_s = reader.armed_s + WINDOW_MS / 1000
    return reader.read[before:]


def of(reader: Reader, first_ms: int = 10, share: float = 0.02) -> Readings:
    return Readings(reader, ReadingsSection(first_ms, share), WINDOW_MS, reader)


def test_bits_are_read_whenever_four_times_as_long_has_passed(reader: Reader) -> None:
    assert a_window(reader, of(reader), "db1") == [("db1", 10), ("db1", 40), ("db1", 160), ("db1", 640)]


@pytest.mark.parametrize("first_ms", [0, WINDOW_MS])
def test_a_first_reading_at_the_windows_end_or_none_is_the_harvest_alone(
    reader: Reader, first_ms: int
) -> None:
    assert a_window(reader, of(reader, first_ms), "db1") == []


def test_a_source_that_cannot_read_early_is_never_asked(reader: Reader) -> None:
    assert a_window(reader, Readings(None, ReadingsSection(), WINDOW_MS, reader), "db1") == []


def test_readings_that_come_late_are_made_once(reader: Reader) -> None:
    """200 ms late the third one is due, too."""
    assert a_window(reader, of(reader), "db1", late_ms=200) == [("db1", 210), ("db1", 840)]


@pytest.mark.parametrize(("share", "every"), [(0.02, 4), (0.04, 2), (0.5, 1)])
def test_a_large_guest_is_read_so_only_as_often_as_the_share_allows(
    reader: Reader, share: float, every: int
) -> None:
    """Four readings of 20 ms cost 80 ms: four windows' worth of 2 %."""
    reader.cost_ms["large"] = 20
    readings = of(reader, share=share)
    was_read = [bool(a_window(reader, readings, "large")) for _ in range(41)]
    assert sum(was_read[1:]) == pytest.approx(40 / every, abs=1)
    assert reader.cpu_ms <= share * 41 * WINDOW_MS + 80


def test_a_large_guest_does_not_spend_what_a_small_one_may(reader: Reader) -> None:
    reader.cost_ms = {"large": 100, "small": 1}
    readings = of(reader)
    for _ in range(10):
        assert ("small", 10) in a_window(reader, readings, "large", "small")


def test_learning_counts_too(reader: Reader) -> None:
    readings, one = of(reader), TrackedGuest(guest("db1"))
    assert a_window(reader, readings, "db1")
    with readings.charged(one):
        reader.cpu_ms += 50
    assert [bool(a_window(reader, readings, "db1")) for _ in range(4)] == [False, False, False, True]


def test_a_guest_that_ends_meanwhile_stops_nobody_else(reader: Reader) -> None:
    assert a_window(reader, of(reader), "gone", "db1")[0] == ("db1", 10)


@dataclass
class EarlyWorld(World):
    """A world whose source can read early."""

    early: list[str] = field(default_factory=list)

    def read_early(self, guest: GuestTopology) -> None:
        self.early.append(guest.name)


def wide(name: str) -> GuestTopology:
    """Return a guest that runs on both nodes."""
    one = guest(name)
    return GuestTopology(name, one.pid, 1, "kvm", (Vcpu(0, 1, (0,)), Vcpu(1, 2, (2,))), one.ram)


def read_by_the_agent(policy: str, section: ReadingsSection, *rules: GuestRule) -> set[str]:
    world = EarlyWorld([wide("wide"), wide("left"), guest("narrow")])
    parts = Parts(world, world, lambda _snapshot: PlacementPlan(), policy, world)
    config = Config(window_ms=100, longest_rest_ms=0, readings=section)
    Agent(LoadedConfig(config, rules), parts, world.wakeup).run(windows=1)
    return set(world.early)


def test_the_agent_reads_guests_early_that_run_on_several_nodes() -> None:
    manual = GuestRule("left", GuestSettings(Mode.MANUAL))
    assert read_by_the_agent("auto", ReadingsSection(1, 0.5), manual) == {"wide"}


@pytest.mark.parametrize(("policy", "first_ms"), [("interleave", 1), ("auto", 0)])
def test_nobody_is_read_early_where_that_is_off_or_tells_the_policy_nothing(
    policy: str, first_ms: int
) -> None:
    assert read_by_the_agent(policy, ReadingsSection(first_ms, 0.5)) == set()
