"""What signals mean.  A hang-up: the terminal is gone, or the file is to be read again."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vmplace.agent.wakeup import Wakeup

CODE = """
import signal, sys
from vmplace.agent.wakeup import Wakeup
# These tests may run under nohup themselves.
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[2] == "nohup" else signal.SIG_DFL)
wakeup = Wakeup()
wakeup.reload_on_hangup()
log = open(sys.argv[1], "w", buffering=1)
print("ready", file=log)
while not wakeup.stopping:
    wakeup.wait(60)
    if wakeup.take_reload():
        print("reads", file=log)
print("stops", file=log)
"""


def started(path: Path, how: str) -> tuple[int, int]:
    """Return the pid of a process that waits on a terminal, and the terminal's other end."""
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, "-c", CODE, str(path), how])  # noqa: S606
    return pid, terminal


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so() and time.monotonic() < end:
        time.sleep(0.02)
    assert is_so()


@pytest.mark.parametrize("how", ["plain", "nohup"])
def test_the_terminals_hangup_ends_it_and_any_other_has_the_file_read(tmp_path: Path, how: str):
    path = tmp_path / "told"
    pid, terminal = started(path, how)
    until(lambda: path.exists() and path.read_text() == "ready\n")
    os.kill(pid, signal.SIGHUP)
    until(lambda: path.read_text() == "ready\nreads\n")
    os.close(terminal)
    last = "stops" if how == "plain" else "reads"
    until(lambda: path.read_text() == f"ready\nreads\n{last}\n")
    if how == "nohup":
        os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (0 if how == "plain" else -signal.SIGKILL)


@pytest.mark.parametrize(
    ("repeat_s", "after_s", "ends"),
    [(1.0, 0.0, False), (1.0, 0.9, False), (1.0, 1.0, True), (0.0, 0.0, True)],
)
def test_an_order_to_stop_that_a_supervisor_repeats_is_one_order(repeat_s: float, after_s: float, ends: bool):
    """A terminal, or systemctl kill, sends it to the agent and to its supervisor, which passes it on."""
    pid = os.fork()
    if not pid:
        now = [100.0]
        wakeup = Wakeup()
        wakeup.stop_on_signals(repeat_s, lambda: now[0])
        os.kill(os.getpid(), signal.SIGTERM)
        if not wakeup.stopping:
            os._exit(1)
        now[0] += after_s
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended == (-signal.SIGTERM if ends else 0)


def test_a_second_order_ends_an_agent_that_runs_no_python_code():
    """Such as one whose main thread waits in the kernel; a supervised one can still be killed."""
    code = (
        "import signal; from vmplace.agent.wakeup import Wakeup\n"
        "Wakeup().stop_on_signals(); signal.raise_signal(signal.SIGINT)\n"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
