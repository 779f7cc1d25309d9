"""A user who keeps the lock of a process' mappings, for real (holder.c), stops nobody but himself.

It takes the lock in the middle of a step: while pages are read, moved, moved back.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.native.holders import NPAGES, PAGE, Holder, run_holder
from tests.unit.actuation.child_guest import child_guest, plan_of
from tests.unit.nobody import needs_nobody
from tests.unit.process_accesses import NEVER_WAITS
from vmplace import apart, held, left_behind, native
from vmplace.actuation.batch import NativeKernel, Status, read_nids
from vmplace.actuation.budget import Budget
from vmplace.actuation.identity import is_alive, read_identity
from vmplace.actuation.journal import Journal
from vmplace.actuation.mover import Mover
from vmplace.actuation.page_runs import encode_pages
from vmplace.actuation.undo import undo
from vmplace.apart import MOST_PAGES
from vmplace.errors import VmplaceError
from vmplace.held import HELD, Held, HeldError
from vmplace.held_limits import PROCESS_BYTES, STEP_BYTES, STEPS
from vmplace.left_behind import NAME
from vmplace.policy.plan import PlacementPlan
from vmplace.sampling.page_frames import CHUNK_PAGES, FrameReader
from vmplace.topology.domain_owner import reported_pids
from vmplace.topology.guests_kvm import KvmProcesses
from vmplace.topology.numad import find_numad
from vmplace.topology.procfs import read_command_line, read_smaps, read_thread_names
from vmplace.topology.vcpus import find_vcpu_tids

pytestmark = needs_nobody
PATIENCE_S = 30.0
"""Within so long a step ends that waits for a second, on a busy machine; holders hold for longer.

