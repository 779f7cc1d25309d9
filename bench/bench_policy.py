"""How good are the policies?  All of them, on all traces and on mixes of guests: build/bench/policy.json.

    python -m bench.bench_policy --traces DIR [--only TEXT] [--windows N] [--minutes M] [--out FILE]

Exit code 1 if in any row a guest of what ships is more than 1 % slower than with its memory untouched, a
protected one more than 0.5 %, if there is no such row, or if a trace is missing.  What was left out to stay
within ``--minutes`` stands in the file and is printed.

One table: each row is one run of one policy with one source on one host, with the figures of ``vmplace
simulate``.  ``agent:auto`` is what ships: the agent's own loop, in virtual time, at its own clock, with what
node roots, samples and a stock kernel (idle) tell it.  ``vmplace`` is the plan at the simulator's clock, as
a bound of what it could reach.  Controls are in it: doing nothing (``none``) and knowing everything
(``oracle``, and ``static-oracle``: each page's best place for the whole run).  Each baseline runs with the
source that its paper has.  ``static_share`` of a row: its gain as a share of the static oracle's, which
is the yardstick of kMAF.

``online_share`` of a row: its gain as a share of the online bound, which is what an oracle gains that loses
the price of each move once more before it makes it (``oracle_break_even_share`` of the oracle's row).  Who
does not know the future and wants the best bound on its loss, twice that of who knows it, must do so: to move
earlier is worse if the accesses end then, to move later if they do not (ski rental; Karlin et al.,
Algorithmica 1988).

``notes``: each row that is more than 1 % faster than vmplace, and why.  ``leave_one_out``: would the constant
that was chosen by looking (the half life of page statistics) be another one if a trace were not there?
"""

import argparse
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

# Small matrices: threads of the linear algebra library only get in each other's way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import vmplace.simulate
from bench import bench_hostile
from bench.bench_hostile import SOURCES as HOSTILE_SOURCES
from bench.bench_hostile import drawn, drawn_first
from bench.policy_cache import AGENT, ResultCache, file_digest
from bench.policy_gate import SHIPS, lines
from bench.policy_page import SPLIT
from bench.policy_summary import summary
from bench.policy_table import Table
from bench.record import report_failures
from vmplace.simulate.guest_option import guest_spec
from vmplace.simulate.guest_run import GuestSpec
from vmplace.simulate.host_file import SimulatedHost, read_host
from vmplace.simulate.learnt import HALF_LIFE_NS
from vmplace.simulate.placement_costs import PlacementCosts
from vmplace.simulate.registry import POLICIES
from vmplace.simulate.result import SimulationResult, oracle_share, row
from vmplace.simulate.run import ALL_WINDOWS, simulate
from vmplace.simulate.source_views import source_named
from vmplace.simulate.trace import read_trace

