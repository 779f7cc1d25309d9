import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vmplace.actuation import journal_file
from vmplace.actuation.identity import PROC
from vmplace.actuation.journal import Journal
from vmplace.actuation.ownership import NumaBalancing, Ownership
from vmplace.actuation.undo import undo


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc whose kernel balances; the boot id is the real one."""
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text((PROC / "sys/kernel/random/boot_id").read_text())
    set_sysctl(tmp_path, "1\n")
    return tmp_path


@pytest.fixture
def journal(tmp_path: Path, proc: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal", proc=proc) as opened:
        yield opened


def set_sysctl(proc: Path, value: str) -> None:
    (proc / "sys/kernel/numa_balancing").write_text(value)


def sysctl(proc: Path) -> str:
    return (proc / "sys/kernel/numa_balancing").read_text().strip()


def test_taken_with_the_first_guest_and_given_back_with_the_last(journal: Journal, proc: Path):
    balancing = NumaBalancing(journal, proc=proc)
    values = []
    for guests in (0, 1, 2, 1, 0):
        balancing.update(guests)
        values.append(sysctl(proc))
    assert values == ["1", "0", "0", "0", "1"]


def test_a_killed_agents_value_is_given_back_by_the_next(journal: Journal, proc: Path):
    NumaBalancing(journal, proc=proc).update(1)
    following = NumaBalancing(journal, proc=proc)
    assert following.is_taken
    following.update(0)
    assert sysctl(proc) == "1"


def test_undo_gives_it_back(journal: Journal, proc: Path):
    set_sysctl(proc, "3")
    NumaBalancing(journal, proc=proc).update(1)
    assert undo(journal, proc).sysctls == ("kernel.numa_balancing=2->3: given back",)
    assert sysctl(proc) == "3"


@pytest.mark.parametrize("before, during", [("0", "0"), ("1", "0"), ("2", "2"), ("3", "2")])
def test_memory_tiering_goes_on(journal: Journal, proc: Path, before: str, during: str):
    """Documentation/admin-guide/sysctl/kernel.rst: 1 is normal balancing, 2 is memory tiering, 3 is both."""
    set_sysctl(proc, before)
    balancing = NumaBalancing(journal, proc=proc)
    for guests, value in ((1, during), (0, before)):
        balancing.update(guests)
        assert sysctl(proc) == value


def test_what_an_earlier_version_took_of_memory_tiering_is_given_back(journal: Journal, proc: Path):
    journal.record_sysctl("kernel/numa_balancing", "2", "0")
    set_sysctl(proc, "0")
    NumaBalancing(journal, proc=proc).update(0)
    assert sysctl(proc) == "2"


def test_whoever_sets_it_meanwhile_is_respected(journal: Journal, proc: Path):
    balancing = NumaBalancing(journal, proc=proc)
    balancing.update(1)
    set_sysctl(proc, "2")
    assert "somebody else" in (balancing.update(1) or "")
    assert balancing.update(1) is None
    assert (sysctl(proc), balancing.is_taken) == ("2", False)
    assert undo(journal, proc).sysctls == ()


def test_off_already_is_not_taken(journal: Journal, proc: Path):
    set_sysctl(proc, "0")
    assert NumaBalancing(journal, proc=proc).update(1) is None
    assert not journal.contents().sysctls


@pytest.fixture
def full_disk_after_a_boot(tmp_path: Path, proc: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    """An agent had taken it, then the host lost power; the next one starts on a full disk."""
    with Journal(tmp_path / "journal", proc=proc) as before:
        NumaBalancing(before, proc=proc).update(1)
    (proc / "sys/kernel/random/boot_id").write_text("the next boot\n")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(journal_file, "_write_all", full)
        after = Journal(tmp_path / "journal", proc=proc)
    with after:
        yield after


def test_what_was_before_a_boot_is_not_given_back_after_it(full_disk_after_a_boot: Journal, proc: Path):
    """Whoever runs the host has it off now."""
    set_sysctl(proc, "0")
    balancing = NumaBalancing(full_disk_after_a_boot, proc=proc)
    assert not balancing.is_taken and balancing.give_back() is None
    assert undo(full_disk_after_a_boot, proc).sysctls == ()
    assert sysctl(proc) == "0"


def test_what_was_taken_after_a_boot_is_given_back_though_the_journal_holds_an_earlier_one(
    full_disk_after_a_boot: Journal, tmp_path: Path, proc: Path
):
    set_sysctl(proc, "3")
    NumaBalancing(full_disk_after_a_boot, proc=proc).update(1)
    assert sysctl(proc) == "2"
    full_disk_after_a_boot.close()
    with Journal(tmp_path / "journal", proc=proc) as following:
        undo(following, proc)
    assert sysctl(proc) == "3"


def test_leave_leaves(journal: Journal, proc: Path):
    NumaBalancing(journal, Ownership.LEAVE, proc=proc).update(1)
    assert sysctl(proc) == "1"


def test_a_kernel_without_balancing_needs_nothing(journal: Journal, proc: Path):
    (proc / "sys/kernel/numa_balancing").unlink()
    assert NumaBalancing(journal, proc=proc).update(1) is None


def test_undo_respects_a_value_that_somebody_else_set(journal: Journal, proc: Path):
    NumaBalancing(journal, proc=proc).update(1)
    set_sysctl(proc, "2")
    assert "somebody else" in undo(journal, proc).sysctls[0]
    assert sysctl(proc) == "2"


def test_a_value_that_a_killed_agent_noted_and_never_set_is_taken_by_the_next(journal: Journal, proc: Path):
    journal.record_sysctl("kernel/numa_balancing", "1", "0")
    following = NumaBalancing(journal, proc=proc)
    assert following.update(1) is not None and following.is_taken
    assert sysctl(proc) == "0"
    following.give_back()
    assert sysctl(proc) == "1"