How long each may wait is tested with declared times in tests/unit/test_thread_waits.py."""


@pytest.fixture
def holder(program: Path) -> Iterator[Holder]:
    with run_holder([program]) as held_by:
        yield held_by


@pytest.fixture
def execs(program: Path) -> Iterator[Holder]:
    """One that waits in execve(2) for its own server; both end by themselves in a minute."""
    with run_holder([program, "exec"]) as held_by:
        assert not held.probe(held_by.pid)
        begin_exec(held_by)
        yield held_by


def begin_exec(holder: Holder) -> None:
    holder.tell(b"e")
    until = time.monotonic() + 60
    # The new mappings are there (the old ones have 64 MiB), and come after the lock is taken.
    while int(Path(f"/proc/{holder.pid}/statm").read_text().split()[0]) * PAGE > 32 << 20:
        assert time.monotonic() < until
        time.sleep(0.01)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@contextlib.contextmanager
def nothing_begun(pid: int) -> Iterator[None]:
    """Fail if a step is begun for the process: it would wait."""
    begun: list[int] = []

    def await_end(of: int, *args: Any, **words: Any) -> None:
        begun.append(of)
        Held.await_end(held._HELD, of, *args, **words)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(held._HELD, "await_end", await_end)
        patched.setattr(held, "await_end", await_end)
        yield
    assert pid not in begun


class HoldingKernel(NativeKernel):
    """The kernel, and a guest that takes the lock just before call number ``at`` of one kind."""

    def __init__(self, holder: Holder, *, asks: int = 0, moves: int = 0) -> None:
        self.holder, self.asks, self.moves = holder, asks, moves
        self.node = 0

    def page_nids(
        self, pid: int, hvas: "np.ndarray[tuple[int], np.dtype[np.uint64]]", status: Status
    ) -> None:
        if pid == self.holder.pid:
            self.asks -= 1
            if self.asks == 0:
                self.holder.hold()
        super().page_nids(pid, hvas, status)
        # This machine may have one node: what is on node 0 is said to be on this one.
        status[status == 0] = self.node

    def move_pages(
        self, pid: int, hvas: "np.ndarray[tuple[int], np.dtype[np.uint64]]", nids: Status, status: Status
    ) -> int:
        if pid == self.holder.pid:
            self.moves -= 1
            if self.moves == 0:
                self.holder.hold()
        return super().move_pages(pid, hvas, nids, status)


def test_a_read_that_is_held_up_ends_and_other_guests_are_read(holder: Holder):
    with child_guest(8) as other, contextlib.closing(FrameReader()) as frames:
        with frames.opened(holder.guest) as pagemap:
            assert np.count_nonzero(frames.read(pagemap, holder.guest.ram[0], 0, NPAGES).pfns) == NPAGES
            holder.hold()
            with within(PATIENCE_S), pytest.raises(HeldError):
                frames.read(pagemap, holder.guest.ram[0], 0, NPAGES)
        with nothing_begun(holder.pid):
            for read in (read_smaps, read_command_line):
                with pytest.raises(HeldError):
                    read(holder.pid)
            with pytest.raises(HeldError), frames.opened(holder.guest):
                pass
            assert held.probe(holder.pid) and not held.probe(other.guest.pid)
            with frames.opened(other.guest) as pagemap:
                assert np.count_nonzero(frames.read(pagemap, other.guest.ram[0], 0, 8).pfns) == 8
        holder.let_go()
        until = time.monotonic() + 60
        while held.probe(holder.pid) and time.monotonic() < until:
            time.sleep(0.05)
        with frames.opened(holder.guest) as pagemap:
            assert np.count_nonzero(frames.read(pagemap, holder.guest.ram[0], 0, NPAGES).pfns) == NPAGES


def ask_where(holder: Holder) -> Status:
    status = np.full(1, 99, np.int32)
    apart.page_nids(holder.pid, holder.hvas[:1], status)
    return status


@pytest.mark.parametrize("step", [lambda holder: read_smaps(holder.pid), ask_where], ids=["read", "asked"])
def test_guests_of_libvirt_that_all_hold_readers_up_leave_the_others_of_their_user_to_be_read(
    program: Path, tmp_path: Path, step: Callable[[Holder], object]
):
    """By default libvirt runs all guests as one user."""
    with contextlib.ExitStack() as stack:
        stack.callback(held.vouch, ())
        guests = [stack.enter_context(run_holder([program])) for _ in range(STEPS.most_of_one + 3)]
        *evil, good, others = guests
        for guest in (*evil, good):
            (tmp_path / f"{guest.pid}.pid").write_text(f"{guest.pid}\n")
        held.vouch(reported_pids(tmp_path))
        for guest in evil:
            guest.hold()
        with within(PATIENCE_S * len(evil)):
            for guest in evil:
                with pytest.raises(HeldError):
                    step(guest)
        assert step(good) is not None and step(others) is not None and not held.probe(good.pid)
        assert all(held.holds(guest.pid) for guest in evil)
        # Without libvirt's word, the user has no more than his share.
        held.vouch(())
        with pytest.raises(HeldError):
            step(others)
        for guest in evil:
            guest.let_go()


def resident_bytes(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


@pytest.mark.parametrize("kind", ["cmdline", "smaps", "pagemap"])
def test_a_step_that_is_left_behind_takes_no_more_memory_than_is_counted_for_it(
    holder: Holder, kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(held, "WAIT_S", 0.1)
    count, kernel_bytes = 8, 64 << 10
    with contextlib.closing(FrameReader()) as frames, frames.opened(holder.guest) as pagemap:
        # As if a large guest had been read with it: all of it is there.
        arrays = iter([np.ones(CHUNK_PAGES, np.uint64) for _ in range(count)])
        steps: dict[str, Callable[[int], object]] = {
            "cmdline": lambda _: Path(f"/proc/{holder.pid}/cmdline").read_bytes(),
            "smaps": lambda _: Path(f"/proc/{holder.pid}/smaps").read_bytes(),
            "pagemap": lambda own: native.read_pagemap(own, holder.guest.ram[0].hva, next(arrays)),
        }
        readers = [Held() for _ in range(count)]
        holder.hold()
        before = resident_bytes()
        for reader in readers:
            with pytest.raises(HeldError):
                reader.bounded_on(holder.pid, pagemap, steps[kind])
        array_bytes = 8 * CHUNK_PAGES if kind == "pagemap" else 0
        taken_bytes = (resident_bytes() - before) / count + array_bytes + kernel_bytes
        assert all(reader.holds(holder.pid) for reader in readers)
        assert taken_bytes <= STEP_BYTES
        holder.let_go()
        # The descriptor that they read is still theirs.
        until = time.monotonic() + 60
        while any(one.stuck_count() for reader in readers for one in reader._processes.values()):
            assert time.monotonic() < until
            time.sleep(0.05)


def test_a_process_that_is_left_behind_takes_no_more_memory_than_is_counted_for_it(holder: Holder):
    """Its own pages and page tables, its stack in the kernel, and what else the kernel has of it."""
    kernel_bytes = 64 << 10
    hvas = np.resize(holder.hvas, MOST_PAGES)
    holder.hold()
    with pytest.raises(HeldError):
        apart.page_nids(holder.pid, hvas, np.zeros(MOST_PAGES, np.int32))
    (pid,) = left_for(holder)
    assert 0 < own_bytes(pid) + kernel_bytes <= PROCESS_BYTES


def own_bytes(pid: int) -> int:
    """Return what the process shares with no other one, and its page tables."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text() + Path(f"/proc/{pid}/status").read_text()
    kib = {line.split()[0]: line.split()[1] for line in rollup.splitlines() if line.endswith(" kB")}
    return sum(int(kib[name]) << 10 for name in ("Private_Clean:", "Private_Dirty:", "VmPTE:"))


