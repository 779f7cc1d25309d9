"""Which threads free garbage that is in cycles?  None that does steps (step_thread.py).

Python collects such garbage in whichever thread makes the next object.  In a thread with a file table of its
own, a file or socket among the garbage would be closed by its number in the wrong table.  So Python collects
nothing while a step is done.  A step that was given up may go on for ever: then the agent's loop collects.
"""

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator

OLDEST = 2
"""The generation of what was collected twice, and so is rarely garbage."""
FULL_SHARE = 0.01


class Collection:
    """Python's collection of garbage, which is off while anybody has it paused.  For all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pauses, self._was_enabled = 0, False

    def pause(self) -> None:
        """Collect nothing until ``resume`` is called as often."""
        with self._lock:
            if not self._pauses:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._pauses += 1

    def resume(self) -> None:
        """Undo one ``pause``; makes no object once Python may collect, as its caller may do steps."""
        self._lock.acquire()
        try:
            self._pauses -= 1
            if not self._pauses and self._was_enabled:
                gc.enable()
        finally:
            # Not by "with", which makes a tuple to leave.
            self._lock.release()

    def begin_anew(self) -> None:
        """Undo all pauses, in a child that was forked: threads stay with the parent."""
        self._lock = threading.Lock()
        if self._pauses and self._was_enabled:
            gc.enable()
        self._pauses = 0


COLLECTION = Collection()


class Pause:
    """Undoes one ``pause`` when it is freed.  Of a thread's own, that is after all that Python does in it."""

    def __del__(self) -> None:
        """Resume."""
        COLLECTION.resume()


@contextlib.contextmanager
def passing_over_what_is_there() -> Iterator[None]:
    """While inside, no collection looks through what is there now: modules alone take 50 ms each time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Collector:
    """Collects what Python would have collected by now; for one thread."""

    def __init__(self, clock: Callable[[], int] = time.thread_time_ns) -> None:
        self._clock, self._not_before_ns = clock, 0

    def collect_due(self) -> None:
        """Collect the generation that is due; all objects only in FULL_SHARE of the thread's CPU time."""
        counts = zip(gc.get_count(), gc.get_threshold(), strict=True)
        due = [generation for generation, (count, most) in enumerate(counts) if 0 < most < count]
        if not due:
            return
        began = self._clock()
        if due[-1] < OLDEST or began < self._not_before_ns:
            gc.collect(min(due[-1], OLDEST - 1))
            return
        gc.collect()
        ended = self._clock()
        self._not_before_ns = ended + round((ended - began) / FULL_SHARE)
