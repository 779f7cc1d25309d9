"""What the meter counts of a guest in place of a PMU, on a region made here."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab import meter_cost
from lab.counters_meter import MeterCounters
from lab.meter_cost import MeterCost
from tests.unit.agent.agent_world import guest as guest_of
from tests.unit.lab.test_counters_meter import Region
from vmplace.topology.guest import Vcpu

NUMBER = 2


class Clock:
    """Goes on when it is asked to."""

    def __init__(self) -> None:
        self.now_s = 1.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(meter_cost, "time", clock)
    return clock


@pytest.fixture
def region(tmp_path: Path) -> Region:
    return Region(tmp_path / "shared")


@pytest.fixture
def speed(region: Region, monkeypatch: pytest.MonkeyPatch) -> MeterCost:
    monkeypatch.setattr(meter_cost, "MeterCounters", lambda: MeterCounters(region.path))
    return MeterCost({"vm": NUMBER})


def counted(region: Region, cpu: int, *, lines: int = 0, work: int = 0) -> None:
    region.cpus["guests"]["dram"]["reads"][cpu, NUMBER, 1] += lines // 2
    region.cpus["guests"]["dram"]["writes"][cpu, NUMBER, 0] += lines - lines // 2
    region.cpus["guests"]["work"][cpu, NUMBER] += work


def test_while_the_meter_is_off_touches_are_accesses(region: Region, speed: MeterCost, clock: Clock) -> None:
    guest = guest_of("vm")
    assert speed.cost(guest) is None and speed.rate(guest) is None
    counted(region, 0, work=3000)
    counted(region, 1, work=1000)
    clock.now_s += 0.5
    # It keeps no time: what an instruction takes is not known.
    assert speed.cost(guest) is None
    rate = speed.rate(guest)
    assert rate is not None and rate.dram_per_us == pytest.approx(4000 / 0.5e6) and rate.cpus is None
    assert rate.lar is None


def test_while_it_is_on_lines_are(region: Region, speed: MeterCost, clock: Clock) -> None:
    guest = guest_of("vm")
    region.header["enabled"] = 1
    speed.cost(guest)
    counted(region, 0, lines=9000, work=500)
    clock.now_s += 1.0
    speed.cost(guest)
    rate = speed.rate(guest)
    assert rate is not None and rate.dram_per_us == pytest.approx(9000e-6)
    # CPU 0 is of node 0, which served half of its lines.
    assert rate.lar == 0.5


def test_a_guest_that_says_nothing_has_no_rate_rather_than_none_at_all(
    region: Region, speed: MeterCost, clock: Clock
) -> None:
    guest = guest_of("vm")
    speed.cost(guest)
    clock.now_s += 1.0
    speed.cost(guest)
    rate = speed.rate(guest)
    assert rate is not None and rate.dram_per_us is None


def test_accesses_are_split_by_cpus_as_far_as_events_of_threads_could(
    region: Region, speed: MeterCost, clock: Clock
) -> None:
    apart = replace(guest_of("vm"), vcpus=(Vcpu(0, 7, (0,)), Vcpu(1, 8, (1,))))
    floats = replace(apart, vcpus=(Vcpu(0, 7, (0, 1)), Vcpu(1, 8, (1,))))
    for guest, by_cpus in ((apart, [((0,), 1, 0.003), ((1,), 1, 0.001)]), (floats, [])):
        speed.forget(guest)
        speed.cost(guest)
        counted(region, 0, work=3000)
        counted(region, 1, work=1000)
        clock.now_s += 1.0
        speed.cost(guest)
        rate = speed.rate(guest)
        assert rate is not None and list(rate.by_cpus) == by_cpus
