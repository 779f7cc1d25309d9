"""How true, how cheap and how useful are the samples of IBS?  Each figure with its control.

Guests of skewed access (ibs.toml) run in the emulated host; the truth is what the meter counts exactly: every
access by CPU and page.  Prints {NAME: {value, control, unit}}:

heat_rank_correlation    Spearman's, of the hottest tenth of the guests' pages, after 10 s at the low rate.
                         Control: as many samples drawn from the exact counts.  ``_60s``: after 60 s.
attribution_error_points the largest error of a (CPU node, memory node)'s share of all accesses.
                         Control: all CPUs taken for alike.
guest_slowdown_low, _high  what the host executes more per guest instruction, in percent of the guest's.
                         Control: how far spells without sampling differ.
emulator_speed_low, _high  guest instructions a second: what emulating IBS itself costs.  Control: without.
lar_gap_points           mean LAR of a scenario's one-node guests that the agent reaches with node roots (the
                         demo's, unless told otherwise), less that with IBS alone.  Control: less that of
                         nobody placing.
ring_records_per_s       samples out of a perf ring by the C core.  Control: by Python's struct.

Times are the emulated host's: a second of it holds fewer instructions than one of a real host.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace
from scipy.stats import spearmanr

from bench.ibs_ring import by_core, by_struct, records_per_s
from vmplace.lab.machine import LabHost, boot_host
from vmplace.lab.page_counts import PAGES, PageCounts, read_page_counts
from vmplace.lab.progress import Progress
from vmplace.lab.scenario import ManagerName, Scenario, read_scenario
from vmplace.lab.scenario_run import prepare_stage, run_scenario
from vmplace.lab.topology import cpu_nids
from vmplace.sampling.counters_meter import GUEST_HOST, MeterCounters, MeterReading
from vmplace.sampling.ibs_pace import HIGH_RATE_PERIOD, LOW_RATE_PERIOD

HERE = Path(__file__).parent
INSIDE = "/root/ibs_inside.py"
OUT = "/root/samples.npz"
PERIODS = (None, LOW_RATE_PERIOD, HIGH_RATE_PERIOD)
ROUNDS = 3
HOT_SHARE = 0.1
SPELL_S = 10.0
LONG_S = 60.0
SEED = 1
AGENT = 'window_ms = 500\nlongest_rest_ms = 1000\npolicy = "nodes"\n[budget]\nmb_per_s = 4096\n'

Figures = dict[str, dict[str, float | str]]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """What IBS sampled while the meter counted ``exact``; ``told`` is ibs_inside's account."""

    frames: Ints
    cpus: Ints
    exact: PageCounts
    told: dict[str, float]


def figure(value: float, control: float, unit: str) -> dict[str, float | str]:
    """Return one figure beside its control."""
    return {"value": value, "control": control, "unit": unit}


def sampled(host: LabHost, period: int, seconds: float) -> Samples:
    """Sample for a while and return it with the exact counts of the same time."""
    before = read_page_counts(host)
    told = json.loads(host.run(_sampler(host, period, seconds), timeout=seconds + 120).stdout)
    exact = read_page_counts(host).since(before)
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        Path(file.name).write_bytes(host.get(OUT))
        arrays = np.load(file.name)
        return Samples(arrays["frames"].astype(np.int64), arrays["cpus"].astype(np.int64), exact, told)


def _sampler(host: LabHost, period: int, seconds: float) -> list[str]:
    """Return the command of the sampling process, on the last CPU: its own cost is not the samples'."""
    last = str(len(cpu_nids(host.topology)) - 1)
    return ["taskset", "-c", last, "python3", INSIDE, str(period), str(seconds), OUT]


def sampled_counts(samples: Samples) -> Ints:
    """Return the samples by [cpu, page], as the exact counts are."""
    known = np.isin(samples.frames, samples.exact.frames)
    pages = np.searchsorted(samples.exact.frames, samples.frames[known])
    counts = np.zeros_like(samples.exact.counts)
    np.add.at(counts, (samples.cpus[known], pages), 1)
    return counts


def rank_correlation(samples: Samples, pages: int) -> tuple[float, float]:
    """Return Spearman's correlation for the hottest pages, and that of as many perfect samples."""
    exact = samples.exact.counts.sum(axis=0)
    hottest = np.argsort(exact)[::-1][: int(pages * HOT_SHARE)]
    seen = sampled_counts(samples).sum(axis=0)
    perfect = np.random.default_rng(SEED).multinomial(int(seen.sum()), exact / exact.sum())
    value, control = (spearmanr(exact[hottest], counts[hottest]).statistic for counts in (seen, perfect))
    return float(value), float(control)


def shares(counts: Ints, exact: PageCounts, nids: Ints) -> npt.NDArray[np.float64]:
    """Return the share of all accesses of each (CPU node, memory node)."""
    found = np.unique(nids)
    blocks = [[counts[nids == a][:, exact.nids == b].sum() for b in found] for a in found]
    return np.array(blocks, np.float64) / float(counts.sum())


