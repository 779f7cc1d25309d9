"""Wake the loop from its waits, by signals and by orders."""

import os
import select
import signal
import time
from collections.abc import Callable
from types import FrameType

REPEAT_S = 1.0
"""A supervisor passes a signal on sooner than that."""


class Wakeup:
    """An eventfd that signal handlers and other threads may wake at any moment.

    threading.Event will not do: a handler that sets the event its own thread is about to wait for
    can deadlock on the event's lock.
    """

    _reload = False

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.stopping = False
        self.failure: str | None = None

    def wake(self) -> None:
        """Wake the waiter, now or at its next wait."""
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def stop(self) -> None:
        """Ask the loop to end; batches look at ``stopping`` between their calls."""
        self.stopping = True
        self.wake()

    def fail(self, reason: str) -> None:
        """Ask the loop to end because something that it cannot do without is gone."""
        self.failure = self.failure or reason
        self.stop()

    def wait(self, seconds: float) -> bool:
        """Sleep until woken, or for ``seconds``; return True if woken."""
        readable, _, _ = select.select([self._fd], [], [], max(0.0, seconds))
        if readable:
            os.eventfd_read(self._fd)
        return bool(readable)

    def sleep(self, seconds: float) -> None:
        """Sleep for all of ``seconds``, even if woken, unless asked to stop."""
        end = time.monotonic() + seconds
        while not self.stopping and (left := end - time.monotonic()) > 0:
            self.wait(left)

    def reload_on_hangup(self) -> None:
        """Ask on SIGHUP for the configuration to be read again: ``take_reload``.

        If the process has a controlling terminal, the hang-up asks it to end, as with any program; nohup(1)
        prevents that.
        """
        ends_with_it = has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            if ends_with_it and not has_terminal():
                self.stop()
                return
            self._reload = True
            self.wake()

        signal.signal(signal.SIGHUP, on_signal)

    @property
    def reloading(self) -> bool:
        """Tell whether the configuration should be read again."""
        return self._reload

    def take_reload(self) -> bool:
        """Tell the same, once."""
        asked, self._reload = self._reload, False
        return asked

    def stop_on_signals(self, repeat_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Stop on SIGTERM and SIGINT; a second one does what it does by default, unless it repeats the first.

        One repeats another that comes within ``repeat_s`` of it.  A terminal, or `systemctl kill`, sends one
        to all processes, and the agent's supervisor passes its own on.
        """
        first_s: dict[int, float] = {}

        def on_signal(number: int, _frame: FrameType | None) -> None:
            now = clock()
            is_second = now >= first_s.setdefault(number, now) + repeat_s
            if is_second:
                signal.signal(number, signal.SIG_DFL)
            if is_second and repeat_s:
                signal.raise_signal(number)
            self.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)

    def close(self) -> None:
        """Give the descriptor back."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def has_terminal() -> bool:
    """Tell whether this process has a controlling terminal; the kernel takes it away at a hang-up."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True
