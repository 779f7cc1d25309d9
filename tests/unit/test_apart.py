"""What an agent that was killed left behind is known by what the kernel tells of it, whatever it caches."""

import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.descriptors import descriptors
from tests.unit.nobody import NOBODY
from vmplace import apart, held, left_behind, native
from vmplace.actuation.batch import NativeKernel, move_batch
from vmplace.cpu_time import thread_delay_ns
from vmplace.errors import VmplaceError
from vmplace.held import HeldError
from vmplace.left_behind import GONE_S

GUEST = 99_999_999


def put(proc: Path, start_time: int, name: str = f"vmpmove {GUEST}") -> None:
    path = proc / "77"
    if path.exists():
        # The kernel gives the directory of a process another inode once it was out of its cache.
        path.rename(proc / "before")
        path.mkdir()
        shutil.rmtree(proc / "before")
    else:
        path.mkdir()
    (path / "comm").write_text(f"{name}\n")
    (path / "status").write_text(f"Uid:\t{' '.join([str(os.geteuid())] * 4)}\nNSpid:\t77\n")
    (path / "exe").symlink_to(native.APART)
    (path / "stat").write_text(f"77 ({name}) D 1 {' '.join(['0'] * 17)} {start_time} 0\n")


class Clock:
    """The machine's, and what a test skips of it."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skipped_s

    def skip(self, seconds: float) -> None:
        self.skipped_s += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """Forget what other tests left: who holds up again is left alone for longer each time."""
    clock = Clock()
    own = held.Held(clock=clock)
    for name in ("bounded", "holds", "probe", "await_end", "note_stuck"):
        monkeypatch.setattr(held, name, getattr(own, name))
    yield clock
    own.close()


def test_what_is_left_behind_counts_until_it_ends_though_its_inode_changes(tmp_path: Path, clock: Clock):
    put(tmp_path, 500)
    inode = (tmp_path / "77").stat().st_ino
    left_behind.note_left_behind(tmp_path, patience_s=0.0)
    put(tmp_path, 500)
    assert (tmp_path / "77").stat().st_ino != inode
    # A guest that let go is left alone for a second more.
    clock.skip(1.5)
    assert held.holds(GUEST)
    put(tmp_path, 501)
    assert not held.holds(GUEST)


def test_another_process_or_one_of_this_agents_own_is_not_left_behind(tmp_path: Path):
    put(tmp_path, 500, "bash")
    left_behind.note_left_behind(tmp_path)
    assert not held.holds(GUEST)
    put(tmp_path, 500)
    stat = tmp_path / "77/stat"
    stat.write_text(stat.read_text().replace("D 1 ", f"D {os.getpid()} "))
    left_behind.note_left_behind(tmp_path)
    assert not held.holds(GUEST)


@pytest.mark.parametrize(
    ("uids", "runs"), [("1 {0} {0} {0}", None), ("{0} {0} 1 {0}", None), ("{0} {0} {0} {0}", "/usr/bin/sudo")]
)
def test_one_that_acts_as_root_but_is_no_agents_is_not_left_behind(
    tmp_path: Path, uids: str, runs: str | None
):
    put(tmp_path, 500)
    (tmp_path / "77/status").write_text(f"Uid:\t{uids.format(os.geteuid())}\n")
    if runs:
        (tmp_path / "77/exe").unlink()
        (tmp_path / "77/exe").symlink_to(runs)
    left_behind.note_left_behind(tmp_path, patience_s=0.0)
    assert not held.holds(GUEST)


@dataclass
class Earlier:
    """What the process of an agent runs that was upgraded since."""

    mode: int = 0o755
    uid: int = -1
    group: str = Path("/proc/self/cgroup").read_text()
    name: str = native.APART.name
    is_left: bool = False


EARLIER = {
    "in another folder": Earlier(is_left=True),
    "deleted": Earlier(name=f"{native.APART.name} (deleted)", is_left=True),
    "another program": Earlier(name="sudo"),
    "setuid": Earlier(mode=0o4755),
    "a group writes it": Earlier(mode=0o775),
    "all write it": Earlier(mode=0o757),
    "a user's": Earlier(uid=NOBODY),
    "of a container": Earlier(group="0::/kubepods.slice/kubepods-pod1.slice\n"),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("earlier", EARLIER.values(), ids=EARLIER)
def test_the_program_of_an_agent_before_an_upgrade_is_known_by_what_no_user_can_have(
    tmp_path: Path, earlier: Earlier
):
    put(tmp_path, 500)
    program = tmp_path / earlier.name
    shutil.copy(native.APART, program)
    os.chown(program, earlier.uid, -1)
    program.chmod(earlier.mode)
    (tmp_path / "77/exe").unlink()
    (tmp_path / "77/exe").symlink_to(program)
    (tmp_path / "77/cgroup").write_text(earlier.group)
    left_behind.note_left_behind(tmp_path, patience_s=0.0)
    assert held.holds(GUEST) == earlier.is_left


@pytest.mark.parametrize(
    ("group", "pids", "is_left"),
    [(None, "77", True), (None, "77\t1", False), ("0::/kubepods.slice/kubepods-pod1.slice\n", "77", False)],
    ids=["of the agent", "of a container", "of another group"],
)
def test_one_that_waits_in_its_exit_and_has_no_program_any_more_is_known_by_its_group(
    tmp_path: Path, group: str | None, pids: str, is_left: bool
):
    put(tmp_path, 500)
    (tmp_path / "77/exe").unlink()
    (tmp_path / "77/cgroup").write_text(group or Path("/proc/self/cgroup").read_text())
    status = tmp_path / "77/status"
    status.write_text(status.read_text().replace("NSpid:\t77", f"NSpid:\t{pids}"))
    left_behind.note_left_behind(tmp_path, patience_s=0.0)
    assert held.holds(GUEST) == is_left


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads what must not be dumped")
def test_a_process_whose_program_was_replaced_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It really runs, as the child of a process that is gone; the package's file is replaced."""
    program = tmp_path / native.APART.name
    shutil.copy(native.APART, program)
    monkeypatch.setattr(native, "APART", program)
    ours, theirs = socket.socketpair()
    # Without "<&3", a shell gives what it starts in the background no stdin.
    script = 'exec 3<&0; "$1" <&3 >/dev/null & echo $!'
    with ours, theirs:
        command = ["sh", "-c", script, "sh", str(program)]
        pid = int(subprocess.run(command, stdin=theirs.fileno(), stdout=subprocess.PIPE, check=True).stdout)
        theirs.close()
        assert ours.recv(1) == apart.READY
        ours.sendall(apart.HEAD.pack(apart.COUNT, GUEST % 10**7, 0, 0))
        assert len(ours.recv(apart.ANSWER.size)) == apart.ANSWER.size
        shutil.copy(program, tmp_path / "new")
        (tmp_path / "new").replace(program)
        assert str(Path(f"/proc/{pid}/exe").readlink()).endswith(" (deleted)")
        left_behind.note_left_behind(patience_s=0.0)
        assert held.holds(GUEST % 10**7)


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/usr/bin/su").exists(), reason="needs root, and su(1)")
def test_a_users_su_that_waits_under_the_name_holds_up_nobody():
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    su = folder / f"vmpmove {GUEST}"
    su.symlink_to("/usr/bin/su")
    # Not a child of this process, as that would pass for its own.
    script = 'exec 3<&0; "$1" <&3 >/dev/null 2>&1 & echo $!'
    with subprocess.Popen(
        ["sh", "-c", script, "sh", su], user=65534, group=65534, extra_groups=(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as shell:  # fmt: skip
        assert shell.stdout and shell.stdin
        pid = int(shell.stdout.readline())
        try:
            until = time.monotonic() + 60
            comm = Path(f"/proc/{pid}/comm")
            while comm.read_text() != f"{su.name[:15]}\n" and time.monotonic() < until:
                time.sleep(0.01)
            # What it acts as, and what it is called, are what an agent's process has.
            assert (comm.parent.stat().st_uid, comm.read_text()) == (0, f"{su.name[:15]}\n")
            left_behind.note_left_behind(patience_s=0.0)
            assert not held.holds(int(su.name[:15].removeprefix("vmpmove ")))
        finally:
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder)


@pytest.mark.parametrize(("ends_s", "is_left"), [(0.3, False), (GONE_S - 0.1, False), (GONE_S + 0.1, True)])
def test_one_that_ends_a_moment_after_its_agent_was_killed_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_s: float, is_left: bool
):
    """It waits for no guest, but has not yet seen that its agent is gone."""
    put(tmp_path, 500)
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        if now_s >= ends_s:
            shutil.rmtree(tmp_path / "77")

    monkeypatch.setattr(left_behind, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))
    left_behind.note_left_behind(tmp_path)
    assert held.holds(GUEST) == is_left