def attribution_error(samples: Samples, nids: Ints) -> tuple[float, float]:
    """Return the largest error of a share in points, and that of taking all CPUs for alike."""
    exact = shares(samples.exact.counts, samples.exact, nids)
    seen = shares(sampled_counts(samples), samples.exact, nids)
    alike = np.outer(np.full(len(exact), 1 / len(exact)), exact.sum(axis=0))
    return float(np.abs(seen - exact).max()) * 100, float(np.abs(alike - exact).max()) * 100


def spell(host: LabHost, period: int | None) -> MeterReading:
    """Return what the meter counted in a spell, with sampling at a period or without."""
    sampler = host.spawn(_sampler(host, period, SPELL_S + 10)) if period else None
    # Python takes its time to start.
    host.run("sleep 5")
    with MeterCounters(host.shared_memory) as meter:
        before = meter.read()
        host.run(f"sleep {SPELL_S}", timeout=SPELL_S + 60)
        growth = meter.read().since(before)
    if sampler and sampler.wait(timeout=120):
        raise RuntimeError(sampler.output())
    return growth


def per_guest_instruction(growth: MeterReading, cpus: Ints) -> float:
    """Return the host's instructions for each of the guests', on CPUs where guests always run."""
    of_guests = growth.instructions[GUEST_HOST + 1 :, cpus].sum()
    return float(growth.instructions[GUEST_HOST, cpus].sum() / of_guests)


def slowdowns(host: LabHost, nids: Ints) -> Figures:
    """Spells without and with sampling, in turn."""
    # Two vCPUs share the CPUs of node 0; elsewhere the sampling process itself may run.
    busy = np.flatnonzero(nids == 0)
    # In turn, so that a change of the machine outside does not count for one of them.
    rounds = [{period: spell(host, period) for period in PERIODS} for _ in range(ROUNDS)]
    spells = {period: [one[period] for one in rounds] for period in PERIODS}
    cost = {period: [per_guest_instruction(one, busy) for one in two] for period, two in spells.items()}
    speed = {
        period: statistics.mean(float(one.instructions[GUEST_HOST + 1 :].sum()) / SPELL_S for one in two)
        for period, two in spells.items()
    }
    base = statistics.mean(cost[None])
    noise = (max(cost[None]) - min(cost[None])) * 100
    figures: Figures = {}
    for name, period in (("low", LOW_RATE_PERIOD), ("high", HIGH_RATE_PERIOD)):
        more = (statistics.mean(cost[period]) - base) * 100
        figures[f"guest_slowdown_{name}"] = figure(more, noise, "% of guest instructions")
        figures[f"emulator_speed_{name}"] = figure(speed[period], speed[None], "guest instructions/s")
    return figures


def in_the_lab() -> Figures:
    """Return the figures that the meter judges."""
    scenario = read_scenario(str(HERE / "ibs.toml"))
    stage = prepare_stage(scenario, Progress())
    nids = np.array(cpu_nids(stage.topology))
    pages = sum((guest.workload.arena_mib or 0) * 256 for guest in scenario.guests)
    files = stage.files | {INSIDE: HERE / "ibs_inside.py"}
    with boot_host(
        stage.topology,
        meter=True,
        plugin_args=PAGES,
        snapshot=stage.snapshot,
        files=files,
        artifacts=stage.artifacts,
    ) as host:
        host.run("vmp-meter on")
        short = sampled(host, LOW_RATE_PERIOD, SPELL_S)
        long = sampled(host, LOW_RATE_PERIOD, LONG_S)
        costs = slowdowns(host, nids)
    return {
        "heat_rank_correlation": figure(*rank_correlation(short, pages), f"{short.told['samples']} samples"),
        "heat_rank_correlation_60s": figure(
            *rank_correlation(long, pages), f"{long.told['samples']} samples"
        ),
        "attribution_error_points": figure(*attribution_error(long, nids), "points"),
        **costs,
    }


def mean_lar(scenario: Scenario, source: str, manager: ManagerName) -> float:
    """Return the mean LAR that a manager reaches for the guests that run on one node."""
    told = replace(scenario, agent_config=f'source = "{source}"\n{AGENT}', expect=())
    result = run_scenario(told, [manager], Progress()).managers[manager]
    guests = [guest for guest in result.guests.values() if len(set(guest.vcpu_nids)) == 1]
    return statistics.mean(guest.lar_after for guest in guests if guest.lar_after is not None)


def lar_gap(scenario: Scenario) -> dict[str, float | str]:
    """Return how far IBS alone stays behind node roots."""
    roots, ibs = (mean_lar(scenario, source, "vmplace") for source in ("kvm", "ibs"))
    nobody = mean_lar(scenario, "kvm", "none")
    return figure((roots - ibs) * 100, (roots - nobody) * 100, f"points of LAR, scenario {scenario.name}")


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenario", default="wrong-node", help="the one of lar_gap_points")
    placed = read_scenario(parser.parse_args().scenario)
    figures = {"ring_records_per_s": figure(records_per_s(by_core), records_per_s(by_struct), "records/s")}
    figures |= in_the_lab()
    figures["lar_gap_points"] = lar_gap(placed)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
