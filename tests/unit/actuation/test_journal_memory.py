"""A journal is opened and undone within the memory that an agent may have, whatever guests did."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.actuation.child_guest import child_guest, guest_of
from tests.unit.actuation.fake_kernel import PAGE, FakeKernel
from vmplace.actuation.batch import Hvas, Status
from vmplace.actuation.identity import GuestIdentity, read_identity
from vmplace.actuation.journal import Journal
from vmplace.actuation.journal_file import JournalFile
from vmplace.actuation.page_runs import encode_pages
from vmplace.actuation.undo import undo
from vmplace.errors import JournalError

BLOCK, BLOCKS, AT_ONCE = 64 << 20, 4096, 256
_WITHIN = """
import re, resource, sys
from pathlib import Path
from vmplace.actuation.journal import Journal
used = int(re.search(r"VmData:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
limit = used + (64 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
with Journal(Path(sys.argv[1])) as journal:
    journal.compact()
    guests = journal.contents().guests.values()
    print({one.identity.name: one.pages.total_pages for one in guests})
"""


@pytest.fixture
def me() -> GuestIdentity:
    return read_identity(guest_of(os.getpid(), 0, 1))


def opened_within_64_mib(path: Path) -> str:
    """Return which guests have how many pages in the journal; in a process of its own, with a limit."""
    words = [sys.executable, "-c", _WITHIN, str(path)]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout.strip()


def move_a_page_of_each_block(journal: Journal, guest: GuestIdentity, blocks: int) -> None:
    """Note a move of one page in every 64 MiB, as of a process that maps its RAM so."""
    one = np.ones(AT_ONCE, np.int32)
    for first in range(0, blocks, AT_ONCE):
        hva = (np.arange(first, first + AT_ONCE, dtype=np.uint64) + np.uint64(1)) * np.uint64(BLOCK)
        journal.record_pages(guest, encode_pages(hva, one, 0 * one), encode_pages(hva, one, one))


def test_many_guests_that_ended_do_not_keep_a_journal_from_being_opened(tmp_path: Path, me: GuestIdentity):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        for number in range(4):
            # The pid of another process by now.
            ended = replace(me, name=f"runner-{number}", start_time=me.start_time + 1 + number)
            move_a_page_of_each_block(journal, ended, BLOCKS // 4)
        move_a_page_of_each_block(journal, me, AT_ONCE)
    assert opened_within_64_mib(path) == str({me.name: AT_ONCE})
    assert b"runner" not in path.read_bytes()


def test_where_there_is_not_enough_memory_a_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def read(_: JournalFile) -> bytes:
        raise MemoryError

    with Journal(tmp_path / "journal") as journal:
        monkeypatch.setattr(JournalFile, "read", read)
        for step in (journal.contents, journal.without_pages, journal.compact):
            with pytest.raises(JournalError, match="not enough memory") as raised:
                step()
            assert "vmplace undo" in str(raised.value.hint)
    with pytest.raises(JournalError, match="not enough memory"):
        Journal(tmp_path / "journal")
    monkeypatch.undo()
    # Its lock was let go of.
    Journal(tmp_path / "journal").close()


def test_a_guest_that_takes_too_much_memory_keeps_no_other_from_being_undone(
    tmp_path: Path, me: GuestIdentity
):
    class Short(FakeKernel):
        def page_nids(self, pid: int, hvas: Hvas, status: Status) -> None:
            if pid == me.pid:
                raise MemoryError
            super().page_nids(pid, hvas, status)

    with child_guest(8) as child, Journal(tmp_path / "journal") as journal:
        kernel = Short({child.hva + i * PAGE: 1 for i in range(8)})
        hva, one = np.array(sorted(kernel.nid_of), np.uint64), np.ones(8, np.int32)
        for guest in (me, read_identity(child.guest)):
            journal.record_pages(guest, encode_pages(hva, one, 0 * one), encode_pages(hva, one, one))
        result = undo(journal, kernel=kernel)
        assert set(kernel.nid_of.values()) == {0} and not result.is_complete
        assert len(result.failures) == 1 and "not enough memory" in result.failures[0]
        assert [one.identity for one in journal.contents().guests.values()] == [me]