HOSTS = Path(vmplace.simulate.__file__).parent / "hosts"
STOCK = "kernel-balancing-model", "hints"
RUNS = (
    ("none", "full"),
    ("interleave-all", "full"),
    ("interleave-workers", "full"),
    ("numad-model", "full"),
    STOCK,
    ("carrefour-2013", "ibs-hits"),
    ("kmaf", "hints"),
    ("bwap", "full"),
    ("vmplace", "full"),
    ("vmplace", "ad+hints"),
    ("vmplace", "ibs"),
    ("agent:auto", "full"),
    ("agent:auto", "ad"),
    ("agent:auto", "ibs"),
    ("agent:auto", "idle"),
    ("agent:interleave", "idle"),
    ("oracle", "full"),
    ("static-oracle", "full"),
)
CONTROLS = ("none", "oracle", "static-oracle")
SINGLE_HOST = "carrefour-a"
MIXES: tuple[tuple[str, tuple[str, ...]], ...] = (
    # BWAP's own ground first, then each host in turn: what is last is left out for want of time.
    ("narrow-controllers", ("npb-sp-B,vcpus=8,nodes=0",)),
    ("narrow-controllers", ("streamcluster,vcpus=8,nodes=0", "redis-ycsba,nodes=1,priority=protected")),
    ("carrefour-a", ("streamcluster,vcpus=8,nodes=0+1", "npb-mg-A,vcpus=8,nodes=2+3")),
    ("two-node", ("redis-ycsba,nodes=0,priority=protected", "streamcluster,vcpus=8", "metis-kmeans,vcpus=8")),
    ("asymmetric-8", ("streamcluster,nodes=0+1+2+3", "gap-pr-kron20,nodes=4+5+6+7")),
    ("square-diagonal", ("metis-kmeans,vcpus=8", "npb-sp-B,vcpus=8", "gap-cc-urand20,vcpus=8")),
    ("memory-expander", ("metis-pca,vcpus=12", "redis-ycsba,vcpus=8,priority=protected")),
    ("sparse-ids", ("splash-barnes,vcpus=8", "streamcluster,vcpus=8", "npb-ep-A,vcpus=8")),
    ("carrefour-a", ("metis-pca,vcpus=8", "freqmine,vcpus=8")),
    ("two-node", ("npb-is-B,vcpus=12,first_touch=0", "npb-ep-A,vcpus=12")),
    (
        "asymmetric-8",
        (
            "metis-kmeans,vcpus=4,nodes=0",
            "npb-sp-B,vcpus=4,nodes=1",
            "redis-ycsba,vcpus=4,nodes=2,priority=protected",
            "streamcluster,vcpus=8,nodes=3+4",
            "gups,vcpus=4,nodes=5",
            "npb-cg-B,vcpus=8,nodes=6+7",
        ),
    ),
    ("square-diagonal", ("lulesh,vcpus=8", "npb-mg-A,vcpus=8")),
    ("sparse-ids", ("gap-cc-urand20,vcpus=8", "gap-pr-kron20,vcpus=8", "npb-is-B,vcpus=8")),
    ("two-node", ("gap-pr-kron20,vcpus=12", "npb-cg-B,vcpus=8,priority=protected")),
    ("asymmetric-8", ("metis-pca,vcpus=8,nodes=0+1", "gups,vcpus=8,nodes=2+3", "lulesh,vcpus=8,nodes=4+5")),
    ("carrefour-a", ("npb-cg-B,vcpus=8", "metis-pca,vcpus=4,nodes=3", "redis-ycsba,priority=protected")),
)
HUGE = (
    *(f"{name},pages=2M" for name in ("streamcluster", "npb-sp-B", "metis-pca", "npb-cg-B")),
    *(f"{name},pages=64K" for name in ("streamcluster", "metis-pca")),
)
"""Traces alone once more, with huge pages, and with smaller ones that keep the ratio (docs/simulate.md); of
either half of the traces."""
NOT_OF_AGENT = "(64K pages)"
"""The agent takes folios of such sizes for small pages, and doctor tells of hosts that have them."""
COMPOSED = (*((SINGLE_HOST, (text,)) for text in HUGE), *MIXES)
HALF_LIVES_NS = (60e6, 120e6, 240e6)


@dataclass(frozen=True)
class Scenario:
    """Guests on a host, and how many windows of each are replayed."""

    host: SimulatedHost
    mix: str
    specs: tuple[GuestSpec, ...]
    windows: int
    inputs: tuple[str, ...]
    """What the specs were read from: digests of files, and options."""


@dataclass(frozen=True)
class Bench:
    """How runs are made: from the cache, if they were made before; ``price`` multiplies what changes cost."""

    cache: ResultCache
    price: float = 1.0

    def run(
        self,
        scenario: Scenario,
        policy: str,
        source: str,
        half_life_ns: float = HALF_LIFE_NS,
        price: float = 1.0,
    ) -> SimulationResult:
        """Return what comes out; ``price`` multiplies the costs of moves once more."""
        move, collapse, flush, vcpu = (self.price * cost for cost in astuple(PlacementCosts()))
        costs = PlacementCosts(move * price, collapse, flush * price, vcpu)
        key = (*scenario.inputs, str(scenario.windows), source, str(half_life_ns), str(costs))
        started = time.process_time()
        result = self.cache.result(
            policy,
            key,
            lambda: simulate(
                scenario.host,
                scenario.specs,
                POLICIES[policy],
                source_named(source),
                scenario.windows,
                costs,
                half_life_ns,
            ),
        )
        took = time.process_time() - started
        print(f"{scenario.host.name} {scenario.mix} {policy} {source}: {took:.1f} s", file=sys.stderr)
        return result


