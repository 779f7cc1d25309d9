"""Which threads free garbage that is in cycles?  None that does steps (step_thread.py).

Python collects such garbage in whichever thread makes the next object.  In a thread with a file table of its
own, a file or socket among the garbage would be closed by its number in the wrong table.  So Python collects
nothing while a step is done.  A step that was given up may go on for ever: then the agent's loop collects.
"""

import gc
import threading


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


def collect_due() -> None:
    """Collect what Python would have collected by now; the agent's loop calls it in each wait."""
    counts = zip(gc.get_count(), gc.get_threshold(), strict=True)
    due = [generation for generation, (count, most) in enumerate(counts) if 0 < most < count]
    if due:
        gc.collect(due[-1])
