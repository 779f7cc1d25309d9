"""Is a host that stands still as it boots booted again, and is the last one waited for?  No emulator runs."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, cast

import pytest

from lab import emulated_host
from lab.emulated_host import BOOTS, LabHost
from lab.errors import LabError, LostTimersError
from lab.progress import Progress
from lab.standstill import SAID, STILL_S, Standstill

STALL = f"[   23.462167] rcu: rcu_sched kthread {SAID} for 2105 jiffies! g-1159 f0x0\n"


def come_up(failures: int) -> tuple[object, list[str]]:
    """Return what came up, and what became of each host, if so many lose their timers."""
    reported: list[str] = []

    @contextlib.contextmanager
    def host(patient: bool) -> Iterator[Any]:
        reported.append("patient" if patient else "boot")
        if not patient and len(reported) <= failures:
            raise LostTimersError("lost")
        yield len(reported)

    with contextlib.ExitStack() as stack:
        return emulated_host._come_up(stack, host, Progress()), reported


def test_a_host_with_its_timers_is_the_first() -> None:
    assert come_up(0) == (1, ["boot"])


def test_hosts_without_timers_are_booted_again() -> None:
    assert come_up(2) == (3, ["boot", "boot", "boot"])


def test_the_last_host_is_waited_for() -> None:
    assert come_up(BOOTS)[1][-1] == "patient"


class Waiting:
    """Stands for a host that says something on its console, and never becomes ready."""

    _stands_still = LabHost._stands_still

    def __init__(self, console: Any) -> None:
        self.console_log = console
        self.emulator_pid = os.getpid()

    def _port_is_open(self) -> bool:
        return False

    def _check_alive(self) -> None:
        pass


@pytest.mark.parametrize(
    ("said", "patient", "error"),
    [(STALL, False, LostTimersError), (STALL, True, LabError), ("", False, LabError)],
)
def test_lost_timers_are_distinguished_from_slowness(
    tmp_path: Any, said: str, patient: bool, error: type[LabError]
) -> None:
    (tmp_path / "console").write_text(said)
    with pytest.raises(LabError) as caught:
        LabHost._await_ready(cast(LabHost, Waiting(tmp_path / "console")), 0.1, patient=patient)
    assert type(caught.value) is error


def test_a_host_that_uses_no_cpu_time_for_a_while_stands_still() -> None:
    standstill, step = Standstill(since_s=100.0), STILL_S / 4
    # Busy, starved on a busy machine, and then quiet.
    used = [5.0, 7.5, 8.2, 9.0, 9.7, *[9.8] * 5]
    reported = [standstill.lasts(100.0 + step * number, cpu_s) for number, cpu_s in enumerate(used, 1)]
    assert reported == [False] * 9 + [True]
