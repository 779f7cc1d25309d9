import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.actuation.child_guest import child_guest, guest_of, plan_of
from tests.unit.actuation.fake_kernel import HUGE, PAGE, FakeKernel
from vmplace.actuation.budget import Budget
from vmplace.actuation.identity import read_identity
from vmplace.actuation.journal import Journal, read_journal
from vmplace.actuation.mover import Mover
from vmplace.actuation.page_runs import encode_pages
from vmplace.actuation.pinner import Pinner
from vmplace.actuation.undo import undo
from vmplace.agent.undo_lines import undo_lines

BASE = 1 << 32


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal") as opened:
        yield opened


def mixed_ram(npages: int) -> FakeKernel:
    noise = np.random.default_rng(1)
    kernel = FakeKernel({BASE + i * PAGE: int(noise.integers(4)) for i in range(npages)})
    for block in range(BASE, BASE + npages * PAGE, 4 * HUGE):
        kernel.huge.add(block)
        kernel.nid_of |= dict.fromkeys(range(block, block + HUGE, PAGE), 3)
    return kernel


def scatter(journal: Journal, kernel: FakeKernel, npages: int) -> None:
    mover = Mover(journal, Budget(None), kernel=kernel)
    for nid in (1, 2):
        mover.apply(plan_of(BASE, npages, nid), {"db1": guest_of(os.getpid(), BASE, npages)})


def test_every_page_goes_back_to_where_it_was_first(journal: Journal):
    kernel = mixed_ram(8192)
    before = dict(kernel.nid_of)
    scatter(journal, kernel, 8192)
    result = undo(journal, kernel=kernel)
    assert kernel.nid_of == before
    assert result.is_complete and result.guests[0].restored > 4000


def test_undo_twice_is_undo_once(journal: Journal):
    kernel = mixed_ram(2048)
    scatter(journal, kernel, 2048)
    undo(journal, kernel=kernel)
    calls = len(kernel.calls)
    assert undo(journal, kernel=kernel).guests == ()
    assert len(kernel.calls) == calls


def test_an_undo_leaves_no_thread_behind(journal: Journal):
    kernel = mixed_ram(64)
    scatter(journal, kernel, 64)
    before = set(threading.enumerate())
    undo(journal, kernel=kernel)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert set(threading.enumerate()) <= before


def test_pages_that_were_journaled_but_not_moved_are_at_home(journal: Journal):
    kernel = FakeKernel({BASE + i * PAGE: 0 for i in range(4096)})

    def killed(call: int) -> None:
        if call == 4:
            raise KeyboardInterrupt

    kernel.before_call = killed
    with pytest.raises(KeyboardInterrupt):
        scatter(journal, kernel, 4096)
    kernel.before_call = lambda call: None
    moved = sum(nid == 1 for nid in kernel.nid_of.values())
    result = undo(journal, kernel=kernel).guests[0]
    assert 0 < result.restored == moved
    assert result.at_home == 4096 - moved


def test_undo_that_was_killed_in_the_middle_is_run_again(journal: Journal):
    kernel = mixed_ram(4096)
    before = dict(kernel.nid_of)
    scatter(journal, kernel, 4096)
    calls = len(kernel.calls)

    def killed(call: int) -> None:
        if call == calls + 5:
            raise KeyboardInterrupt

    kernel.before_call = killed
    with pytest.raises(KeyboardInterrupt):
        undo(journal, kernel=kernel)
    assert kernel.nid_of != before
    undo(journal, kernel=kernel)
    assert kernel.nid_of == before


def test_pages_that_will_not_go_back_are_reported_and_kept(journal: Journal):
    kernel = FakeKernel({BASE + i * PAGE: 0 for i in range(64)})
    scatter(journal, kernel, 64)
    kernel.held = {BASE, BASE + 9 * PAGE}
    result = undo(journal, kernel=kernel)
    assert (result.guests[0].restored, dict(result.guests[0].stuck)) == (62, {"EBUSY": 2})
    assert not result.is_complete
    kernel.held = set()
    assert undo(journal, kernel=kernel).guests[0].restored == 2


def test_a_guest_that_ended_has_nothing_to_undo(journal: Journal, tmp_path: Path):
    with child_guest(8) as child:
        Pinner(journal).pin(child.guest, child.guest.vcpus[0], {0})
        child.kill()
        result = undo(journal)
    assert result.ended == ("db1",) and result.is_complete
    # It is reported once.
    assert undo(journal).ended == ()


def test_only_the_named_guest_is_undone(journal: Journal, tmp_path: Path):
    kernel = FakeKernel({BASE + i * PAGE: 0 for i in range(8)})
    scatter(journal, kernel, 8)
    assert undo(journal, kernel=kernel, guests=()).guests == ()
    assert len(read_journal(tmp_path / "journal").guests) == 1


