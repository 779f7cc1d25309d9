"""Does the joint linear program place memory better than the descent that the planner uses?  JSON, all mixes.

    python -m bench.bench_weighers --traces DIR

At some moments of each mix of ``bench_policy`` all pages may be placed anew at no price, by

1. ``descent``: what ``host_plan`` does;
2. ``program``: the weights of the linear program (``host_lp``), solved anew at the rates that came of them;
3. ``program_then_descent``: the descent, begun at the program's weights.

Each figure is the guests' mean time per access in the memory model, as a share of that with pages where they
were first touched (the control).  ``gap``: what is left to the optimum of the descent's objective at most, as
a share of it: a certificate, for the objective is convex.  ``utilisation``: of the busiest resource.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from bench.bench_policy import MIXES, mix_of, scenario
from bench.host_lp import Limits, Stream, plan_weights
from bench.record import Figures, add_record_options, measure
from vmplace.model.memory_system import Load, MemorySystem, solved
from vmplace.model.metrics import Matrix
from vmplace.policy.corner_mix import CornerMix
from vmplace.policy.descent import descended, rounded
from vmplace.policy.host_view import REPLICATED, Indexes, NodeIndexes, demand, row_sums, traffic
from vmplace.policy.page_task import PageTask
from vmplace.simulate.guest_run import GuestRun, share_cpus

MOMENTS = (3, 7, 11)
ROUNDS = 4
"""Times that the program is solved: rates follow from weights, and weights from rates."""


def main() -> int:
    """Measure a row for each mix and moment, and the worst of all; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, required=True)
    add_record_options(parser)
    options = parser.parse_args()
    return measure("weighers", {"mixes": lambda: of_mixes(options.traces)}, options)


def of_mixes(traces: Path) -> Iterator[Figures]:
    """Yield the rows so far, and how far the program's are from the descent's at most."""
    rows: list[dict[str, Any]] = []
    for row in iter_rows(traces):
        rows.append(row)
        away = {
            key: [one[key] / one["descent"] - 1 for one in rows]
            for key in ("program", "program_then_descent")
        }
        yield {
            "rows": [*rows],
            "above_descent": {key: max(values) for key, values in away.items()},
            "below_descent": {key: min(values) for key, values in away.items()},
        }


def iter_rows(traces: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows; a mix whose traces are not there is left out."""
    for host_name, guests in MIXES:
        one = scenario(traces, host_name, guests, max(MOMENTS) + 1)
        runs = [GuestRun(spec, one.host, one.windows) for spec in one.specs]
        share_cpus(runs, one.host)
        for window in range(max(MOMENTS) + 1):
            for run in runs:
                run.put(run.fresh, run.first_touch_nodes(run.fresh))
            if window in MOMENTS:
                yield {"host": host_name, "mix": mix_of(guests), "window": window} | figures(
                    one.host.system, runs
                )
            for run in runs:
                run.advance()


def figures(system: MemorySystem, runs: list[GuestRun]) -> dict[str, float]:
    """Return the figures of one moment."""
    tasks = [_task(system, run) for run in runs]
    mixture = descended(system, tasks)
    programmed = placed_by_program(system, tasks)
    both = descended(system, [_begun_at(task, node) for task, node in zip(tasks, programmed, strict=True)])
    ways = {
        "first_touch": _traffics(tasks, [task.guest.node for task in tasks]),
        "descent": mixture.traffics,
        "program": _traffics(tasks, programmed),
        "program_then_descent": both.traffics,
    }
    loads = {name: _load(system, tasks, traffics) for name, traffics in ways.items()}
    base = loads["first_touch"].rates
    shares = {name: float(np.mean(base / load.rates)) for name, load in loads.items()}
    busiest = {f"utilisation_{name}": float(load.utilisation.max()) for name, load in loads.items()}
    return shares | {"gap": mixture.gap / _total(system, tasks, mixture.traffics)} | busiest


def placed_by_program(system: MemorySystem, tasks: list[PageTask]) -> list[NodeIndexes]:
    """Return where the program has each guest's pages: those of a stream distributed by its weights."""
    count = len(system.nids)
    room = Limits(np.full(count, 1e12))
    streams = [_streams(task) for task in tasks]
    places = [task.guest.node.copy() for task in tasks]
    for _ in range(ROUNDS):
        traffics = _traffics(tasks, places)
        scale = _load(system, tasks, traffics).rates / traffics.sum(axis=(1, 2))
        asked = [
            _stream(task, pages, rate)
            for task, rate, some in zip(tasks, scale.tolist(), streams, strict=True)
            for pages in some
        ]
        plan = plan_weights(system, asked, room)
        rows = iter(np.column_stack([plan.weights, plan.replicated]))
        for place, some in zip(places, streams, strict=True):
            for pages in some:
                weights = np.maximum(next(rows), 0.0)
                chosen = rounded(len(pages), weights / weights.sum())
                place[pages] = np.where(chosen == count, REPLICATED, chosen)
    return places


def _streams(task: PageTask) -> list[Indexes]:
    """Return the pages that are alike, hottest first: touched by the same nodes, and copied or not."""
    kind = (task.guest.heat > 0) @ (1 << np.arange(task.guest.heat.shape[1])) * 2 + task.replicable
    order = np.argsort(-row_sums(task.guest.heat), kind="stable")
    return [order[kind[order] == one] for one in np.unique(kind)]


def _stream(task: PageTask, pages: Indexes, rate: float) -> Stream:
    heat = task.guest.heat[pages].sum(axis=0) * rate
    now = np.bincount(task.guest.node[pages], minlength=len(heat)) / len(pages)
    return Stream(task.guest.name, heat, len(pages), now, replicable=bool(task.replicable[pages[0]]))


def _task(system: MemorySystem, run: GuestRun) -> PageTask:
    """Return the task of placing what the guest's present window touches, at no price."""
    truth = run.exact()
    pages = np.flatnonzero(row_sums(truth.heat) > 0)
    part = truth.of_pages(pages)
    near = bool((system.controller[truth.worker] > 0).all())
    return PageTask(part, ~part.written & np.bool_(near), np.zeros(len(pages)))


def _begun_at(task: PageTask, node: NodeIndexes) -> PageTask:
    return replace(task, guest=replace(task.guest, node=node))


def _traffics(tasks: list[PageTask], places: list[NodeIndexes]) -> Matrix:
    return np.stack([traffic(task.guest.heat, node) for task, node in zip(tasks, places, strict=True)])


def _load(system: MemorySystem, tasks: list[PageTask], traffics: Matrix) -> Load:
    return solved(system, demand(tuple(task.guest for task in tasks), [*traffics]))


def _total(system: MemorySystem, tasks: list[PageTask], traffics: Matrix) -> float:
    """Return the descent's objective at its own margin."""
    scale = _load(system, tasks, traffics).rates / traffics.sum(axis=(1, 2))
    none = np.zeros(len(tasks))
    return CornerMix.of(system, [traffics], [none], scale, none + 1.0).total_and_gap(np.ones(1))[0]


if __name__ == "__main__":
    sys.exit(main())
