"""What do a guest's threads count?  A process of its own asks the kernel, one that can be left behind.

To open a perf event of a thread, to read it and to close it take the lock of the thread's events, in a way
that not even a kill ends.  An ioctl(2) copies its argument with that lock held (6.12, kernel/events/core.c:
perf_event_ctx_lock, perf_ioctl).  So any process may keep it for ever, for its own threads, by an event of
its own and an argument on a page that never comes (held.py).

1. A process (native/apart_worker.c) has the events of one guest, so it waits for no other one: not while it
   counts, and not as it ends.
2. A guest that holds one up has it left behind.  Another one takes its place once it is wanted, and counts
   anew: the answer tells.
3. An event takes 1.6 KiB of the kernel's memory, and what is left behind keeps all that it has.  So there are
   MOST_EVENTS at the most, which fit in COUNTING_BYTES (held_limits.py).
"""

import contextlib
import errno
import itertools
import os
import struct
from collections.abc import Iterable

from vmplace import held
from vmplace.apart import ANSWER, COUNT, HEAD, Process, end_all, raise_error
from vmplace.errors import VmplaceError
from vmplace.held import HeldError

Event = tuple[int, int, int]
"""Type and config (perf_event_open(2)), and the thread."""
Counted = tuple[int, int, int, int]
"""errno, value, ns that it was wanted, ns that it was counted."""
EVENT, COUNTED = struct.Struct("=IiQ"), struct.Struct("=qQQQ")
"""Type, thread, config; what is counted (native/apart_requests.h)."""
MOST_EVENTS = 128
KEYS = itertools.count(1)

_PROCESSES: dict[int, Process] = {}
"""By the key of their events."""


# A child must not talk to those of its parent.
os.register_at_fork(after_in_child=_PROCESSES.clear)


def count(pid: int, key: int, events: Iterable[Event]) -> tuple[bool, list[Counted]]:
    """Return whether a process counts since now only, and what each event of these threads of ``pid`` does.

    ``key`` (KEYS) stands for the events, and is used by one thread at a time.  Raises HeldError,
    VmplaceError; OSError if they are too many.
    """
    if held.holds(pid):
        raise HeldError
    asked = b"".join(EVENT.pack(kind, tid, config) for kind, config, tid in events)
    number_of_events = len(asked) // EVENT.size
    if number_of_events > MOST_EVENTS:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    if is_new := key not in _PROCESSES:
        _PROCESSES[key] = Process()
    request = HEAD.pack(COUNT, pid, number_of_events, 0) + asked
    try:
        answer = _PROCESSES[key].call(pid, request, ANSWER.size + number_of_events * COUNTED.size)
    except BaseException:
        _PROCESSES.pop(key).end()
        raise
    raise_error(*ANSWER.unpack_from(answer))
    return is_new, list(COUNTED.iter_unpack(answer[ANSWER.size :]))


def drop(pid: int, key: int) -> None:
    """Count these events no more; begun even if the process holds others up, and given up like all else."""
    if (process := _PROCESSES.pop(key, None)) is not None:
        # What cannot be closed ends with the process that has it.
        with contextlib.suppress(VmplaceError):
            process.finish(pid)


def close() -> None:
    """End the processes."""
    processes = list(_PROCESSES.values())
    _PROCESSES.clear()
    end_all(processes)
