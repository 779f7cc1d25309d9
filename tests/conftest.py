"""A test of the lab may take minutes: every half a minute a line says which one is waited for, and why."""

import os
import sys
import threading
import time

import pytest

EVERY_S = 30.0


class Waiting:
    """Tells on the real standard error, which pytest does not capture, what takes so long."""

    def __init__(self, fd: int, every_s: float = EVERY_S) -> None:
        """``fd``: where to write; it is this object's from now on."""
        self._fd, self._every_s = fd, every_s
        self._test, self._since, self._done, self._all = "", 0.0, 0, 0
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)
        self._thread.start()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Remember how many there are."""
        self._all = len(session.items)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._test, self._since = nodeid, time.monotonic()

    def pytest_runtest_logfinish(self) -> None:
        """It is over."""
        self._test, self._done = "", self._done + 1

    def pytest_unconfigure(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()
        os.close(self._fd)

    def _tell(self) -> None:
        while not self._over.wait(self._every_s):
            test, now = self._test, time.monotonic()
            if test and (took_s := now - self._since) >= self._every_s:
                passed = f"[{now - self._began:6.0f} s] {self._done} of {self._all} done"
                os.write(self._fd, f"\n{passed}; {test}: {took_s:.0f} s{step_of_lab()}\n".encode())


def step_of_lab() -> str:
    """Return which of the lab's steps the test is in: which host it boots, say."""
    progress = sys.modules.get("lab.progress")
    step: str = progress.waited_for() if progress else ""
    return step and f"; {step}"


def pytest_configure(config: pytest.Config) -> None:
    """Begin to tell; capturing has not begun, or pauses, at this moment."""
    config.pluginmanager.register(Waiting(os.dup(2)), "waiting")
