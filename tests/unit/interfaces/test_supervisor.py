"""Between systemd and the agent: real processes, which end in all the ways that there are."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0
BEGIN = "import os, signal, sys, time\nfrom vmplace.interfaces.supervisor import supervised\nsupervised()\n"
# Not by print: the signal may come while another print is under way, and it would raise RuntimeError then.
ON_SIGNAL = """
def end(number, _frame):
    os.write(1, f"{signal.Signals(number).name}\\n".encode())
    sys.exit(7)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, end)
"""
WAIT = "print(os.getpid(), flush=True)\ntime.sleep(600)\n"


@contextlib.contextmanager
def supervised(script: str, **environ: str) -> Iterator[Any]:
    argv = [sys.executable, "-c", BEGIN + script]
    with subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environ
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_it_ends_with_the_agents_exit_code(code: int):
    with supervised(f"sys.exit({code})") as process:
        assert process.wait(PATIENCE_S) == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGTERM])
def test_it_ends_by_the_signal_that_ended_the_agent(number: signal.Signals):
    with supervised(WAIT) as process:
        os.kill(int(process.stdout.readline()), number)
        assert process.wait(PATIENCE_S) == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_agent(number: signal.Signals):
    with supervised(ON_SIGNAL + WAIT) as process:
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 7, process.stderr.read()
        assert process.stdout.read() == f"{number.name}\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_the_agent_ends_with_it(number: signal.Signals):
    """SIGABRT is how systemd's watchdog ends it."""
    with supervised(WAIT) as process:
        agent = os.pidfd_open(int(process.stdout.readline()))
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == -number
        assert select.select([agent], [], [], PATIENCE_S)[0]
        os.close(agent)


def test_the_watchdog_is_the_agents():
    with supervised("print(os.environ['WATCHDOG_PID'], os.getpid())", WATCHDOG_PID="1") as process:
        meant, agent = process.stdout.read().split()
        assert meant == agent != str(process.pid)


@pytest.mark.slow
def test_an_agent_that_is_stopped_for_a_while_has_not_ended():
    with supervised(WAIT) as process:
        agent = int(process.stdout.readline())
        os.kill(agent, signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(5)
        os.kill(agent, signal.SIGKILL)
        assert process.wait(PATIENCE_S) == -signal.SIGKILL


def test_it_waits_where_its_own_parent_ignores_children():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        argv = [sys.executable, "-c", BEGIN + "sys.exit(7)"]
        process = os.posix_spawn(
            sys.executable, argv, os.environ | {"PYTHONPATH": str(ROOT)}, file_actions=[]
        )
        read_end = os.pidfd_open(process)
        signal.signal(signal.SIGCHLD, before)
        assert select.select([read_end], [], [], PATIENCE_S)[0]
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7
        os.close(read_end)
    finally:
        signal.signal(signal.SIGCHLD, before)
