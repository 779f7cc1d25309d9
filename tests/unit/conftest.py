"""No test leaves the process that all of them share other than it found it."""

import os
import resource
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
# pytest-timeout sets SIGALRM, and takes it back as soon as a test fails.
SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM})

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
def process_as_it_was() -> Iterator[None]:
    """Fail the test that changed the process, and keep all that come after it from the change."""
    before = process_state()
    yield
    after = process_state()
    restore(before)
    assert {key: value for key, value in after.items() if value != before[key]} == {}


@pytest.fixture
def own_process() -> Iterator[None]:
    """Let a test run commands here that are otherwise alone in their process, such as the agent."""
    before = process_state()
    yield
    restore(before)
