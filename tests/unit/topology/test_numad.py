"""Whom may numad move?  By its command line, its log (lines of numad 0.5), and the size of guests."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.agent.agent_world import guest
from vmplace import users
from vmplace.topology.capabilities import probe_numad
from vmplace.topology.capability import Roots
from vmplace.topology.guest import GuestTopology
from vmplace.topology.numad import (
    Numad,
    NumadWatch,
    find_numad,
    names_guest,
    numad_note,
    parse_command_line,
    parse_log,
)

LOG = """Wed Nov 25 04:02:30 2026: Registering numad version 20150602 PID 11
Wed Nov 25 04:02:31 2026: Adding PID 9 to exclusion PID list
Wed Nov 25 04:02:36 2026: Registering numad version 20150602 PID 12
Wed Nov 25 04:02:37 2026: Adding PID 7 to exclusion PID list
Wed Nov 25 04:02:38 2026: Adding PID 8 to exclusion PID list
Wed Nov 25 04:02:39 2026: Removing PID 8 from explicit PID lists
Wed Nov 25 04:02:40 2026: Scanning only explicit PID list processes
Wed Nov 25 04:02:41 2026: Adding PID 5 to inclusion PID list
"""


def large(name: str, pid: int) -> GuestTopology:
    one = guest(name, pid)
    return replace(one, ram=(replace(one.ram[0], npages=1 << 18),))


@pytest.fixture(autouse=True)
def owned_by_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the trees of a tester who is not root have root's processes."""
    if os.geteuid() != 0:
        monkeypatch.setattr(users, "acts_for", lambda _: 0)


def put(
    root: Path,
    pid: int,
    comm: str = "numad",
    words: tuple[str, ...] = ("numad",),
    runs: str = "/usr/bin/numad",
    uids: str = "0 0 0 0",
) -> Roots:
    """Make a tree in which a process of that name runs."""
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(f"{comm}\n")
    (folder / "status").write_text(f"Name:\t{comm}\nUid:\t{uids}\n")
    (folder / "exe").symlink_to(runs)
    (folder / "cmdline").write_text("\0".join(words) + "\0")
    (root / "run").mkdir(exist_ok=True)
    (root / "run/numad.pid").write_text(f"{pid}\n")
    return Roots(proc=root / "proc", root=root)


@pytest.mark.parametrize(
    ("words", "numad"),
    [
        (("numad",), Numad(1)),
        (("numad", "-l", "6", "-i", "15"), Numad(1)),
        (("numad", "-S", "0", "-p", "42"), Numad(1, False, frozenset({42}))),
        (("numad", "-S0", "-x7", "-x", "8"), Numad(1, False, excluded=frozenset({7, 8}))),
    ],
)
def test_its_command_line_tells_whom_it_looks_at(words: tuple[str, ...], numad: Numad):
    assert parse_command_line(1, words) == numad


def test_its_log_tells_what_it_heard_since_it_began():
    assert parse_log(Numad(12), LOG) == Numad(12, False, frozenset({5}), frozenset({7}))


def test_the_log_of_another_numad_tells_nothing():
    assert parse_log(Numad(13), LOG) == Numad(13)


def test_large_guests_are_named_with_a_cure_each_and_the_excluded_are_not():
    guests = [large("db1", 5), large("web", 7), guest("tiny", 9), large("mail", 10)]
    reported = numad_note(Numad(12, excluded=frozenset({7})), guests)
    assert reported is not None
    assert "numad (pid 12) may move db1, mail, too" in reported
    assert "`numad -x 5; numad -x 10`" in reported and "systemctl disable --now numad" in reported
    assert numad_note(Numad(12, scans_all=False), guests) is None


def test_it_is_found_by_its_pid_file_and_without_one(tmp_path: Path):
    roots = put(tmp_path, 12, words=("numad", "-x", "7"))
    found = Numad(12, excluded=frozenset({7}))
    assert find_numad(tmp_path, roots.proc) == found
    (tmp_path / "run/numad.pid").unlink()
    assert find_numad(tmp_path, roots.proc) == found


def test_a_stale_pid_file_is_no_numad(tmp_path: Path):
    roots = put(tmp_path, 12, comm="bash")
    assert find_numad(tmp_path, roots.proc) is None
    assert probe_numad(roots).answer is True


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_doctor_tells_the_cure(tmp_path: Path):
    found = probe_numad(put(tmp_path, 12))
    assert found.answer is False and "pid 12" in found.why and "numad -x PID" in str(found.cure)


def test_it_is_looked_for_now_and_then():
    looks: list[int] = []
    now = [0.0]

    def find() -> Numad | None:
        looks.append(1)
        return Numad(12)

    watch = NumadWatch(find, lambda: now[0])
    for now[0] in (1.0, 2.0, 40.0):
        assert watch.notes([large("db1", 5)])
    assert len(looks) == 2


@pytest.mark.parametrize(
    ("runs", "uids"),
    [("/usr/bin/su", "1000 0 0 0"), ("/usr/bin/sudo", "0 0 0 0"), ("/usr/bin/numad", "7 7 7 7")],
)
def test_who_takes_its_name_is_not_numad(tmp_path: Path, runs: str, uids: str):
    roots = put(tmp_path, 12, runs=runs, uids=uids)
    assert find_numad(tmp_path, roots.proc) is None


@pytest.mark.parametrize(("name", "is_named"), [("db web", True), ("db", True), ("web", False)])
def test_a_note_is_on_the_guests_that_it_names_and_on_no_part_of_a_name(name: str, is_named: bool):
    large = [replace(one, ram=(replace(one.ram[0], npages=1 << 18),)) for one in map(guest, ("db web", "db"))]
    assert names_guest(numad_note(Numad(12), large) or "", name) is is_named
