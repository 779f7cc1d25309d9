"""No test leaves the process that all of them share other than it found it."""

import gc
import os
import re
import resource
import signal
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tests.any_machine  # noqa: F401
from tests.unit.agent.agent_world import WAKEUPS
from tests.unit.descriptors import descriptors
from vmplace import apart

LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
# pytest-timeout sets SIGALRM, and takes it back as soon as a test fails.
SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM})
CLOSED_WITHIN_S = 30.0
LASTING = re.compile(r"^anon_inode:(?!\[eventpoll\])|^/(proc|sys|dev)/(?!.*/schedstat$)")
"""What is held by its number: no object gives it back once nobody has it any more, as sockets and files do.

A thread's schedstat belongs to the thread, which goes on."""

# What commands print into a pipe is as wide as it says; each test that wants it says it.
os.environ.pop("COLUMNS", None)


def process_state() -> Mapping[str, Any]:
    """Return what a command may change of its process, by name; the agent, for one, limits its memory."""
    status = Path("/proc/self/status").read_text()
    return {
        **{name: resource.getrlimit(which) for name, which in LIMITS.items()},
        **{f"signal {number}": signal.getsignal(number) for number in SIGNALS},
        "umask": next(line for line in status.split("\n") if line.startswith("Umask:")),
        "folder": Path.cwd(),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "CPUs": os.sched_getaffinity(0),
    }


def restore(before: Mapping[str, Any]) -> None:
    """Give the process back its limits and signal handlers."""
    now = process_state()
    for name, which in LIMITS.items():
        if now[name] != before[name]:
            resource.setrlimit(which, before[name])
    for number in SIGNALS:
        if now[f"signal {number}"] != before[f"signal {number}"]:
            signal.signal(number, before[f"signal {number}"])


@pytest.fixture(autouse=True)
def no_idle_process() -> Iterator[None]:
    """End idle processes of apart.py: tests of another worker would take one for a killed agent's."""
    yield
    apart.close()


@pytest.fixture(autouse=True)
def process_as_it_was() -> Iterator[None]:
    """Fail the test that changed the process, and keep all that come after it from the change."""
    before, opened = process_state(), descriptors()
    yield
    after = process_state()
    restore(before)
    assert {key: value for key, value in after.items() if value != before[key]} == {}
    assert left_open(opened) == set()


def left_open(before: Set[tuple[int, str]]) -> Set[tuple[int, str]]:
    """Return the lasting descriptors that are open since; a thread that ends may close its own late."""
    until = time.monotonic() + CLOSED_WITHIN_S
    while True:
        left = {(fd, target) for fd, target in descriptors() - before if LASTING.search(target)}
        if not left or time.monotonic() > until:
            return left
        gc.collect()
        time.sleep(0.01)


def pytest_collection_finish() -> None:
    """Spare each collection of garbage what lasts as long as the process: the tests themselves."""
    gc.collect()
    gc.freeze()


@contextmanager
def closed_worlds() -> Iterator[None]:
    """Close what wakes the agents of the worlds that were made since."""
    before = len(WAKEUPS)
    yield
    while len(WAKEUPS) > before:
        WAKEUPS.pop().close()


@pytest.fixture(autouse=True, scope="module")
def worlds_of_the_module() -> Iterator[None]:
    """Close those that a module's tests share."""
    with closed_worlds():
        yield


@pytest.fixture(autouse=True)
def worlds_of_the_test(process_as_it_was: None) -> Iterator[None]:
    """Close the test's own."""
    with closed_worlds():
        yield


@pytest.fixture
def own_process() -> Iterator[None]:
    """Let a test run commands here that are otherwise alone in their process, such as the agent."""
    before = process_state()
    yield
    restore(before)
