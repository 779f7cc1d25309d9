"""How true, how cheap and how useful are the samples of IBS?  Each figure with its control.

Guests of skewed access (ibs.toml) run in the emulated host; the truth is what the meter counts exactly: every
access by CPU and page.  Each figure is {value, control, unit}:

heat_rank_correlation    Spearman's, of the hottest tenth of a guest's 4 KiB pages, 10 s at the low rate.
                         Control: as many samples drawn from the exact counts: the ceiling.
heat_rank_correlation_2m_blocks  the same of the 2 MiB blocks of a larger guest (ibs-blocks.toml): what
                         vmplace decides by first.
..._at_1_op_per_ns       both as many samples as the low rate gives in 10 s of CPUs
                         that execute an op a nanosecond, as real ones do and emulated ones do not; taken at
                         the high rate, to be done sooner.  Control: the ceiling then.
seconds_to_0_9_at_1_op_per_ns  how long such CPUs take to 0.9 at the low rate; null: longer than was sampled.
                         Control: by samples drawn from the exact counts.
attribution_error_points the largest error of a (CPU node, memory node)'s share of all accesses.
                         Control: all CPUs taken for alike.
accesses_per_sample      what a sample stands for.  Control: the period that was asked for.
guest_slowdown_low, _high  what the host executes for samples on CPUs where guests always run, in percent of
                         the guests' instructions: the median of some spells.  What it executes without
                         samples (timer ticks) goes by time, and an emulator that samples does less in that:
                         so it is taken off by the second.  Control: how far spells without sampling differ.
emulator_speed_low, _high  guest instructions a second: what emulating IBS itself costs.  Control: without.
lar_gap_points           mean LAR of a scenario's guests (the demo's, unless others are named) that the agent
                         reaches with node roots, less that with IBS alone.  Control: less that before.
                         Of guests that write, for copies of what is only read take node roots.
imbalance_gap            the same for the MC imbalance of all guests together, that with IBS less the other's.
ring_records_per_s       samples out of a perf ring by the C core.  Control: by Python's struct.

Times are the emulated host's: a second of it holds fewer ops than one of a real host.
"""

import argparse
import statistics
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from bench.ibs_heat import rank_correlation, samples_for
from bench.ibs_ring import by_core, by_struct, records_per_s
from bench.ibs_samples import INSIDE, Ints, Samples, sampled
from bench.record import Figures, Part, add_record_options, measure
from lab.counters_meter import GUEST_HOST, MeterReading
from lab.machine import LabHost, boot_host
from lab.page_counts import PAGES, PageCounts
from lab.progress import Progress
from lab.scenario import Scenario, read_scenario
from lab.scenario_prepare import prepare_stage
from lab.scenario_result import ManagerResult
from lab.scenario_run import run_scenario
from lab.topology import cpu_nids
from vmplace.sampling.ibs_period import HIGH_RATE_PERIOD, LOW_RATE_PERIOD

HERE = Path(__file__).parent
NOT_SAMPLED = 0
PERIODS = (NOT_SAMPLED, LOW_RATE_PERIOD, HIGH_RATE_PERIOD)
ROUNDS = 6
GOAL = 0.9
SPELL_S = 10.0
LONGEST_S = 90.0
OPS_PER_S = 1e9
QUIET_S = 15.0
"""Of a guest that spans nodes it takes samples of some seconds to know anything."""
AGENT = "window_ms = 500\nlongest_rest_ms = 1000\n[budget]\nmb_per_s = 4096\n"

Figure = dict[str, float | str | None]


def figure(value: float | None, control: float | None, unit: str) -> Figure:
    """Return one figure beside its control."""
    return {"value": value, "control": control, "unit": unit}


def guest_ops(growth: MeterReading) -> float:
    """Return what the guests executed."""
    return float(growth.instructions[GUEST_HOST + 1 :].sum())


def heat(name: str, samples: Samples, size: str) -> dict[str, Figure]:
    """Return how well the samples rank the hottest pages of that size."""
    value, ceiling = rank_correlation(samples, size)
    unit = f"{size} pages; {samples.accesses} samples of loads and stores in {samples.seconds:.0f} s"
    return {name: figure(value, ceiling, unit)}