def left_for(holder: Holder) -> list[int]:
    names = Path("/proc").glob("[0-9]*/comm")
    return [int(name.parent.name) for name in names if is_left_for(name, holder)]


def is_left_for(comm: Path, holder: Holder) -> bool:
    with contextlib.suppress(OSError):
        return comm.read_text() == f"{NAME}{holder.pid}\n"
    return False


@pytest.mark.parametrize("when", [{"asks": 1}, {"moves": 1}], ids=["asked where it is", "moved"])
def test_a_move_that_is_held_up_ends_with_its_record_and_others_move(
    holder: Holder, tmp_path: Path, when: dict[str, int]
):
    kernel = HoldingKernel(holder, **when)
    kernel.node = 1
    with child_guest(8) as other, Journal(tmp_path / "journal") as journal:
        guests = {"evil": replace(holder.guest, name="evil"), "good": replace(other.guest, name="good")}
        plan = plan_of(holder.guest.ram[0].hva, NPAGES, 0, guest="evil")
        plan = PlacementPlan(plan.moves + plan_of(other.hva, 8, 0, guest="good").moves)
        mover = Mover(journal, Budget(None), kernel=kernel)
        with within(PATIENCE_S):
            result = mover.apply(plan, guests)
        assert [line for line in result.failures if HELD in line] == [f"guest evil: {HELD}"]
        assert {outcome.guest: outcome.moved for outcome in result.outcomes} == {"evil": 0, "good": 8}
        recorded = {one.identity.pid: one.pages.total_pages for one in journal.contents().guests.values()}
        # Nothing moves without a record: what was begun has one, though nobody knows what became of it.
        assert recorded.get(holder.pid, 0) == (NPAGES if "moves" in when else 0)
        with nothing_begun(holder.pid):
            undone = undo(journal, kernel=kernel, guests=(read_identity(holder.guest),))
            assert not undone.is_complete or "asks" in when
        assert sum(one.identity.pid == holder.pid for one in journal.contents().guests.values()) == len(
            [pid for pid in recorded if pid == holder.pid]
        )


