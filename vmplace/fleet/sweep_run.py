"""Run the tasks of a sweep, even if workers die.

1. So many tasks are given out at a time as keep all workers busy: a sweep of a million is no queue of a
   million futures.
2. An executor that breaks because one of its processes died (concurrent.futures ends all of it then) is
   opened anew.  Any of the tasks that were out may have been the cause: each is done alone, until it is
   through or has broken its executor ``TRIES`` times in all.  Dask's scheduler does the same by itself.
3. A task that cannot be done is a row that says why; the sweep goes on.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import AbstractContextManager

import msgspec

from vmplace.errors import VmplaceError
from vmplace.fleet.sweep_rows import SweepRow
from vmplace.fleet.sweep_task import SweepTask, empty_row, run_task

TRIES = 3
Run = Callable[[SweepTask], SweepRow]
Opened = AbstractContextManager[Executor]


class ExecutorLostError(VmplaceError):
    """The executor as a whole is gone (a scheduler that does not answer): the sweep ends here."""


class Sweeper:
    """Tasks on their way through an executor; ``width``: how many may be out at a time."""

    def __init__(
        self,
        tasks: Iterable[SweepTask],
        open_executor: Callable[[], Opened],
        width: int,
        run: Run = run_task,
    ) -> None:
        self._waiting, self._suspects = deque(tasks), deque[SweepTask]()
        self._open, self._width, self._run = open_executor, width, run
        self._out: dict[Future[SweepRow], SweepTask] = {}
        self._broke: Counter[str] = Counter()

    def iter_rows(self) -> Iterator[SweepRow]:
        """Yield rows as they come; raises ExecutorLostError."""
        while self._waiting or self._suspects:
            with self._open() as executor:
                yield from self._until_broken(executor)
            yield from self._given_up()

    def _until_broken(self, executor: Executor) -> Iterator[SweepRow]:
        """Yield rows until all is done, or the executor is broken; then all that were out are suspects."""
        try:
            self._give_out(executor)
            while self._out:
                for future in wait(self._out, return_when=FIRST_COMPLETED).done:
                    row = _row_of(future, self._out[future])
                    del self._out[future]
                    yield row
                self._give_out(executor)
        except BrokenExecutor:
            self._broke.update(task.id for task in self._out.values())
            self._suspects.extend(self._out.values())
        finally:
            self._out.clear()

    def _give_out(self, executor: Executor) -> None:
        if self._suspects:
            if not self._out:
                self._submit(executor, self._suspects)
            return
        while self._waiting and len(self._out) < self._width:
            self._submit(executor, self._waiting)

    def _submit(self, executor: Executor, queue: deque[SweepTask]) -> None:
        # Taken off the queue only when it is out: a broken executor takes none.
        self._out[executor.submit(self._run, queue[0])] = queue[0]
        queue.popleft()

    def _given_up(self) -> Iterator[SweepRow]:
        bad = [task for task in self._suspects if self._broke[task.id] >= TRIES]
        self._suspects = deque(task for task in self._suspects if task not in bad)
        for task in bad:
            yield failed_row(task, f"its worker died, {TRIES} times of {TRIES}")


def failed_row(task: SweepTask, error: str) -> SweepRow:
    """Return the row of a task that could not be done."""
    return msgspec.structs.replace(empty_row(task), error=error)


def _row_of(future: "Future[SweepRow]", task: SweepTask) -> SweepRow:
    """Return what a task gave; raises BrokenExecutor and ExecutorLostError, which are nobody's row."""
    try:
        return future.result()
    except (BrokenExecutor, ExecutorLostError):
        raise
    except Exception as err:
        # A worker may meet anything, and Dask tells of workers that died as errors of the task.
        return failed_row(task, f"{type(err).__name__}: {err}"[:500])
