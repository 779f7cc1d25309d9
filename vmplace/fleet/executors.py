"""Where do the tasks of a sweep run?  In processes of this machine, or on the workers of a Dask cluster."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vmplace import __version__
from vmplace.errors import VmplaceError
from vmplace.extras import extra_cure, extra_module
from vmplace.fleet.sweep_run import ExecutorLostError, Opened

DASK_RETRIES = 2
CONNECT_S = 10.0
OUT_PER_WORKER = 2
"""One that is done and one that waits: a worker need not wait for the next."""


@dataclass(frozen=True)
class Workers:
    """How to open an executor, and how many tasks it takes at a time."""

    open: Callable[[], Opened]
    count: int

    @property
    def width(self) -> int:
        """Return how many tasks may be out."""
        return OUT_PER_WORKER * self.count


def local_workers(count: int | None) -> Workers:
    """Return processes of this machine, one for each CPU that may be used."""
    processes = count or len(os.sched_getaffinity(0))

    @contextmanager
    def opened() -> Iterator[Executor]:
        # Not forked: the parent has threads.
        pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("forkserver"))
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    return Workers(opened, processes)


@contextmanager
def dask_workers(address: str) -> Iterator[Workers]:
    """Give the workers of the Dask scheduler at ``address``; raises VmplaceError."""
    distributed = extra_module("distributed", "fleet")
    try:
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as err:
        hint = "start it (dask scheduler), and workers beside it (dask worker ADDRESS)"
        raise VmplaceError(f"no Dask scheduler at {address}: {err}", hint=hint) from err
    with client:
        yield Workers(lambda: _dask_executor(client, address), _checked_count(client, address))


@contextmanager
def _dask_executor(client: Any, address: str) -> Iterator[Executor]:
    yield _DaskExecutor(client, address)


class _DaskExecutor(Executor):
    """Dask's own executor, whose lost scheduler is distinguished from a task that went wrong."""

    def __init__(self, client: Any, address: str) -> None:
        self._client, self._address = client, address
        self._executor = client.get_executor(retries=DASK_RETRIES)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Submit a task; the future raises ExecutorLostError once the scheduler is gone."""
        inner, outer = self._executor.submit(fn, *args, **kwargs), Future[Any]()
        inner.add_done_callback(lambda done: self._pass_on(done, outer))
        return outer

    def _pass_on(self, done: "Future[Any]", outer: "Future[Any]") -> None:
        # Dask cancels what was out when it loses its scheduler.
        if done.cancelled() or self._client.status != "running":
            outer.set_exception(lost(self._address))
        elif (err := done.exception()) is not None:
            outer.set_exception(err)
        else:
            outer.set_result(done.result())


def lost(address: str) -> ExecutorLostError:
    """Return the error for a scheduler that is gone."""
    hint = "start it again and run the same command: rows that are there are kept"
    return ExecutorLostError(f"the Dask scheduler at {address} does not answer any more", hint=hint)


def worker_version() -> str:
    """Return the release that a worker has."""
    return __version__


def _checked_count(client: Any, address: str) -> int:
    """Return how many tasks run at a time; raises VmplaceError without workers, or with other releases."""
    threads = client.nthreads()
    if not threads:
        raise VmplaceError(f"the Dask scheduler at {address} has no workers", hint=f"dask worker {address}")
    try:
        versions = set(client.run(worker_version).values())
    except Exception as err:
        hint = f"where the workers run, {extra_cure('fleet')}"
        raise VmplaceError(f"the Dask workers cannot run vmplace: {err}", hint=hint) from err
    if versions != {__version__}:
        hint = f"install {__version__} there: results of two releases are not comparable"
        raise VmplaceError(f"the Dask workers have vmplace {', '.join(sorted(versions))}", hint=hint)
    return int(sum(threads.values()))