def test_an_undo_that_is_held_up_ends_with_its_record_and_others_are_undone(holder: Holder, tmp_path: Path):
    kernel = HoldingKernel(holder, asks=1)
    with child_guest(8) as other, Journal(tmp_path / "journal") as journal:
        for guest, name in ((holder.guest, "evil"), (other.guest, "good")):
            hvas = guest.ram[0].hva + np.arange(8, dtype=np.uint64) * np.uint64(PAGE)
            runs = encode_pages(hvas, np.ones(8, np.int32), np.full(8, 0, np.int16))
            identity = read_identity(replace(guest, name=name))
            journal.record_pages(
                identity, runs, encode_pages(hvas, np.ones(8, np.int32), np.ones(8, np.int16))
            )
        with within(PATIENCE_S):
            result = undo(journal, kernel=kernel)
        assert result.failures == (f"guest evil: {HELD}",)
        assert [one.identity.name for one in journal.contents().guests.values()] == ["evil"]
        holder.let_go()
        until = time.monotonic() + 60
        while held.holds(holder.pid) and time.monotonic() < until:
            time.sleep(0.05)
        assert undo(journal).is_complete
        assert not journal.contents().guests


def test_a_process_that_ends_leaves_a_move_behind_which_the_next_one_waits_for(holder: Holder):
    """A kill ends neither move_pages(2) nor a process with a thread in it: it must not be the agent."""
    script = (
        "import sys, numpy as np\nfrom vmplace import apart\n"
        "from vmplace.held import HeldError\n"
        "pid, hvas = int(sys.argv[1]), np.array([int(sys.argv[2])], np.uint64)\n"
        "try: apart.page_nids(pid, hvas, np.zeros(1, np.int32))\n"
        "except HeldError: print('held')\n"
    )
    holder.hold()
    with within(2 * PATIENCE_S):
        asked = [sys.executable, "-c", script, str(holder.pid), str(holder.guest.ram[0].hva)]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.returncode) == ("held\n", 0)
    assert not held.holds(holder.pid)
    left_behind.note_left_behind()
    assert held.holds(holder.pid)
    with pytest.raises(HeldError):
        NativeKernel().page_nids(holder.pid, holder.hvas, np.zeros(NPAGES, np.int32))
    holder.let_go()
    until = time.monotonic() + 60
    while held.holds(holder.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert set(read_nids(NativeKernel(), holder.pid, holder.hvas).tolist()) <= set(range(64))


def unbounded_calls(pid: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what the agent does of a process without a bound, each in words."""
    for call, name in NEVER_WAITS:
        path = f"/proc/{pid}/{name.replace('*', str(pid))}".rstrip("/")
        calls: dict[str, Callable[[], object]] = {
            "open": Path(path).read_bytes,
            "stat": Path(path).stat,
            "listdir": partial(os.listdir, path),
            "sched_getaffinity": partial(os.sched_getaffinity, pid),
            "sched_setaffinity": partial(os.sched_setaffinity, pid, os.sched_getaffinity(0)),
        }
        yield f"{call} {path}", calls[call]


def assert_nothing_waits(pid: int) -> None:
    for what, call in unbounded_calls(pid):
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), what


@pytest.mark.parametrize("command", [b"h", b"p"], ids=["mappings", "events"])
def test_what_is_done_without_a_bound_waits_for_no_lock_of_a_process(holder: Holder, command: bytes):
    holder.tell(command)
    assert_nothing_waits(holder.pid)


def test_what_is_done_without_a_bound_waits_for_no_process_in_exec(execs: Holder):
    assert_nothing_waits(execs.pid)


DESCRIPTORS = {9: "anon_inode:kvm-vm", 10: "anon_inode:kvm-vcpu:0"}


def test_what_a_thread_of_a_process_does_is_not_waited_for_while_it_waits_in_exec(
    execs: Holder, tmp_path: Path
):
    threads = read_thread_names(execs.pid)
    reported = tmp_path / f"kvm/{execs.pid}-9/vcpu0/pid"
    reported.parent.mkdir(parents=True)
    reported.write_text(f"{execs.pid}\n")
    with nothing_begun(execs.pid):
        # Who knows it from KVM does not ask the thread.
        assert find_vcpu_tids(execs.pid, DESCRIPTORS, threads, debugfs=tmp_path) == {0: execs.pid}
    with within(PATIENCE_S), pytest.raises(HeldError):
        find_vcpu_tids(execs.pid, DESCRIPTORS, threads, debugfs=tmp_path / "none")
    with nothing_begun(execs.pid), pytest.raises(HeldError):
        find_vcpu_tids(execs.pid, DESCRIPTORS, threads, debugfs=tmp_path / "none")


def test_a_look_at_all_processes_and_at_one_end_though_it_waits_in_exec(execs: Holder, tmp_path: Path):
    """Linux 6.18.44 takes the lock for stat and for the links of descriptors, too."""
    with within(PATIENCE_S):
        KvmProcesses().find()
    with within(PATIENCE_S), contextlib.suppress(HeldError):
        is_alive(read_identity(execs.guest))
    with within(PATIENCE_S), Journal(tmp_path / "journal") as journal:
        runs = encode_pages(execs.hvas[:1], np.ones(1, np.int32), np.zeros(1, np.int16))
        journal.record_pages(read_identity(execs.guest), runs, runs)
        journal.contents().pruned()


def test_a_process_that_waits_in_exec_is_known_to_hold_readers_up(execs: Holder):
    with within(PATIENCE_S):
        assert held.probe(execs.pid)
        assert not held.probe(os.getpid())


@pytest.mark.parametrize("name", ["vmpmove 1", "numad"])
def test_no_name_has_the_agent_read_which_program_a_user_waits_to_run(program: Path, name: str):
    """Linux 6.18.44 takes the lock for the link "exe", too."""
    named = program.with_name(name)
    shutil.copy(program, named)
    with run_holder([named, "exec"]) as execs:
        begin_exec(execs)
        assert Path(f"/proc/{execs.pid}/comm").read_text() == f"{name}\n"
        with within(PATIENCE_S):
            found = find_numad()
        # A real one may run on the machine of the tests.
        assert found is None or found.pid != execs.pid
        with within(PATIENCE_S + left_behind.GONE_S):
            left_behind.note_left_behind()
        assert not held.holds(1)


def test_a_user_who_gets_the_pid_of_what_was_left_behind_holds_up_nobody(execs: Holder):
    has_ended = left_behind._ended(Path(f"/proc/{execs.pid}"), start_time=1)
    with within(PATIENCE_S):
        assert has_ended()


def test_calls_made_apart_are_the_kernels_own(tmp_path: Path):
    with child_guest(16, touched=8) as child:
        hvas = child.hva + np.arange(16, dtype=np.uint64) * np.uint64(PAGE)
        status, own = np.full(16, 77, np.int32), np.full(16, 77, np.int32)
        apart.page_nids(child.guest.pid, hvas, status)
        native.page_nids(child.guest.pid, hvas, own)
        assert status.tolist() == own.tolist() and len(set(own.tolist())) == 2
        assert apart.move_pages(child.guest.pid, hvas[:8], own[:8].copy(), status[:8]) > 0
        assert status[:8].tolist() == own[:8].tolist()
        child.kill()
        with pytest.raises(ProcessLookupError):
            apart.page_nids(child.guest.pid, hvas, status)
    (tmp_path / "there").touch()
    apart.write(tmp_path / "there", "text", patience_s=1.0)
    assert (tmp_path / "there").read_text() == "text"
    with pytest.raises(FileNotFoundError):
        apart.write(tmp_path / "absent", "text", patience_s=1.0)
    apart.close()


def test_a_process_that_makes_calls_and_dies_is_replaced():
    with child_guest(2) as child:
        hvas, status = np.array([child.hva], np.uint64), np.zeros(1, np.int32)
        apart.page_nids(child.guest.pid, hvas, status)
        (process,) = apart._IDLE
        process._process.kill()
        with pytest.raises(VmplaceError, match="the process that moves pages ended"):
            apart.page_nids(child.guest.pid, hvas, status)
        apart.page_nids(child.guest.pid, hvas, status)
        assert status[0] >= 0
    apart.close()