def main() -> int:
    """Run everything, write the table, print its summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True, help="folder of NAME.npz files")
    parser.add_argument("--only", default="", help="only scenarios whose mix contains this text")
    parser.add_argument("--windows", type=int, default=14, help="of each trace, the first so many; 0: all")
    parser.add_argument("--alone", action="store_true", help="traces alone, and no mixes")
    parser.add_argument(
        "--minutes",
        type=float,
        default=60.0,
        help="no scenario begins after: of CPU, with --jobs N an N-th by the clock",
    )
    parser.add_argument("--hostile", type=int, default=8, help="so many made-up programs that mislead")
    parser.add_argument("--hostile-first", type=int, default=None, help="the first one's number; drawn anew")
    parser.add_argument("--policies", nargs="*", default=list(POLICIES), help="only these, none and oracles")
    parser.add_argument("--price", type=float, default=1.0, help="what changes of placement cost, times this")
    parser.add_argument("--jobs", type=int, default=1, help="run so many scenarios at a time")
    parser.add_argument("--no-leave-one-out", action="store_true")
    parser.add_argument("--cache", type=Path, default=Path("build/bench/cache"), help="folder of results")
    parser.add_argument("--out", type=Path, default=Path("build/bench/policy.json"))
    options = parser.parse_args()
    bench = Bench(ResultCache(options.cache), options.price)
    filled = fill_cache(bench, options) if options.jobs > 1 else None
    table = Table(options.out)
    left = []
    for host_name, guests in chosen(options):
        has_no_time = cpu_minutes() > options.minutes if filled is None else (host_name, guests) not in filled
        if has_no_time:
            left.append(f"{host_name} {mix_of(guests)}")
            continue
        with table.part(f"{host_name} {mix_of(guests)}"):
            one = scenario(options.traces, host_name, guests, options.windows)
            table.rows += table_rows(bench, one, set(options.policies))
    lacking = missing_of(options.traces, options.only)
    first = drawn_first() if options.hostile_first is None else options.hostile_first
    for number in range(first, first + options.hostile):
        with table.part(f"hostile {number}"):
            table.rows += hostile_rows(bench, number)
    table.sampled = "; ".join([sampled(options, left, first), *in_words(lacking)])
    table.unjudged = unjudged(lacking, left)
    table.write()
    if not options.no_leave_one_out:
        with table.part("leave one out"):
            table.left_out = leave_one_out(bench, options.traces, options.windows)
    if table.rows:
        print(summary(table.rows, RUNS, table.left_out))
        print(f"\n{table.sampled}; {cpu_minutes():.0f} minutes of CPU")
    harm = lines(table.rows, table.unjudged)
    print("\n".join(harm), file=sys.stderr)
    return report_failures("policy", table.failed) or int(bool(harm))


def unjudged(lacking: Iterable[tuple[list[str], str]], left: Collection[str]) -> list[str]:
    """Return what keeps the table from judging all that it should.

    Mixes may be left out for want of time, but of each host one has to be there.
    """
    missing = sorted({name for names, _ in lacking for name in names})
    late = [name for name in SPLIT["judging"] if f"{SINGLE_HOST} {name}" in left]
    run = {host for host, guests in MIXES if f"{host} {mix_of(guests)}" not in left}
    late += [f"a mix on {host}" for host in dict.fromkeys(host for host, _ in MIXES) if host not in run]
    words = [f"there is no trace of {', '.join(missing)} (see --traces)"] if missing else []
    return words + ([f"there was no time for {', '.join(late)} (see --minutes)"] if late else [])


def cpu_minutes() -> float:
    """Return the CPU time of this run so far, of its children too."""
    return sum(os.times()[:4]) / 60


def sampled(options: argparse.Namespace, left: Sequence[str], first: int) -> str:
    """Return what was run of what there is, in words."""
    first_ones = f"the first {options.windows} windows" if options.windows else "all windows"
    words = [f"{first_ones} of each trace"]
    words += [f"programs {first} to {first + options.hostile - 1} made up"] if options.hostile else []
    words += ["no mixes"] if options.alone else []
    words += [f"scenarios with {options.only!r} in their names alone"] if options.only else []
    words += [f"left out after {limit_of(options)}: {', '.join(left)}"] if left else []
    return "; ".join(words)


def limit_of(options: argparse.Namespace) -> str:
    """Return in words after which time no scenario began."""
    # What CPU time children took is known only when they have ended.
    if options.jobs == 1:
        return f"{options.minutes:g} minutes of CPU"
    return f"{options.minutes / options.jobs:g} minutes by the clock, {options.jobs} scenarios at a time"


def hostile_rows(bench: Bench, number: int) -> list[dict[str, Any]]:
    """Return the rows of one made-up scenario: of what ships, and of a stock kernel, beside doing nothing.

    A stock kernel balances whether or not the agent is there, so ``idle`` is to be read beside its row.
    There is no oracle.
    """
    host, specs = drawn(number)
    made_by = file_digest(Path(bench_hostile.__file__)), file_digest(HOSTS / f"{host.name}.toml")
    one = Scenario(host, f"hostile-{number}", tuple(specs), ALL_WINDOWS, ("hostile", str(number), *made_by))
    none = bench.run(one, "none", "full")
    names = {"host": host.name, "mix": one.mix}
    rows = [
        row(names | {"policy": policy, "source": source}, bench.run(one, policy, source), none, none)
        | {"static_share": None, "online_share": None}
        for policy, source in (STOCK, *((SHIPS, source) for source in HOSTILE_SOURCES))
    ]
    return [one | {"worst_protected_slowdown": worst_protected(one, none, specs)} for one in rows]


def worst_protected(
    one: Mapping[str, Any], none: SimulationResult, specs: Iterable[GuestSpec]
) -> float | None:
    """Return by which share the slowest protected guest of a row got slower, None if no guest is."""
    protected = [spec.name for spec in specs if spec.slowdown_bound is not None]
    slower = [one["guests"][name].run_time_s / none.guests[name].run_time_s - 1 for name in protected]
    # Unlike max(), it never passes over what is no number.
    return float(np.max(slower)) if slower else None


def fill_cache(bench: Bench, options: argparse.Namespace) -> set[tuple[str, tuple[str, ...]]]:
    """Run what the table will ask for, several scenarios at a time; return those that were begun.

    The results are in the cache then.  None begins after its part of the minutes, by the clock.
    A failure here is not reported: the table meets it again.
    """
    jobs = chosen(options)
    with ProcessPoolExecutor(options.jobs) as pool:
        until = time.monotonic() + options.minutes * 60 / options.jobs
        done = {job: pool.submit(fill_one, bench, options, until, *job) for job in jobs}
        wait(done.values())
    return {job for job, future in done.items() if future.exception() or future.result()}


def fill_one(
    bench: Bench, options: argparse.Namespace, until: float, host: str, guests: Sequence[str]
) -> bool:
    """Run all that the table wants of one scenario, if it is not ``until`` yet, of the monotonic clock.

    Return whether it was begun.
    """
    if time.monotonic() > until:
        return False
    one = scenario(options.traces, host, guests, options.windows)
    table_rows(bench, one, set(options.policies))
    if not options.no_leave_one_out and (host, guests) == (SINGLE_HOST, (one.mix,)):
        gains_of(bench, one)
    return True


def chosen(options: argparse.Namespace) -> list[tuple[str, tuple[str, ...]]]:
    """Return host and guests of the scenarios that are to be run."""
    named = scenario_names(options.traces)
    some = (one for one in named if not (options.alone and one in MIXES))
    return [(host, guests) for host, guests in some if options.only in f"{host} {mix_of(guests)}"]


def scenario_names(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield host and guests of each trace alone, then of those with huge pages, then of the mixes.

    The mixes take longest: of these some are left out for want of time.
    What a trace of is not in the folder is left out (``missing_of``).
    """
    for path in sorted(folder.glob("*.npz")):
        yield SINGLE_HOST, (path.stem,)
    for host_name, guests in COMPOSED:
        if not wanting(folder, guests):
            yield host_name, guests