def time_to_goal(samples: Samples, vcpus: int) -> Figure:
    """Return after how many seconds CPUs that execute OPS_PER_S reach the goal at the low rate.

    The samples are of the high rate.
    """
    at_high_rate_s = guest_ops(samples.meter) / vcpus / OPS_PER_S
    each_s = at_high_rate_s * LOW_RATE_PERIOD / HIGH_RATE_PERIOD / samples.accesses
    value, control = (n and n * each_s for n in samples_for(GOAL, samples))
    return figure(value, control, "s")


def shares(counts: Ints, exact: PageCounts, nids: Ints) -> npt.NDArray[np.float64]:
    """Return the share of all accesses of each (CPU node, memory node)."""
    found = np.unique(nids)
    blocks = [[counts[nids == a][:, exact.nids == b].sum() for b in found] for a in found]
    return np.array(blocks, np.float64) / float(counts.sum())


def attribution(samples: Samples, nids: Ints) -> Figure:
    """Return the largest error of a share in points, and that of taking all CPUs for alike."""
    exact = shares(samples.exact.counts, samples.exact, nids)
    seen = shares(samples.counts, samples.exact, nids)
    alike = np.outer(np.full(len(exact), 1 / len(exact)), exact.sum(axis=0))
    error, control = (float(np.abs(one - exact).max()) * 100 for one in (seen, alike))
    return figure(error, control, f"points, of {samples.accesses} samples")


@dataclass(frozen=True)
class Spell:
    """What host and guests executed in ``seconds``, in instructions."""

    host: float
    guests: float
    seconds: float

    @property
    def host_per_s(self) -> float:
        """Return what the host executed in a second."""
        return self.host / self.seconds

    @property
    def guests_per_s(self) -> float:
        """Return what the guests executed in a second."""
        return self.guests / self.seconds

    def percent(self, base_per_s: float) -> float:
        """Return what the host did beyond its base, in percent of the guests'."""
        return (self.host - base_per_s * self.seconds) / self.guests * 100


def spell(samples: Samples, cpus: Ints) -> Spell:
    """Return what was executed on these CPUs."""
    executed = samples.meter.instructions[:, cpus]
    return Spell(float(executed[GUEST_HOST].sum()), float(executed[GUEST_HOST + 1 :].sum()), samples.seconds)


def slowdowns(host: LabHost, nids: Ints) -> dict[str, Figure]:
    """Spells without and with sampling, in turn: the machine outside changes meanwhile."""
    # Two vCPUs share the CPUs of node 0; elsewhere the sampling process itself may run.
    busy = np.flatnonzero(nids == 0)
    rounds = [{of: spell(sampled(host, of, SPELL_S), busy) for of in PERIODS} for _ in range(ROUNDS)]
    figures: dict[str, Figure] = {}
    for name, period in (("low", LOW_RATE_PERIOD), ("high", HIGH_RATE_PERIOD)):
        more = statistics.median(one[period].percent(one[NOT_SAMPLED].host_per_s) for one in rounds)
        figures[f"guest_slowdown_{name}"] = figure(more, unlikeness(rounds), "% of guest instructions")
        speed, control = (
            statistics.mean(one[of].guests_per_s for one in rounds) for of in (period, NOT_SAMPLED)
        )
        figures[f"emulator_speed_{name}"] = figure(speed, control, "guest instructions/s")
    return figures


def unlikeness(rounds: list[dict[int, Spell]]) -> float:
    """Return how far the spells without sampling differ, in percent of the guests' instructions."""
    base = statistics.mean(one[NOT_SAMPLED].host_per_s for one in rounds)
    more = [one[NOT_SAMPLED].percent(base) for one in rounds]
    return max(more) - min(more)


@contextmanager
def guests_of(scenario: Scenario) -> Iterator[LabHost]:
    """Run the scenario's guests, and count accesses by page."""
    stage = prepare_stage(scenario, Progress())
    files = stage.files | {INSIDE: HERE / "ibs_inside.py"}
    with boot_host(
        stage.topology,
        meter=True,
        plugin_args=PAGES,
        snapshot=stage.snapshot,
        files=files,
        artifacts=stage.artifacts,
    ) as host:
        host.run("sysctl -q kernel.numa_balancing=0")
        yield host


def short_and_long(host: LabHost, vcpus: int) -> tuple[Samples, Samples]:
    """Sample for SPELL_S at the low rate, then as many as CPUs of OPS_PER_S give in that time.

    Those are taken at the high rate.
    """
    short = sampled(host, LOW_RATE_PERIOD, SPELL_S)
    speed = guest_ops(short.meter) / vcpus / short.seconds * LOW_RATE_PERIOD / HIGH_RATE_PERIOD
    return short, sampled(host, HIGH_RATE_PERIOD, min(SPELL_S * OPS_PER_S / speed, LONGEST_S))


