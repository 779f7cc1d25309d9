"""What do a guest's threads count?  A process of its own asks the kernel, one that can be left behind.

To open a perf event of a thread, to read it and to close it take the lock of the thread's events, in a way
that not even a kill ends.  An ioctl(2) copies its argument with that lock held (6.12, kernel/events/core.c:
perf_event_ctx_lock, perf_ioctl).  So any process may keep it for ever, for its own threads, by an event of
its own and an argument on a page that never comes (held.py).

1. A process (native/apart_worker.c) has the events of several guests, TOGETHER at the most: an event takes
   1.3 KiB of the kernel's memory, and what is left behind keeps all that it has.  A guest with more than
   these has a process of its own.
2. A guest that holds one up has it left behind with all of its events.  Another one takes its place once it
   is wanted, where these are counted anew: the answer names the process that counts.
"""

import contextlib
import errno
import itertools
import os
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from vmplace import held
from vmplace.apart import ANSWER, COUNT, DROP, HEAD, Process, raise_error
from vmplace.errors import VmplaceError
from vmplace.held import HeldError

Event = tuple[int, int, int]
"""Type and config (perf_event_open(2)), and the thread."""
Counted = tuple[int, int, int, int]
"""errno, value, ns that it was wanted, ns that it was counted."""
EVENT, COUNTED = struct.Struct("=IiQ"), struct.Struct("=qQQQ")
"""Type, thread, config; what is counted (native/apart_requests.h)."""
TOGETHER, MOST_EVENTS = 128, 8192
KEYS = itertools.count(1)
_NUMBERS = itertools.count(1)
_LOCK = threading.Lock()


@dataclass
class Counting:
    """A process that counts, and how many events it has, by their key."""

    process: Process = field(default_factory=Process)
    events: dict[int, int] = field(default_factory=dict)

    def has_room(self, count: int) -> bool:
        """Tell whether the process may have so many more."""
        return sum(self.events.values()) + count <= TOGETHER


_PROCESSES: dict[int, Counting] = {}
"""By a number of its own."""


# A child must not talk to those of its parent.
os.register_at_fork(after_in_child=_PROCESSES.clear)


def count(pid: int, key: int, events: Iterable[Event]) -> tuple[int, list[Counted]]:
    """Return which process counts, and what each event of these threads of process ``pid`` does.

    ``key`` (KEYS) stands for the events.  Raises HeldError, VmplaceError; OSError if they are too many.
    """
    if held.holds(pid):
        raise HeldError
    asked = b"".join(EVENT.pack(kind, tid, config) for kind, config, tid in events)
    number_of_events = len(asked) // EVENT.size
    if number_of_events > MOST_EVENTS:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    request = HEAD.pack(COUNT, pid, number_of_events, 0, key) + asked
    with _LOCK:
        number = _counting(key, number_of_events)
        answer = _called(number, pid, request, ANSWER.size + number_of_events * COUNTED.size)
    raise_error(*ANSWER.unpack_from(answer))
    return number, list(COUNTED.iter_unpack(answer[ANSWER.size :]))


def drop(pid: int, key: int) -> None:
    """Count these events no more; begun even if the process holds others up, and given up like all else."""
    # What cannot be closed ends with the process that has it.
    with _LOCK, contextlib.suppress(VmplaceError):
        for number in [number for number, one in _PROCESSES.items() if key in one.events]:
            raise_error(*ANSWER.unpack(_called(number, pid, HEAD.pack(DROP, pid, 0, 0, key), ANSWER.size)))
            del _PROCESSES[number].events[key]
            if not _PROCESSES[number].events and len(_PROCESSES) > 1:
                _PROCESSES.pop(number).process.end()


def close() -> None:
    """End the processes."""
    with _LOCK:
        while _PROCESSES:
            _PROCESSES.popitem()[1].process.close()


def _counting(key: int, count: int) -> int:
    """Return the process that has these events, or is to have them."""
    having = (number for number, one in _PROCESSES.items() if key in one.events)
    having_room = (number for number, one in _PROCESSES.items() if one.has_room(count))
    number = next(itertools.chain(having, having_room), None)
    if number is None:
        _PROCESSES[number := next(_NUMBERS)] = Counting()
    _PROCESSES[number].events[key] = count
    return number


def _called(number: int, pid: int, request: bytes, answer_bytes: int) -> bytes:
    process = _PROCESSES[number].process
    try:
        return process.call(pid, request, answer_bytes)
    except BaseException:
        _PROCESSES.pop(number)
        process.end()
        raise