def test_one_that_nobody_reaped_has_ended(tmp_path: Path):
    put(tmp_path, 500)
    stat = tmp_path / "77/stat"
    stat.write_text(stat.read_text().replace("D 1 ", "Z 1 "))
    left_behind.note_left_behind(tmp_path)
    assert not held.holds(GUEST)


def test_a_write_to_damon_that_was_left_behind_keeps_the_next_agent_from_another(
    tmp_path: Path, clock: Clock
):
    put(tmp_path, 500, "vmpmove damon")
    left_behind.note_left_behind(tmp_path, patience_s=0.0)
    with pytest.raises(HeldError):
        apart.write(tmp_path / "state", "off", patience_s=1.0)
    (tmp_path / "77/comm").unlink()
    shutil.rmtree(tmp_path / "77")
    clock.skip(1.5)
    assert not held.holds(apart.DAMON_KEY)


def names_of_children() -> list[str]:
    """Return the names of this process's children, of whatever thread."""
    names = []
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            with contextlib.suppress(OSError):
                names.append(Path(f"/proc/{pid}/comm").read_text())
    return names


def test_a_write_to_damon_that_waits_is_known_by_its_name(tmp_path: Path, clock: Clock):
    """A FIFO that nobody reads stands for a file of DAMON while its thread waits."""
    os.mkfifo(tmp_path / "state")
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(apart.write, tmp_path / "state", "off", patience_s=600.0)
        # It is killed once the patience is over: its name is there before that.
        while "vmpmove damon\n" not in (names := names_of_children()) and not writing.done():
            time.sleep(0.01)
        # Once: by a further skip, after the call is given up, the killed process would be found ended.
        clock.skip(601.0)
        with pytest.raises(HeldError):
            writing.result(timeout=60)
    assert held.holds(apart.DAMON_KEY)
    os.close(os.open(tmp_path / "state", os.O_RDONLY | os.O_NONBLOCK))
    clock.skip(1.5)
    until = time.monotonic() + 60
    while held.holds(apart.DAMON_KEY) and time.monotonic() < until:
        time.sleep(0.05)
    assert "vmpmove damon\n" in names
    assert not held.holds(apart.DAMON_KEY)
    apart.close()


