"""One agent per host, and a killed one is noticed by the next."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.nobody import holds_for_nobody, needs_nobody
from vmplace.actuation.journal import Journal
from vmplace.agent.lock import AgentBusyError, AgentLock
from vmplace.errors import JournalError, VmplaceError

HOLDER = """
import sys, time
from pathlib import Path
from vmplace.agent.lock import AgentLock
AgentLock(Path(sys.argv[1])).take()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state/agent.lock"


def killed_pid(path: Path) -> int | None:
    """Return the pid of the killed agent that the next one finds; it ends cleanly after that."""
    lock = AgentLock(path)
    found = lock.take()
    lock.settled()
    lock.release()
    return found


@pytest.fixture
def holder(path: Path):
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout and child.stdout.readline() == b"held\n"
        yield child
        child.kill()


def test_a_second_agent_is_turned_away_with_the_pid_of_the_first(
    path: Path, holder: "subprocess.Popen[bytes]"
):
    with pytest.raises(AgentBusyError, match=f"pid {holder.pid}"):
        AgentLock(path).take()


def test_the_next_agent_knows_of_a_killed_one(path: Path, holder: "subprocess.Popen[bytes]"):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with AgentLock(path).borrowed():
        pass
    assert killed_pid(path) == holder.pid


def test_a_clean_end_leaves_nothing_to_report(path: Path):
    lock = AgentLock(path)
    assert lock.take() is None
    lock.release()
    assert killed_pid(path) is None


def test_an_agent_that_cannot_start_leaves_the_killed_ones_pid_for_the_next(
    path: Path, holder: "subprocess.Popen[bytes]"
):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    failing = AgentLock(path)
    assert failing.take() == holder.pid
    failing.release()
    following = AgentLock(path)
    assert following.take() == holder.pid
    following.settled()
    following.release()
    assert killed_pid(path) is None


def test_an_agent_killed_at_its_start_leaves_the_pid_of_the_one_before_it(
    path: Path, holder: "subprocess.Popen[bytes]"
):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    killed = HOLDER.replace("time.sleep(60)", "import os; os.kill(os.getpid(), 9)")
    subprocess.run([sys.executable, "-c", killed, str(path)], check=False)
    assert killed_pid(path) == holder.pid


FULL_DISK = """
import resource, sys
from pathlib import Path
from vmplace.agent.lock import AgentLock
from vmplace.errors import VmplaceError
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    AgentLock(Path(sys.argv[1])).take()
except VmplaceError as err:
    print(err)
"""


def test_a_full_disk_costs_the_killed_agents_pid_nothing(path: Path, holder: "subprocess.Popen[bytes]"):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    reported = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], stdout=subprocess.PIPE, check=True
    )
    assert b"cannot write" in reported.stdout
    assert killed_pid(path) == holder.pid


def test_a_symbolic_link_in_the_locks_place_is_not_followed(path: Path, tmp_path: Path):
    path.parent.mkdir()
    (tmp_path / "precious").write_text("precious")
    path.symlink_to(tmp_path / "precious")
    with pytest.raises(VmplaceError):
        AgentLock(path).take()
    assert (tmp_path / "precious").read_text() == "precious"


@needs_nobody
def test_who_may_not_take_it_is_denied_and_a_disk_that_root_cannot_write_is_a_failure(tmp_path: Path):
    tmp_path.chmod(0o755)

    def is_denied(path: Path = Path("lock")) -> bool:
        with pytest.raises(VmplaceError) as refused:
            AgentLock(path).take()
        return refused.value.code == "denied"

    with contextlib.chdir(tmp_path):
        assert holds_for_nobody(is_denied)
    (tmp_path / "file").touch()
    assert not is_denied(tmp_path / "file/lock")


@needs_nobody
def test_who_may_read_the_journal_and_not_write_it_is_denied(tmp_path: Path):
    tmp_path.chmod(0o755)
    Journal(tmp_path / "journal").close()

    def is_denied() -> bool:
        with pytest.raises(JournalError) as refused:
            Journal(Path("journal"))
        return refused.value.code == "denied"

    with contextlib.chdir(tmp_path):
        assert holds_for_nobody(is_denied)
