"""How much faster is a sweep on more workers, and what does Dask's scheduler work for each task?

Run as ``python -m bench.bench_sweep --traces FOLDER`` in an environment with vmplace[fleet].
1. ``speedup``: the same rows by one process and by one for each CPU.  On a machine that others use, too, it
   is at most what they leave; ``busy_share`` (the time that workers spent in tasks, of all that they had) is
   what the sweep itself loses by starting workers and handing out tasks.
2. ``machine``, the control: one process that does all tasks without a sweep, and one on each CPU at once that
   each do them all.  CPUs that share a core or a memory are slower side by side: ``most_speedup`` is what is
   left of one for each.  ``speedup`` is to be held against that.
3. ``dask``: tasks of no work over 1,000 worker threads of one in-process cluster.  The CPU time per task of
   driver, scheduler and workers together is an upper bound of the scheduler's.
"""

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
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
    add_record_options(parser)
    options = parser.parse_args()
    urls = [str(options.traces / f"{name}.npz") for name in options.names.split(",")]
    hosts = tuple((name, (HOSTS / f"{name}.toml").read_text()) for name in ("two-node", "carrefour-a"))
    settings = SweepSettings(hosts, ("none", "vmplace", "agent:auto"), "ad", options.windows)
    tasks = planned_tasks(found_recordings(urls), settings)
    beside = {"speedup": partial(_speedup, tasks), "machine": partial(_machine, tasks)}
    return measure("sweep", {**beside, "dask": _dask}, options)


def _speedup(tasks: list[SweepTask]) -> dict[str, Any]:
    cpus = len(os.sched_getaffinity(0))
    one, many = _measured(tasks, 1), _measured(tasks, cpus)
    reported = {f"one_worker_{name}": value for name, value in one.items()}
    return {
        "rows": len(tasks),
        "workers": cpus,
        **many,
        **reported,
        "speedup": one["wall_s"] / many["wall_s"],
    }


def _measured(tasks: list[SweepTask], count: int) -> dict[str, float]:
    workers, begun = local_workers(count), time.monotonic()
    rows = list(Sweeper(tasks, workers.open, workers.width).iter_rows())
    wall_s = time.monotonic() - begun
    if failed := [row.error for row in rows if row.error]:
        raise RuntimeError(f"{len(failed)} rows failed: {failed[0]}")
    return {"wall_s": wall_s, "busy_share": sum(row.wall_s or 0 for row in rows) / wall_s / count}


def _machine(tasks: list[SweepTask]) -> dict[str, Any]:
    """Do the tasks on one CPU, then all of them on each CPU at once; no part of the sweep is in between."""
    cpus = len(os.sched_getaffinity(0))
    alone_s, beside_s = _plain(tasks, 1), _plain(tasks, cpus)
    return {"alone_s": alone_s, "side_by_side_s": beside_s, "most_speedup": cpus * alone_s / beside_s}


def _plain(tasks: Sequence[SweepTask], count: int) -> float:
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