def test_an_undo_tells_of_what_the_journal_does_not_say_any_more(tmp_path: Path):
    path, kernel = tmp_path / "damaged", mixed_ram(1024)
    with Journal(path) as journal:
        scatter(journal, kernel, 1024)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with Journal(path) as journal:
        lines = undo_lines(undo(journal, kernel=kernel))
    assert any("in the journal, bytes" in line and "damaged" in line for line in lines)
    with Journal(tmp_path / "sound") as journal:
        scatter(journal, kernel, 1024)
        assert not any("journal" in line for line in undo_lines(undo(journal, kernel=kernel)))


def test_an_undo_that_is_stopped_goes_on_the_next_time(journal: Journal):
    kernel = mixed_ram(4096)
    before = dict(kernel.nid_of)
    scatter(journal, kernel, 4096)
    calls = len(kernel.calls)
    stopped = undo(journal, kernel=kernel, stop=lambda: len(kernel.calls) > calls + 3)
    assert len(kernel.calls) <= calls + 5 and not stopped.is_complete
    assert kernel.nid_of != before
    assert undo(journal, kernel=kernel).is_complete and kernel.nid_of == before


def test_an_undo_asks_for_its_budget_before_each_call(journal: Journal):
    kernel = FakeKernel({BASE + i * PAGE: 0 for i in range(4096)})
    scatter(journal, kernel, 4096)
    asked: list[int] = []

    class Granted:
        def wait(self, size_bytes: int) -> int:
            asked.append(size_bytes)
            return size_bytes if sum(asked) <= 8 << 20 else 0

        def refund(self, size_bytes: int) -> None:
            asked.append(-size_bytes)

    result = undo(journal, kernel=kernel, allowance=Granted())
    assert 0 < result.guests[0].restored * PAGE <= 8 << 20
    assert not result.is_complete


def test_an_undo_leaves_room_on_a_node_and_goes_on_once_there_is_more(journal: Journal):
    """Guests came since, and fill the node that these pages were on."""
    kernel = FakeKernel({BASE + i * PAGE: i % 2 * 3 for i in range(64)})
    scatter(journal, kernel, 64)
    free = {0: 10 * PAGE, 3: 64 * PAGE}
    room = lambda nid: free[nid] - list(kernel.nid_of.values()).count(nid) * PAGE  # noqa: E731
    (line,) = undo_lines(result := undo(journal, kernel=kernel, room=room))
    assert not result.is_complete and "22 pages would not move (no room on node 0: free memory" in line
    assert [list(kernel.nid_of.values()).count(nid) for nid in (0, 2, 3)] == [10, 22, 32]
    free[0] = 64 * PAGE
    assert undo(journal, kernel=kernel, room=room).is_complete
    assert kernel.nid_of == {BASE + i * PAGE: i % 2 * 3 for i in range(64)}


def moved_on(journal: Journal, kernel: FakeKernel, pages: range, nid: int) -> dict[int, int]:
    """Let vmplace move 64 pages from node 0 to node 1, and somebody else some of them on."""
    apply_to(journal, kernel, 1)
    kernel.nid_of |= {BASE + page * PAGE: nid for page in pages}
    return dict(kernel.nid_of)


def apply_to(journal: Journal, kernel: FakeKernel, nid: int, npages: int = 64) -> None:
    guests = {"db1": guest_of(os.getpid(), BASE, npages)}
    Mover(journal, Budget(None), kernel=kernel).apply(plan_of(BASE, npages, nid), guests)


@pytest.fixture
def small_ram() -> FakeKernel:
    return FakeKernel({BASE + i * PAGE: 0 for i in range(64)})


def test_pages_that_somebody_else_moved_on_stay_there(journal: Journal, small_ram: FakeKernel):
    left = moved_on(journal, small_ram, range(16), 3)
    result = undo(journal, kernel=small_ram)
    assert small_ram.nid_of == {hva: nid if nid == 3 else 0 for hva, nid in left.items()}
    assert (result.guests[0].restored, result.guests[0].others_pages) == (48, 16)
    assert result.is_complete and undo(journal, kernel=small_ram).guests == ()


def test_pages_that_vmplace_moves_after_somebody_else_go_back_to_where_those_were(
    journal: Journal, small_ram: FakeKernel
):
    left = moved_on(journal, small_ram, range(16), 3)
    apply_to(journal, small_ram, 2)
    assert set(small_ram.nid_of.values()) == {2}
    assert undo(journal, kernel=small_ram).guests[0].restored == 64
    assert small_ram.nid_of == {hva: nid if nid == 3 else 0 for hva, nid in left.items()}


@pytest.mark.parametrize("compacts", [False, True])
def test_moves_that_failed_leave_pages_that_are_undone(
    journal: Journal, small_ram: FakeKernel, compacts: bool
):
    apply_to(journal, small_ram, 1)
    small_ram.held = set(small_ram.nid_of)
    apply_to(journal, small_ram, 2)
    apply_to(journal, small_ram, 3)
    assert set(small_ram.nid_of.values()) == {1}
    small_ram.held = set()
    if compacts:
        journal.compact()
    undo(journal, kernel=small_ram)
    assert set(small_ram.nid_of.values()) == {0}


