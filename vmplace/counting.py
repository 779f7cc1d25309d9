"""What do a guest's threads count?  A process of its own asks the kernel, one that can be left behind.

To open a perf event of a thread, to read it and to close it take the lock of the thread's events, in a way
that not even a kill ends.  An ioctl(2) copies its argument with that lock held (6.12, kernel/events/core.c:
perf_event_ctx_lock, perf_ioctl).  So any process may keep it for ever, for its own threads, by an event of
its own and an argument on a page that never comes (held.py).

1. One process (apart_worker.py) has the events of all guests.
2. A guest that holds it up has it left behind with all of them.  Another one takes its place once it is
   wanted, where all are counted anew: the answer names the process that counts.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Iterable

from vmplace import held
from vmplace.apart import Process, raise_error
from vmplace.apart_worker import ANSWER, COUNT, COUNTED, DROP, EVENT, HEAD, KEY
from vmplace.errors import VmplaceError
from vmplace.held import HeldError

Event = tuple[int, int, int]
"""Type and config (perf_event_open(2)), and the thread."""
Counted = tuple[int, int, int, int]
"""errno, value, ns that it was wanted, ns that it was counted."""
KEYS = itertools.count(1)
_NUMBERS = itertools.count(1)
_LOCK = threading.Lock()
_PROCESS: list[tuple[int, Process]] = []
"""None or one, with a number of its own."""


# A child must not talk to those of its parent.
os.register_at_fork(after_in_child=_PROCESS.clear)


def count(pid: int, key: int, events: Iterable[Event]) -> tuple[int, list[Counted]]:
    """Return which process counts, and what each event of these threads of process ``pid`` does.

    ``key`` (KEYS) stands for the events.  Raises HeldError, VmplaceError.
    """
    if held.holds(pid, by_process=True):
        raise HeldError
    asked = b"".join(EVENT.pack(*event) for event in events)
    answer_bytes = ANSWER.size + len(asked) // EVENT.size * COUNTED.size
    with _LOCK:
        if not _PROCESS:
            _PROCESS.append((next(_NUMBERS), Process()))
        number, _ = _PROCESS[0]
        parts = [HEAD.pack(COUNT, pid, len(asked) // EVENT.size), KEY.pack(key), asked]
        answer = _called(pid, parts, answer_bytes)
    raise_error(*ANSWER.unpack_from(answer))
    return number, list(COUNTED.iter_unpack(answer[ANSWER.size :]))


def drop(pid: int, key: int) -> None:
    """Count these events no more; begun even if the process holds others up, and given up like all else."""
    # What cannot be closed ends with the process that has it.
    with _LOCK, contextlib.suppress(VmplaceError):
        if _PROCESS:
            raise_error(*ANSWER.unpack(_called(pid, [HEAD.pack(DROP, pid, key)], ANSWER.size)))


def close() -> None:
    """End the process."""
    with _LOCK:
        while _PROCESS:
            _PROCESS.pop()[1].close()


def _called(pid: int, parts: list[bytes], answer_bytes: int) -> bytes:
    process = _PROCESS[0][1]
    try:
        return process.call(pid, parts, answer_bytes)
    except BaseException:
        _PROCESS.clear()
        process.end()
        raise
