"""What can programs that mislead on purpose make the agent lose?  Made-up traces, modelled time; JSON.

    python -m bench.bench_hostile [FIRST [SCENARIOS]]

Scenarios are drawn anew in each run, from the number that is printed first: who tunes on some meets others.
Each scenario is one host and one or two guests of 500 to 6,000 pages, drawn by its number.  Parts of a
guest's memory are read by all vCPUs, read by all and then written for a while, handed on to the opposite
vCPU, used by one vCPU at a time, distributed anew in each window, private but for visits of others to a tenth
of the pages, or private and used in bursts.  Control: ``none``, memory untouched.
It reports by which share the mean, the worst guest and a protected guest got slower.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import vmplace.simulate
from bench.record import Figures, add_record_options, measure
from vmplace.simulate.guest_option import guest_spec
from vmplace.simulate.guest_run import GuestSpec
from vmplace.simulate.host_file import SimulatedHost, read_host
from vmplace.simulate.registry import POLICIES
from vmplace.simulate.run import simulate
from vmplace.simulate.source_views import source_named
from vmplace.simulate.trace import Trace, parse_trace

HOSTS = sorted((Path(vmplace.simulate.__file__).parent / "hosts").glob("*.toml"))
POLICY, SOURCES = "agent:auto", ("ad", "ibs", "idle")
"""What ships, and what its sources tell it."""
KINDS = (
    "read", "read, then written", "handed on", "one at a time", "distributed", "visited", "in bursts",
)  # fmt: skip
WRITES = {"read": 0.0, "read, then written": 0.5}
VISITED = 0.1
"""The share of private pages that others visit in a window."""
Ints = npt.NDArray[np.int64]


def users(kind: str, pages: int, threads: int, turn: int, chance: np.random.Generator) -> Ints:
    """Return which threads use each of the pages in this turn: [threads or 1, pages]."""
    own = np.arange(pages) * threads // pages
    if kind in WRITES:
        return np.broadcast_to(np.arange(threads)[:, None], (threads, pages)).astype(np.int64)
    if kind == "handed on":
        return ((own + turn * (threads // 2)) % threads)[None]
    if kind == "visited":
        visitors = chance.integers(0, threads, pages)
        return np.where(chance.random(pages) < VISITED, visitors, own)[None]
    if kind == "in bursts":
        return own[None]
    if kind == "one at a time":
        return np.full((1, pages), turn % threads)
    return chance.integers(0, threads, (1, pages))


def intensity(kind: str, window: int, period: int) -> float:
    """Return how often pages are used in a window; those in bursts are in one of ``period`` + 1."""
    if kind != "in bursts":
        return 1.0
    return float(period + 1) if window % (period + 1) == period else 0.01


def records(kinds: list[str], shape: tuple[int, int, int], chance: np.random.Generator) -> Ints:
    """Return window, page, thread, loads and stores [5, N] of a trace of (windows, pages, threads)."""
    windows, pages, threads = shape
    accesses, period = float(chance.choice([2e5, 1e6])), int(chance.integers(1, 8))
    bounds = np.linspace(0, pages, len(kinds) + 1).astype(int)
    parts = []
    for window in range(windows):
        for kind, (first, end) in zip(kinds, pairwise(bounds.tolist()), strict=True):
            who = users(kind, end - first, threads, window // period, chance)
            asked = accesses * intensity(kind, window, period)
            count = chance.poisson(asked / len(kinds) / who.size, who.shape)
            often = WRITES.get(kind, 0.3) * (kind != "read, then written" or window // period % 2)
            stores = chance.binomial(count, often)
            page = np.broadcast_to(np.arange(first, end), who.shape)
            rows = [np.full(who.shape, window), page, who, count - stores, stores]
            parts.append(np.stack([one.ravel() for one in rows])[:, count.ravel() > 0])
    return np.concatenate(parts, axis=1)


def trace(number: int, chance: np.random.Generator) -> Trace:
    """Return a made-up trace."""
    shape = int(chance.integers(5, 13)), int(chance.choice([500, 2000, 6000])), int(chance.integers(2, 17))
    windows, pages, threads = shape
    kinds = chance.choice(KINDS, int(chance.integers(1, 4))).tolist()
    window, page, thread, loads, stores = records(kinds, shape, chance)
    raw = np.zeros((windows, threads), np.int64)
    np.add.at(raw, (window, thread), (loads + stores) * int(chance.integers(2, 30)))
    arrays: dict[str, Any] = {
        "meta": np.array(json.dumps({"workers": f"0-{threads - 1}"})),
        "vpn": np.arange(pages),
        "first_touch_thread": chance.integers(0, threads, pages) * int(chance.integers(0, 2)),
        "first_touch_epoch": np.zeros(pages, np.int64),
        "first_touch_rank": np.arange(pages),
        "free_epoch": np.full(pages, 65535),
        **{"epoch": window, "page_idx": page, "thread": thread, "loads": loads, "stores": stores},
        "llc_misses": loads + stores,
        "totals_raw_loads": raw,
        "totals_raw_stores": np.zeros_like(raw),
    }
    return parse_trace(arrays, name=f"hostile-{number}")


def drawn(number: int) -> tuple[SimulatedHost, list[GuestSpec]]:
    """Return the scenario of this number."""
    chance = np.random.default_rng(number)
    host, specs = read_host(HOSTS[int(chance.integers(len(HOSTS)))]), []
    for guest in range(int(chance.integers(1, 3))):
        options = {"vcpus": str(chance.integers(1, 9))}
        if chance.random() < 0.3:
            options["priority"] = "protected"
        specs.append(guest_spec(f"g{guest}", trace(number, chance), options, host))
    return host, specs


def drawn_first() -> int:
    """Return the number of a first scenario that nobody chose."""
    return int.from_bytes(os.urandom(4)) // 1000 * 1000


def losses(number: int) -> dict[str, dict[str, float]]:
    """Return by source which share of time the scenario's guests lose: mean, worst, worst protected one."""
    host, specs = drawn(number)
    control = simulate(host, specs, POLICIES["none"], source_named("full"))
    answer = {}
    for source in SOURCES:
        result = simulate(host, specs, POLICIES[POLICY], source_named(source))
        lost = {
            one.name: result.guests[one.name].run_time_s / control.guests[one.name].run_time_s - 1
            for one in specs
        }
        guarded = [lost[one.name] for one in specs if one.slowdown_bound is not None]
        mean = result.run_time_s / control.run_time_s - 1
        answer[source] = {"mean": mean, "guest": max(lost.values()), "protected": max(guarded, default=0.0)}
    return answer


def worst(first: int, scenarios: int) -> Iterator[Figures]:
    """Yield the worst of the scenarios so far, and how many are beyond 1, 2 and 0.5 %."""
    found: list[dict[str, dict[str, float]]] = []
    for number in range(first, first + scenarios):
        found.append(losses(number))
        yield {"scenarios": len(found), "first": first} | {
            f"{source} {name}": beyond([one[source][name] for one in found], bound)
            for source in SOURCES
            for name, bound in (("mean", 0.01), ("guest", 0.01), ("protected", 0.005))
        }


def beyond(each: list[float], bound: float) -> dict[str, float]:
    """Return the worst of some losses, and how many are larger than the bound."""
    return {"worst": round(max(each), 4), "bound": bound, "beyond": sum(value > bound for value in each)}


def main() -> int:
    """Run the bench; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=int, nargs="?", default=drawn_first())
    parser.add_argument("scenarios", type=int, nargs="?", default=16)
    add_record_options(parser)
    options = parser.parse_args()
    print(f"scenarios {options.first} to {options.first + options.scenarios - 1}", file=sys.stderr)
    return measure("hostile", {"losses": lambda: worst(options.first, options.scenarios)}, options)


if __name__ == "__main__":
    sys.exit(main())
