"""Close files that clients sent to the control socket, without waiting for them.

A client may send descriptors with a message (SCM_RIGHTS, unix(7)) and close its own.  Whoever then closes the
last descriptor waits for the file, perhaps for ever: a TCP socket with SO_LINGER waits for its peer, a lock
on a FUSE file for the file's server.

1. From Linux 6.16 on, the socket accepts no descriptors (control_place.py).
2. Before, a thread for each user closes that user's sockets and files.

Limits: behind a file that never closes, that user's other files stay open.  A user who may look has
MOST_UNCLOSED at once and one more in CLOGGED_S.  Once these are half of the descriptors that the agent may
have, the common socket takes no connections (control.py): the other half is the agent's, and root's answers.
"""

import contextlib
import os
import resource
import threading
from collections import deque

MOST_FILES = 253
"""SCM_MAX_FD: so many come with a message at the most."""
MOST_UNCLOSED = 64
CLOGGED_S = 0.05


class Closers:
    """Threads that close, one for each user who has something to be closed.  For all threads."""

    def __init__(self, *, apart: bool = True) -> None:
        """Without ``apart`` each is closed at once: nobody can have sent a file."""
        self._apart = apart
        self._most_of_all = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._lock = threading.Lock()
        self._waiting: dict[int, deque[int]] = {}
        self._working: set[int] = set()

    def close(self, uid: int, *fds: int) -> None:
        """Have a user's descriptors closed, without waiting."""
        if not self._apart:
            _close(*fds)
            return
        with self._lock:
            self._waiting.setdefault(uid, deque()).extend(fds)
            if uid in self._working:
                return
            # Without a thread they wait for the next call.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._run, args=(uid,), name="closing", daemon=True).start()
                self._working.add(uid)

    def are_clogged(self, uid: int) -> bool:
        """Tell whether too many descriptors of a user wait to be closed."""
        with self._lock:
            return len(self._waiting.get(uid, ())) >= MOST_UNCLOSED

    def are_full(self) -> bool:
        """Tell whether so many descriptors of all users wait that no more should be taken."""
        with self._lock:
            return sum(map(len, self._waiting.values())) >= self._most_of_all

    def _run(self, uid: int) -> None:
        while (fd := self._taken(uid)) is not None:
            _close(fd)

    def _taken(self, uid: int) -> int | None:
        with self._lock:
            if waiting := self._waiting[uid]:
                return waiting.popleft()
            del self._waiting[uid]
            self._working.discard(uid)
            return None


def _close(*fds: int) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