def vcpus_of(scenario: Scenario) -> int:
    """Return how many vCPUs all guests have together."""
    return sum(len(guest.nids) for guest in scenario.guests)


def of_pages() -> Iterator[Figures]:
    """Yield the figures that the meter judges, of guests in small ranges."""
    scenario = read_scenario(str(HERE / "ibs.toml"))
    vcpus = vcpus_of(scenario)
    with guests_of(scenario) as host:
        nids = np.array(cpu_nids(host.topology))
        short, long = short_and_long(host, vcpus)
        per_sample = float(long.exact.counts.sum()) / long.accesses
        unit = f"loads and stores; {short.lost + long.lost} samples lost"
        yield heat("heat_rank_correlation", short, "4 KiB")
        yield heat("heat_rank_correlation_at_1_op_per_ns", long, "4 KiB")
        yield {"seconds_to_0_9_at_1_op_per_ns": time_to_goal(long, vcpus)}
        yield {"attribution_error_points": attribution(long, nids)}
        yield {"accesses_per_sample": figure(per_sample, HIGH_RATE_PERIOD, unit)}
        yield slowdowns(host, nids)


def of_blocks() -> dict[str, Figure]:
    """Return how well the blocks of a guest in huge pages are ranked."""
    scenario = read_scenario(str(HERE / "ibs-blocks.toml"))
    with guests_of(scenario) as host:
        short, long = short_and_long(host, vcpus_of(scenario))
    name = "heat_rank_correlation_2m_blocks"
    return {**heat(name, short, "2 MiB"), **heat(f"{name}_at_1_op_per_ns", long, "2 MiB")}


def placed_by(source: str, scenario: Scenario) -> ManagerResult:
    """Return what the agent reaches with a source."""
    time = replace(scenario.time, quiet_s=QUIET_S)
    reported = replace(scenario, agent_config=f'source = "{source}"\n{AGENT}', expect=(), time=time)
    return run_scenario(reported, ["vmplace"], Progress()).managers["vmplace"]


def mean_lar(lars: Iterable[float | None]) -> float:
    """Return the mean of the guests' LAR, without guests that accessed nothing."""
    return statistics.mean(lar for lar in lars if lar is not None)


def of_writers(scenario: Scenario) -> Scenario:
    """Return the scenario without the guests that only read."""
    writers = tuple(
        guest for guest in scenario.guests if any(touch.write_percent for touch in guest.workload.touch)
    )
    return replace(scenario, guests=writers)


def gaps(scenario: Scenario) -> dict[str, Figure]:
    """Return how far IBS alone stays behind node roots."""
    roots, ibs = (placed_by(source, of_writers(scenario)) for source in ("kvm", "ibs"))
    by_roots, by_ibs = (mean_lar(guest.lar_after for guest in one.guests.values()) for one in (roots, ibs))
    before = mean_lar(guest.lar_before for guest in roots.guests.values())
    uneven, uneven_by_ibs = (one.mc_imbalance_after or 0.0 for one in (roots, ibs))
    uneven_before = roots.mc_imbalance_before or 0.0
    unit = f"scenario {scenario.name}; with node roots"
    return {
        "lar_gap_points": figure(
            (by_roots - by_ibs) * 100, (by_roots - before) * 100, f"points of LAR, {unit} {by_roots:.3f}"
        ),
        "imbalance_gap": figure(
            uneven_by_ibs - uneven, uneven_before - uneven, f"MC imbalance, {unit} {uneven:.3f}"
        ),
    }


def of_ring() -> Figures:
    """Return how fast samples come out of a ring."""
    return {"ring_records_per_s": figure(records_per_s(by_core), records_per_s(by_struct), "records/s")}


def main() -> int:
    """Run the bench; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenario", default="wrong-node", help="the one of lar_gap_points")
    add_record_options(parser)
    options = parser.parse_args()
    parts: dict[str, Part] = {
        "ring": of_ring,
        "pages": of_pages,
        "blocks": of_blocks,
        "gaps": lambda: gaps(read_scenario(options.scenario)),
    }
    return measure("ibs", parts, options)


if __name__ == "__main__":
    sys.exit(main())
