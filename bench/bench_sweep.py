"""How much faster is a sweep on more workers, and what does Dask's scheduler work for each task?

Run as ``python -m bench.bench_sweep --traces FOLDER`` in an environment with the extra fleet.
1. ``rounds``, in turns: the same rows by one worker and by one for each CPU (``speedup``), and the control,
   all tasks by one process without a sweep and by one on each CPU at once (``plain_speedup``): CPUs that
   share a core or a memory are slower side by side.  Both vary with what else the machine does, so neither
   bounds the other: hold medians and spread against each other.  ``busy_share``: the time that workers spent
   in tasks, of all that they had; a sweep loses the rest by starting workers and handing out tasks.
2. ``dask``: tasks of no work over 1,000 worker threads of one in-process cluster.  The CPU time per task of
   driver, scheduler and workers together is an upper bound of the scheduler's.
"""

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.record import add_record_options, measure
from vmplace.fleet.executors import dask_workers, local_workers
from vmplace.fleet.sweep_rows import SweepRow
from vmplace.fleet.sweep_run import Sweeper
from vmplace.fleet.sweep_task import (
    SweepSettings,
    SweepTask,
    empty_row,
    found_recordings,
    planned_tasks,
    run_task,
)

HOSTS = Path(__file__).parents[1] / "vmplace/simulate/hosts"
THREADS, WORKERS, TASKS = 1000, 20, 4000


def main() -> int:
    """Measure all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--names", default="metis-kmeans,npb-ep-A,freqmine,redis-ycsba")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    add_record_options(parser)
    options = parser.parse_args()
    urls = [str(options.traces / f"{name}.npz") for name in options.names.split(",")]
    hosts = tuple((name, (HOSTS / f"{name}.toml").read_text()) for name in ("two-node", "carrefour-a"))
    settings = SweepSettings(hosts, ("none", "vmplace", "agent:auto"), "ad", options.windows)
    tasks = planned_tasks(found_recordings(urls), settings)
    return measure("sweep", {"rounds": partial(_rounds, tasks, options.rounds), "dask": _dask}, options)


def _rounds(tasks: list[SweepTask], count: int) -> dict[str, Any]:
    rounds = [_round(tasks) for _ in range(count)]
    middle = {name: median(one[name] for one in rounds) for name in ("speedup", "plain_speedup")}
    return {"rows": len(tasks), "workers": _cpus(), "each": rounds, "median": middle}


def _round(tasks: list[SweepTask]) -> dict[str, float]:
    """Do the tasks by one worker, by all, by one process, and once more by each of one process a CPU."""
    (one_s, one_busy), (many_s, busy) = _measured(tasks, 1), _measured(tasks, _cpus())
    alone_s, beside_s = _plain(tasks, 1), _plain(tasks, _cpus())
    seconds = {"one_worker_s": one_s, "workers_s": many_s, "alone_s": alone_s, "side_by_side_s": beside_s}
    ratios = {"speedup": one_s / many_s, "plain_speedup": _cpus() * alone_s / beside_s}
    return seconds | ratios | {"one_worker_busy_share": one_busy, "busy_share": busy}


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _measured(tasks: list[SweepTask], count: int) -> tuple[float, float]:
    """Return the seconds that a sweep took, and which share of them its workers spent in tasks."""
    workers, begun = local_workers(count), time.monotonic()
    rows = list(Sweeper(tasks, workers.open, workers.width).iter_rows())
    wall_s = time.monotonic() - begun
    if failed := [row.error for row in rows if row.error]:
        raise RuntimeError(f"{len(failed)} rows failed: {failed[0]}")
    return wall_s, sum(row.wall_s or 0 for row in rows) / wall_s / count


def _plain(tasks: Sequence[SweepTask], count: int) -> float:
    """Return the seconds in which each of so many processes does all tasks, without a sweep."""
    with ProcessPoolExecutor(count) as pool:
        return max(pool.map(_all_of, [tasks] * count))


def _all_of(tasks: Sequence[SweepTask]) -> float:
    begun = time.monotonic()
    for task in tasks:
        run_task(task)
    return time.monotonic() - begun


def _dask() -> dict[str, Any]:
    import distributed

    tasks = [SweepTask("file:///none.npz", 1, "trace", "h", "x" * 2000, "none", "ad", None)] * TASKS
    with (
        distributed.LocalCluster(
            n_workers=WORKERS, threads_per_worker=THREADS // WORKERS, processes=False,
            dashboard_address=None, host="127.0.0.1", protocol="tcp",
        ) as cluster,
        dask_workers(cluster.scheduler_address) as workers,
    ):  # fmt: skip
        cpu_s, begun = time.process_time(), time.monotonic()
        rows = sum(1 for _ in Sweeper(tasks, workers.open, workers.width, _nothing).iter_rows())
        wall_s, cpu_s = time.monotonic() - begun, time.process_time() - cpu_s
    per_task = {"wall_ms_per_task": wall_s / rows * 1e3, "cpu_ms_per_task": cpu_s / rows * 1e3}
    return {"threads": THREADS, "tasks": rows, **per_task}


def _nothing(task: SweepTask) -> SweepRow:
    return empty_row(task)


if __name__ == "__main__":
    raise SystemExit(main())
