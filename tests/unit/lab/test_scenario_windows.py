"""When is a window sound, and when is the machine too slow?  Rules on made-up counts."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from lab import scenario_speed
from lab.errors import LabError, TooSlowError
from lab.machine_share import MachineTimes, machine_share, read_machine_times
from lab.scenario import read_scenario
from lab.scenario_cost import Spell, cost_of
from lab.scenario_meter import (
    FULL_SPEED,
    NODE_CACHE_LINES,
    MeteredWindow,
    WindowSet,
    caches_are_full,
    late_guests,
    too_slow,
)
from lab.scenario_speed import WorkClock, declared_rates, measured_speed, speed_of
from tests.unit.lab.test_counted import reading
from tests.unit.lab.test_counters_meter import Region
from vmplace.model.metrics import TrafficMatrix

RATES = {1: 1000.0, 2: 500.0}


def made(first: int, second: int):
    counted = reading((0, 1), (0, 1))
    counted.work[1, 0], counted.work[2, 1] = first, second
    return counted


def window(lar: float = 0.5, work: int = 100, kernel: float = 0.0) -> MeteredWindow:
    """Return a window of guest 1, whose programs access ``100 * lar`` lines locally and the rest remotely."""
    programs = TrafficMatrix((0, 1), np.array([[100 * lar, 100 - 100 * lar], [0.0, 0.0]]))
    traffic = TrafficMatrix((0, 1), programs.accesses + kernel)
    return MeteredWindow(1.0, {1: traffic}, (0, 1), {1: work}, {}, programs={1: programs})


@pytest.mark.parametrize(("second", "late"), [(800, ()), (799, (2,))])
def test_a_guest_with_less_than_four_fifths_of_its_touches_makes_a_window_void(
    second: int, late: tuple[int, ...]
):
    assert late_guests(made(4000, second), 2.0, RATES) == late


def test_caches_are_full_where_guests_work():
    counted = made(1, 0)
    counted.reads[1, 0, 1] = NODE_CACHE_LINES
    assert caches_are_full(counted)
    counted.work[2, 1] = 1
    assert not caches_are_full(counted)
    # What other guests and the host fetch fills the node's caches as well.
    counted.reads[0, 1, 0] = NODE_CACHE_LINES
    assert caches_are_full(counted)


def test_slow_guests_are_the_machines_doing():
    error = too_slow(made(100, 50), 1.0, RATES, (1, 2))
    assert isinstance(error, TooSlowError) and "guest 1 made 10%" in str(error)


def test_a_guest_that_does_nothing_while_others_work_fell_silent():
    error = too_slow(made(1000, 0), 1.0, RATES, (2,))
    assert type(error) is LabError and "guest 2 fell silent" in str(error)


def test_where_no_guest_does_anything_the_machine_stands_still():
    assert isinstance(too_slow(made(0, 0), 1.0, RATES, (1, 2)), TooSlowError)


def test_what_the_guests_kernel_accesses_is_not_judged():
    assert window(lar=0.9, kernel=1000.0).lar(1) == 0.9


def test_a_starved_guest_weighs_what_it_declares():
    starved = window(work=10)
    assert starved.total_of_work({1: 100.0}).accesses.sum() == pytest.approx(1000.0)
    assert starved.total.accesses.sum() == pytest.approx(100.0)


def test_lines_per_touch_are_those_of_programs():
    assert window(work=50, kernel=7.0).lines_per_touch(1) == 2.0
    assert window(work=0).lines_per_touch(1) is None


def test_figures_are_medians_and_their_spread_is_reported():
    windows = WindowSet((window(0.9), window(0.1), window(0.8)))
    assert windows.median(lambda one: one.lar(1)) == 0.8
    assert windows.spread(lambda one: one.lar(1)) == pytest.approx(0.8)


def test_a_figure_that_one_window_lacks_is_unknown():
    idle = replace(window(), work={1: 0})
    assert WindowSet((window(), idle)).median(lambda one: one.lines_per_touch(1)) is None


def test_guests_get_half_of_what_the_slowest_of_them_can_do():
    assert speed_of({1: 1200.0, 2: 10_000.0}, RATES) == pytest.approx(0.6)
    assert speed_of({1: 9000.0, 2: 9000.0}, RATES) == 1.0


class WorkingHost:
    """An emulated host whose guests 1 and 2 make so many touches in each second that somebody sleeps."""

    def __init__(self, path: Path, touches_per_s: tuple[int, int]) -> None:
        self.region, self.shared_memory, self.emulator_pid = Region(path), path, 1
        self.touches_per_s, self.now_s = touches_per_s, 0.0

    def run(self, _command: object) -> None:
        pass

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for guest, touches in enumerate(self.touches_per_s, start=1):
            self.region.cpus["guests"]["work"][0, guest] = touches * self.now_s


def test_a_speed_that_was_measured_can_be_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    host = WorkingHost(tmp_path / "shared", (1600, 10_000))
    monkeypatch.setattr(
        scenario_speed, "time", SimpleNamespace(sleep=host.sleep, monotonic=lambda: host.now_s)
    )
    reported: list[float] = []
    speed = measured_speed(host, RATES, reported.append)  # type: ignore[arg-type]
    assert msgspec.json.decode(msgspec.json.encode(speed)) == pytest.approx(0.8)
    assert reported == [FULL_SPEED, speed]


def test_guests_work_for_as_long_as_the_slowest_of_them(tmp_path: Path):
    host = WorkingHost(tmp_path / "shared", (500, 500))
    host.sleep(3.0)
    clock = WorkClock(host, RATES)  # type: ignore[arg-type]
    host.sleep(4.0)
    assert clock.passed_s() == pytest.approx(2.0)
    assert WorkClock(host, {}).passed_s() is None  # type: ignore[arg-type]


def test_a_machine_on_which_guests_do_next_to_nothing_is_too_slow():
    with pytest.raises(TooSlowError):
        speed_of({1: 350.0, 2: 9000.0}, RATES)


def test_declared_rates_are_those_of_all_vcpus():
    rates = declared_rates(read_scenario("restart"))
    assert rates == {1: 16_000.0, 2: 16_000.0, 3: 32_000.0, 4: 32_000.0}


def test_phases_of_one_rate_declare_it():
    assert declared_rates(read_scenario("consolidated"))[4] == 8000.0


@pytest.mark.parametrize("name", ["busy", "stress-ng"])
def test_guests_as_fast_as_they_can_be_declare_nothing(name: str):
    assert declared_rates(read_scenario(name)) == {}


def test_a_managers_cost_is_work_lost_per_cpu_second_of_the_emulator():
    # The machine gave the second turns half the time, which is not the manager's doing.
    running, stopped = (
        [Spell({1: 9.0}, 2.0), Spell({1: 4.5}, 1.0)],
        [Spell({1: 10.0}, 2.0), Spell({1: 5.0}, 1.0)],
    )
    assert cost_of(running, stopped) == pytest.approx(0.1)
    assert cost_of([Spell({1: 0.0}, 1.0)], [Spell({1: 0.0}, 1.0)]) is None


def test_what_others_use_of_the_machine_is_not_there_for_the_emulated_host(tmp_path: Path):
    (tmp_path / "42").mkdir()
    (tmp_path / "stat").write_text("cpu  1000 200 300 400 100 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    (tmp_path / "42/stat").write_text(f"42 (qemu) S {'0 ' * 10}400 100 {'0 ' * 30}\n")
    assert read_machine_times(42, tmp_path) == MachineTimes(all_s=20.0, used_s=15.0, own_s=5.0)
    before = MachineTimes(0.0, 0.0, 0.0)
    assert machine_share(before, MachineTimes(20.0, 15.0, 5.0)) == 0.5
    assert machine_share(before, MachineTimes(20.0, 5.0, 5.0)) == 1.0
    assert machine_share(before, before) == 1.0
    # One tick, all of it others': too short to tell.
    assert machine_share(before, MachineTimes(0.01, 0.01, 0.0)) == 1.0