def wanting(folder: Path, guests: Sequence[str]) -> list[str]:
    """Return the traces of these guests that the folder has not."""
    names = {text.partition(",")[0] for text in guests}
    return sorted(name for name in names if not (folder / f"{name}.npz").is_file())


def missing_of(folder: Path, only: str) -> list[tuple[list[str], str]]:
    """Return the traces that the folder has not, with each scenario that is left out for want of them."""
    alone = [(SINGLE_HOST, (name,)) for half in SPLIT.values() for name in half]
    return [
        (lacking, f"{host} {mix_of(guests)}")
        for host, guests in (*alone, *COMPOSED)
        if only in f"{host} {mix_of(guests)}" and (lacking := wanting(folder, guests))
    ]


def in_words(lacking: Iterable[tuple[list[str], str]]) -> Iterator[str]:
    """Say of each scenario that is left out which traces it wants."""
    for names, left in lacking:
        yield f"for want of {', '.join(names)}: {left}"


def scenario(folder: Path, host_name: str, guests: Sequence[str], windows: int) -> Scenario:
    """Return the scenario of ``guests`` ("TRACE,option=value,...") on a host."""
    host, specs, inputs = named_host(host_name), [], [file_digest(HOSTS / f"{host_name}.toml")]
    for index, text in enumerate(guests):
        name, _, rest = text.partition(",")
        path = folder / f"{name}.npz"
        specs.append(guest_spec(f"g{index}", read_trace(path), options_of(rest), host))
        inputs += [file_digest(path), rest]
    return Scenario(host, mix_of(guests), tuple(specs), windows or ALL_WINDOWS, tuple(inputs))