def test_a_process_that_gets_its_pid_and_a_name_that_is_no_text_keeps_no_guest_from_being_asked(
    tmp_path: Path, clock: Clock
):
    put(tmp_path, 500)
    left_behind.note_left_behind(tmp_path, patience_s=0.0)
    assert held.holds(GUEST)
    stat = tmp_path / "77/stat"
    stat.write_bytes(stat.read_bytes().replace(b"(vmpmove", b"(\xff").replace(b" 500 0", b" 501 0"))
    assert not held.holds(os.getpid()) and not held.probe(os.getpid())
    clock.skip(1.5)
    assert not held.holds(GUEST)


def test_one_whose_stat_cannot_be_read_is_still_there(tmp_path: Path, clock: Clock):
    put(tmp_path, 500)
    left_behind.note_left_behind(tmp_path, patience_s=0.0)
    for said in (b"", b"77", b"77 (vmpmove 1) D 1 0", b"77 (vmpmove 1) D 1 " + b"x " * 40):
        (tmp_path / "77/stat").write_bytes(said)
        assert held.holds(GUEST) and not held.holds(os.getpid())
    shutil.rmtree(tmp_path / "77")
    clock.skip(1.5)
    assert not held.holds(GUEST)


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EACCES, errno.EAGAIN])
def test_that_the_process_does_not_start_is_no_word_of_the_kernels_on_a_node(
    monkeypatch: pytest.MonkeyPatch, number: int
):
    """fork(2) fails once; the answer of move_pages(2) would be the same number for a full node."""
    started, left = subprocess.Popen, [number]

    def popen(*args: Any, **kwargs: Any) -> Any:
        if left:
            raise OSError(left.pop(), os.strerror(number))
        return started(*args, **kwargs)

    apart.close()
    monkeypatch.setattr(subprocess, "Popen", popen)
    before = descriptors()
    with pytest.raises(VmplaceError, match="does not start: ") as reported:
        move_batch(NativeKernel(), os.getpid(), np.zeros(1, np.uint64), 0)
    assert reported.value.hint and descriptors() - before == set()


def test_a_program_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    apart.close()
    monkeypatch.setattr(native, "APART", tmp_path / native.APART.name)
    with pytest.raises(VmplaceError, match="No such file") as reported:
        apart.page_nids(os.getpid(), np.zeros(1, np.uint64), np.zeros(1, np.int32))
    assert reported.value.hint and native.APART.name in reported.value.hint


def test_a_program_with_other_formats_is_asked_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The package was upgraded, and the agent was not started again."""
    program = tmp_path / native.APART.name
    program.write_text("#!/bin/sh\nprintf r >&0\nexec cat >/dev/null\n")
    program.chmod(0o755)
    apart.close()
    monkeypatch.setattr(native, "APART", program)
    with pytest.raises(VmplaceError, match="does not start") as reported:
        apart.page_nids(os.getpid(), np.zeros(1, np.uint64), np.zeros(1, np.int32))
    assert reported.value.hint and "upgraded" in reported.value.hint


def test_what_a_call_waits_for_a_cpu_is_known():
    """Here another process keeps the one CPU that both may use."""
    cpus = os.sched_getaffinity(0)
    hva = np.zeros(1 << 14, np.uint64)
    hva[:] = hva.ctypes.data + np.arange(len(hva), dtype=np.uint64) * 8
    status = np.zeros(len(hva), np.int32)
    apart.close()
    os.sched_setaffinity(0, {min(cpus)})
    busy = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        before, end = thread_delay_ns(), time.monotonic() + 60
        while thread_delay_ns() < before + 20_000_000 and time.monotonic() < end:
            apart.page_nids(os.getpid(), hva, status)
        assert thread_delay_ns() >= before + 20_000_000
    finally:
        busy.kill()
        busy.wait()
        os.sched_setaffinity(0, cpus)
        apart.close()
