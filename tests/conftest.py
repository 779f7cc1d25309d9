"""A test of the lab may take minutes: every half a minute a line says which one is waited for, and why.

Where several processes run the tests (pytest-xdist), the first of them tells, for all.
"""

import fcntl
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

EVERY_S = 30.0
KVM = Path("/dev/kvm")


class Waiting:
    """Tells on the real standard error, which pytest does not capture, what takes so long."""

    def __init__(self, fd: int, every_s: float = EVERY_S) -> None:
        """``fd``: where to write; it is this object's from now on."""
        self._fd, self._every_s = fd, every_s
        self._since: dict[str, float] = {}
        self._done, self._all = 0, 0
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)
        self._thread.start()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Remember how many there are."""
        self._all = len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Remember how many there are for all processes; each of them finds them all."""
        self._all = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._since[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """It is over."""
        self._since.pop(nodeid, None)
        self._done += 1

    def pytest_unconfigure(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()
        os.close(self._fd)

    def _tell(self) -> None:
        while not self._over.wait(self._every_s):
            now = time.monotonic()
            for test, since in list(self._since.items())[:1]:
                if (took_s := now - since) >= self._every_s:
                    passed = f"[{now - self._began:6.0f} s] {self._done} of {self._all} done"
                    os.write(self._fd, f"\n{passed}; {test}: {took_s:.0f} s{step_of_lab()}\n".encode())


def step_of_lab() -> str:
    """Return which of the lab's steps the test is in: which host it boots, say."""
    progress = sys.modules.get("lab.progress")
    step: str = progress.waited_for() if progress else ""
    return step and f"; {step}"


def pytest_configure(config: pytest.Config) -> None:
    """Begin to tell; capturing has not begun, or pauses, at this moment."""
    if hasattr(config, "workerinput"):
        return
    config.pluginmanager.register(Waiting(os.dup(2)), "waiting")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test that is marked with ``kvm`` see no guests but its own: others wait, in any process.

    Outside of the time that a test has, as others may take minutes.
    """
    if not item.get_closest_marker("kvm") or not os.access(KVM, os.R_OK | os.W_OK):
        return (yield)
    with KVM.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            return (yield)
        finally:
            # Closing it would not do where a process that was forked meanwhile has it, too.
            fcntl.flock(file, fcntl.LOCK_UN)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip such a test where there is no KVM."""
    if item.get_closest_marker("kvm") and not os.access(KVM, os.R_OK | os.W_OK):
        pytest.skip("no usable /dev/kvm")