def mix_of(guests: Sequence[str]) -> str:
    """Return the name of a mix: its traces, and of which the pages are not of 4 KiB."""
    return "+".join(_name_of(text) for text in guests)


def _name_of(text: str) -> str:
    name, _, rest = text.partition(",")
    pages = options_of(rest).get("pages")
    return name if pages is None else f"{name} ({pages} pages)"


def named_host(name: str) -> SimulatedHost:
    """Return a host that comes with the simulator."""
    return read_host(HOSTS / f"{name}.toml")


def options_of(text: str) -> dict[str, str]:
    """Return the options of a guest, as on the command line."""
    return dict(part.partition("=")[::2] for part in text.split(",") if part)


def runs_of(mix: str, policies: set[str]) -> Iterator[tuple[str, str]]:
    """Yield each of ``policies`` and of the controls with its sources, but none that cannot run the mix."""
    for policy, source in RUNS:
        is_left_out = policy.startswith(AGENT) and NOT_OF_AGENT in mix
        if policy in {*policies, *CONTROLS} and not is_left_out:
            yield policy, source


def table_rows(bench: Bench, scenario: Scenario, policies: set[str]) -> list[dict[str, Any]]:
    """Return the rows of one scenario: each of ``policies``, and the controls."""
    results = {
        (policy, source): bench.run(scenario, policy, source)
        for policy, source in runs_of(scenario.mix, policies)
    }
    none, oracle = results["none", "full"], results["oracle", "full"]
    static = results["static-oracle", "full"].run_time_s
    dearer = bench.run(scenario, "oracle", "full", price=2.0)
    names = {"host": scenario.host.name, "mix": scenario.mix}
    rows = [
        row(names | {"policy": policy, "source": source}, result, none, oracle)
        for (policy, source), result in results.items()
    ]
    for one in rows:
        one["worst_protected_slowdown"] = worst_protected(one, none, scenario.specs)
        one["static_share"] = oracle_share(none.run_time_s, one["run_time_s"], static)
        one["online_share"] = oracle_share(none.run_time_s, one["run_time_s"], dearer.run_time_s)
        if one["policy"] == "oracle":
            one["oracle_break_even_share"] = oracle_share(
                none.run_time_s, dearer.run_time_s, oracle.run_time_s
            )
    return rows


def leave_one_out(bench: Bench, folder: Path, windows: int) -> dict[str, Any]:
    """Return what each trace reaches with the half life that is best for the others."""
    names = [path.stem for path in sorted(folder.glob("*.npz"))]
    # One after the other: all traces at once would fill a small machine's memory.
    gains = np.array([gains_of(bench, scenario(folder, SINGLE_HOST, (name,), windows)) for name in names])
    rows = []
    for index, name in enumerate(names):
        others = np.delete(gains, index, axis=0).mean(axis=0)
        chosen = int(others.argmax())
        rows.append(
            {
                "left_out": name,
                "half_life_ms": HALF_LIVES_NS[chosen] / 1e6,
                "gain_with_choice_of_others": float(gains[index, chosen]),
                "gain_with_own_best": float(gains[index].max()),
            }
        )
    return {"half_lives_ms": [value / 1e6 for value in HALF_LIVES_NS], "rows": rows}


def gains_of(bench: Bench, one: Scenario) -> list[float]:
    """Return by which share the trace gets faster with full information, for each half life."""
    none = bench.run(one, "none", "full").run_time_s
    return [1 - bench.run(one, "vmplace", "full", value).run_time_s / none for value in HALF_LIVES_NS]


if __name__ == "__main__":
    sys.exit(main())
