"""An agent is killed while one of its threads waits in a way that no kill ends: the next one takes over.

The thread read a process that ended meanwhile, and so it ends that process' memory map.  It waits for I/O to
a FUSE file whose server never answers (holder.c).
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.native.holders import NPAGES, PAGE, run_holder
from tests.unit.actuation.child_guest import child_guest
from tests.unit.nobody import needs_nobody
from vmplace.agent.lock import AgentLock
from vmplace.interfaces.client import NoAgentError, ask

pytestmark = needs_nobody
ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
TRIES = 5
"""It may have ended between two reads."""
WAITS, REAL = "tests.native.agent_that_waits", "tests.unit.interfaces.agent_process"
SUPERVISED = (
    "from vmplace.interfaces.supervisor import supervised; supervised();"
    f"import runpy; runpy.run_module('{WAITS}', run_name='__main__', alter_sys=True)"
)


@dataclass
class Waiting:
    """An agent, one thread of which waits in exit_aio; ``kept``: the read end of a pipe that it has open.

    ``process`` may be its supervisor.
    """

    process: "subprocess.Popen[str]"
    pid: int
    config: Path
    kept: int

    def end(self, number: signal.Signals) -> None:
        """Have it end as far as it can."""
        os.kill(self.pid, number)
        until(lambda: self.states() == ["D", "Z"])

    def states(self) -> list[str]:
        """Return what its threads do."""
        return sorted(state_of(path) for path in Path(f"/proc/{self.pid}/task").glob("*/stat"))

    def has_closed_all(self) -> bool:
        """Tell whether nobody has the pipe's other end open."""
        return bool(select.select([self.kept], [], [], 0)[0]) and not os.read(self.kept, 1)


def state_of(stat: Path) -> str:
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def socket_of(config: Path) -> Path:
    return config.parent / "run/control.sock"


def serves(config: Path) -> bool:
    try:
        return bool(ask("status", path=socket_of(config)))
    except NoAgentError:
        return False


@contextlib.contextmanager
def agent(config: Path, script: list[str], *words: object, fds: tuple[int, ...] = ()) -> Iterator[Any]:
    with child_guest(256) as child:
        about = [config, 1, 1, child.process.pid, child.hva]
        argv = [sys.executable, *script, *map(str, (*words, *about))]
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, pass_fds=fds) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "vmplace.toml"
    path.write_text(
        f'state_dir = "{tmp_path}/state"\nsocket = "{tmp_path}/run/control.sock"\nwindow_ms = 50\n'
        'numa_balancing = "leave"\n'
    )
    return path


@pytest.fixture
def waiting(program: Path, config: Path) -> Iterator[Waiting]:
    with agent_that_waits(program, config, ["-m", WAITS]) as one:
        yield one


@contextlib.contextmanager
def agent_that_waits(program: Path, config: Path, script: list[str]) -> Iterator[Waiting]:
    with contextlib.ExitStack() as stack:
        for _ in range(TRIES):
            holder = stack.enter_context(run_holder([program, "aio"]))
            kept, write_end = os.pipe()
            stack.callback(os.close, kept)
            try:
                asked = (holder.pid, holder.hva, NPAGES * PAGE)
                process = stack.enter_context(agent(config, script, *asked, fds=(write_end,)))
            finally:
                os.close(write_end)
            # The first to be done at the end: nothing else ends what waits for the server.
            stack.callback(os.kill, holder.server, signal.SIGKILL)
            assert process.stdout.readline() == "begun\n"
            until(lambda: serves(config))
            holder.process.kill()
            if process.stdout.readline() == "held\n":
                break
            process.kill()
            process.wait()
        pid = int(ask("status", path=socket_of(config))["pid"])
        until(lambda: "exit_aio" in stacks_of(pid))
        yield Waiting(process, pid, config, kept)


def stacks_of(pid: int) -> str:
    """Return where the kernel is in each thread."""
    return "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stack"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_the_next_agent_takes_over_from_one_that_was_killed_and_cannot_end(
    waiting: Waiting, number: signal.Signals
):
    """systemd's watchdog sends SIGABRT, and a crash is SIGSEGV: a core dump would wait for all threads."""
    assert not waiting.has_closed_all()
    waiting.end(number)
    assert waiting.has_closed_all()
    assert not serves(waiting.config)
    # Its pid is there all the time.
    os.kill(waiting.pid, 0)
    with agent(waiting.config, ["-m", REAL]):
        until(lambda: serves(waiting.config))
        assert waiting.states() == ["D", "Z"]


def test_an_agent_that_was_killed_and_cannot_end_has_no_lock(waiting: Waiting):
    waiting.end(signal.SIGKILL)
    lock = AgentLock(waiting.config.parent / "state/agent.lock")
    assert lock.take() == waiting.pid
    lock.release()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)], ids=["killed", "stopped"]
)
def test_systemd_learns_at_once_that_an_agent_has_ended_that_cannot_end(
    program: Path, config: Path, number: signal.Signals, status: int
):
    with agent_that_waits(program, config, ["-c", SUPERVISED]) as waiting:
        os.kill(waiting.pid if number == signal.SIGKILL else waiting.process.pid, number)
        assert waiting.process.wait(PATIENCE_S) == status
        assert waiting.states() == ["D", "Z"]