def test_what_others_moved_is_known_after_a_compaction_and_an_undo_in_two_parts(
    journal: Journal, small_ram: FakeKernel
):
    left = moved_on(journal, small_ram, range(16), 3)
    journal.compact()
    small_ram.held = {BASE + 20 * PAGE, BASE + 21 * PAGE}
    assert dict(undo(journal, kernel=small_ram).guests[0].stuck) == {"EBUSY": 2}
    small_ram.held, small_ram.nid_of[BASE + 20 * PAGE] = set(), 2
    journal.compact()
    result = undo(journal, kernel=small_ram).guests[0]
    assert (result.restored, result.others_pages) == (1, 1)
    home = {hva: nid if nid == 3 else 0 for hva, nid in left.items()}
    assert small_ram.nid_of == home | {BASE + 20 * PAGE: 2}


def test_pages_of_a_journal_of_an_earlier_version_go_back_from_wherever_they_are(
    journal: Journal, small_ram: FakeKernel
):
    hva = np.array(sorted(small_ram.nid_of), np.uint64)
    origins = encode_pages(hva, np.ones(64, np.uint32), np.zeros(64, np.int16))
    journal.record_pages(read_identity(guest_of(os.getpid(), BASE, 64)), origins)
    journal.compact()
    small_ram.nid_of = dict.fromkeys(small_ram.nid_of, 3)
    assert undo(journal, kernel=small_ram).guests[0].restored == 64


@pytest.mark.parametrize("when", ["before it is moved back", "after a call that moved others"])
def test_a_page_that_the_kernel_migrates_just_then_is_not_gone(
    journal: Journal, small_ram: FakeKernel, when: str
):
    """kcompactd takes pages out of their tables while it copies them: move_pages(2) says -ENOENT of these."""
    apply_to(journal, small_ram, 1)
    page, pauses = BASE + 9 * PAGE, list[float]()

    def compacts(call: int) -> None:
        small_ram.nid_of.pop(page, None)

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        # kcompactd moves within a node.
        small_ram.nid_of[page] = 1
        small_ram.before_call = lambda call: None

    if when == "before it is moved back":
        compacts(0)
    else:
        small_ram.before_call = compacts
    result = undo(journal, kernel=small_ram, sleep=sleep)
    assert set(small_ram.nid_of.values()) == {0} and len(small_ram.nid_of) == 64
    assert (result.guests[0].restored, result.guests[0].gone) == (64, 0) and 0 < sum(pauses) < 0.1


def test_pages_that_are_gone_are_waited_for_a_moment_only(journal: Journal, small_ram: FakeKernel):
    apply_to(journal, small_ram, 1)
    pauses = list[float]()
    for page in range(0, 64, 2):
        del small_ram.nid_of[BASE + page * PAGE]
    result = undo(journal, kernel=small_ram, sleep=pauses.append).guests[0]
    assert (result.restored, result.gone) == (32, 32) and sum(pauses) < 0.05


def test_an_undo_that_is_stopped_asks_nothing_more(journal: Journal, small_ram: FakeKernel):
    apply_to(journal, small_ram, 1)
    small_ram.dead = True
    stopped = undo(journal, kernel=small_ram, stop=lambda: True)
    assert dict(stopped.guests[0].stuck) == {"stopped": 64} and not stopped.ended
    small_ram.dead = False
    assert undo(journal, kernel=small_ram).guests[0].restored == 64


def test_an_undo_moves_nothing_of_a_process_that_got_the_pid_meanwhile(journal: Journal, tmp_path: Path):
    """An undo may take minutes; between two of its calls the guest may end and its pid be taken."""
    kernel = mixed_ram(2048)
    scatter(journal, kernel, 2048)
    proc = tmp_path / "proc"
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text(Path("/proc/sys/kernel/random/boot_id").read_text())
    own = proc / str(os.getpid())
    own.mkdir()
    stat = Path("/proc/self/stat").read_text()
    (own / "stat").write_text(stat)
    calls = len(kernel.calls)

    class Reusing:
        """Has the pid taken after a call."""

        def wait(self, size_bytes: int) -> int:
            if len(kernel.calls) == calls + 1:
                fields = stat.rpartition(")")[2].split()
                fields[19] = str(int(fields[19]) + 1)
                (own / "stat").write_text(f"{os.getpid()} (other) {' '.join(fields)}\n")
            return size_bytes

        def refund(self, size_bytes: int) -> None:
            """Nothing is counted."""

    result = undo(journal, proc, kernel=kernel, allowance=Reusing())
    assert len(kernel.calls) == calls + 1
    assert result.ended == ("db1",)
