"""Notify systemd that the loop goes on (sd_notify(3)).

Without a service manager, or with a unit that asks for no notification, nothing is sent.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping

IDLE_S = 60.0
"""How often a loop that nobody watches wakes from a long rest."""


class Heartbeat:
    """Tells the service manager that the loop is ready, alive, stopping; ``interval_s`` between beats."""

    def __init__(
        self,
        address: str | None = None,
        watchdog_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._is_watched = watchdog_s is not None
        self.interval_s = IDLE_S if watchdog_s is None else watchdog_s / 4
        self._clock = clock
        self._due = 0.0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Heartbeat":
        """Return the heartbeat that systemd asks this process for."""
        meant = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog_us = environ.get("WATCHDOG_USEC", "")
        watchdog_s = int(watchdog_us) / 1e6 if meant and watchdog_us.isdigit() and int(watchdog_us) else None
        return cls(environ.get("NOTIFY_SOCKET"), watchdog_s)

    def ready(self) -> None:
        """Say that the agent works."""
        self._tell("READY=1")

    def beat(self) -> None:
        """Say that the loop goes on, unless that was said a moment ago."""
        if self._is_watched and self._clock() >= self._due:
            self._due = self._clock() + self.interval_s
            self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """Say that the agent ends."""
        self._tell("STOPPING=1")

    def _tell(self, word: str) -> None:
        if not self._address:
            return
        # A name that begins with "@" is an abstract one.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        # A manager that restarts, or a full queue: the next beat comes soon enough.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(word.encode(), address)
