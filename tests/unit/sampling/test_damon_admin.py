"""Whose are the kdamonds?  In a copy of their files; the lab has real ones (tests/lab/test_sampling.py)."""

import errno
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.unit.sampling.damon_files import KDAMONDS, let_go, put, put_damon, sleeping, waiting
from vmplace import apart, held
from vmplace.errors import UnsupportedHostError
from vmplace.held import HeldError
from vmplace.sampling import damon_admin, damon_settings
from vmplace.sampling.damon_admin import DamonAdmin, DamonHeldError
from vmplace.sampling.damon_settings import settings_of
from vmplace.topology.damon import ADMIN, MARK, begun_at
from vmplace.topology.procfs import PROC

RANGES = [(0x1000, 0x3000)]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damon_admin, "KDAMONDS", KDAMONDS)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    return tmp_path / "sys"


@pytest.fixture
def kdamonds() -> Iterator[list[int]]:
    """Give pids that kdamonds have."""
    with ExitStack() as stack:
        yield [stack.enter_context(sleeping()).pid for _ in range(3)]


def mark(tmp_path: Path, *lines: str, count: int = KDAMONDS) -> Path:
    """Leave what a killed agent noted."""
    put(tmp_path / "run" / MARK, "\n".join([str(count), *lines]) + "\n")
    return tmp_path / "run"


def line(slot: int, pid: int, target: int = 1) -> str:
    return f"{slot} {target} {pid} {begun_at(str(pid), PROC)}"


def count(sysfs: Path) -> str:
    return (sysfs / ADMIN / "nr_kdamonds").read_text()


def state(sysfs: Path, slot: int) -> str:
    return (sysfs / ADMIN / f"{slot}/state").read_text()


def test_each_process_is_watched_by_a_kdamond_of_its_own(sysfs: Path, tmp_path: Path, kdamonds: list[int]):
    root = put_damon(sysfs, kdamonds)
    admin = DamonAdmin(sysfs, tmp_path / "run")
    begun = [admin.start(target, RANGES) for target in (12, 13)]
    assert [(one.slot, one.pid) for one in begun] == [(0, str(kdamonds[0])), (1, str(kdamonds[1]))]
    targets = [root / f"{slot}/contexts/0/targets" for slot in (0, 1)]
    assert [(at / "0/pid_target").read_text() for at in targets] == ["12", "13"]
    assert [(at / "nr_targets").read_text() for at in targets] == ["1", "1"]
    admin.close()
    assert count(sysfs) == "0" and not (tmp_path / "run" / MARK).exists()


def test_all_guests_together_have_not_many_more_regions_than_few_have(
    sysfs: Path, tmp_path: Path, kdamonds: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(damon_settings, "ALL_REGIONS", 1600)
    root = put_damon(sysfs, kdamonds)
    admin = DamonAdmin(sysfs, tmp_path / "run")
    for target in (12, 13, 14):
        admin.start(target, RANGES)
    most = [root / f"{slot}/contexts/0/monitoring_attrs/nr_regions/max" for slot in range(3)]
    assert [path.read_text() for path in most] == ["1000", "800", "533"]


def test_what_a_killed_agent_left_is_taken_over(sysfs: Path, tmp_path: Path, kdamonds: list[int]):
    put_damon(sysfs, kdamonds, kdamonds=KDAMONDS)
    left = [line(slot, pid) for slot, pid in enumerate(kdamonds)]
    DamonAdmin(sysfs, mark(tmp_path, *left))
    assert count(sysfs) == "0" and not (tmp_path / "run" / MARK).exists()
    assert {state(sysfs, slot) for slot in range(3)} == {"off"}


def test_what_somebody_else_set_up_since_is_left_alone(sysfs: Path, tmp_path: Path, kdamonds: list[int]):
    put_damon(sysfs, kdamonds, kdamonds=KDAMONDS)
    with pytest.raises(UnsupportedHostError, match=r"in use by somebody else \(on\)"):
        DamonAdmin(sysfs, mark(tmp_path, line(0, kdamonds[0])))
    assert count(sysfs) == str(KDAMONDS) and state(sysfs, 0) == "on"


def test_a_number_of_kdamonds_that_no_agent_prepares_is_somebody_elses(sysfs: Path, tmp_path: Path):
    put_damon(sysfs, kdamonds=1)
    with pytest.raises(UnsupportedHostError, match=r"in use by somebody else \(off\)"):
        DamonAdmin(sysfs, mark(tmp_path))
    assert count(sysfs) == "1"


def test_a_pid_that_was_given_again_is_somebody_elses(sysfs: Path, tmp_path: Path, kdamonds: list[int]):
    """A mark may be hours old, and pids come round."""
    put_damon(sysfs, kdamonds[:1], kdamonds=KDAMONDS)
    with pytest.raises(UnsupportedHostError, match="in use by somebody else"):
        DamonAdmin(sysfs, mark(tmp_path, f"0 1 {kdamonds[0]} 1"))


def test_after_a_crash_it_is_stopped_once(sysfs: Path, tmp_path: Path, kdamonds: list[int]):
    put_damon(sysfs, kdamonds[:1], kdamonds=KDAMONDS)
    left = mark(tmp_path, line(0, kdamonds[0]))
    assert DamonAdmin.give_back(sysfs, left) and count(sysfs) == "0"
    assert not DamonAdmin.give_back(sysfs, left)


class KilledError(BaseException):
    """The agent is killed here: what would clean up is not run."""


WRITES = len(settings_of(1, RANGES, 1000, 1, 1)) + 3


@pytest.mark.parametrize("at", range(WRITES + 1))
def test_an_agent_that_is_killed_while_it_begins_to_watch_is_taken_over(
    sysfs: Path, tmp_path: Path, kdamonds: list[int], monkeypatch: pytest.MonkeyPatch, at: int
):
    """Its settings are written in turn, then "on"; at last its pid is noted."""
    root = put_damon(sysfs)
    admin = DamonAdmin(sysfs, tmp_path / "run")
    left, plain = at, admin._write

    def write(path: str, value: object) -> None:
        nonlocal left
        if not left:
            raise KilledError
        left -= 1
        plain(path, value)
        if value == "on":
            put(root / "0/pid", str(kdamonds[0]))

    monkeypatch.setattr(admin, "_write", write)
    monkeypatch.setattr(damon_admin, "begun_at", lambda pid, proc: fail(at, begun_at(pid, proc)))
    with pytest.raises(KilledError):
        admin.start(12, RANGES)
    monkeypatch.setattr(damon_admin, "begun_at", begun_at)
    assert count(sysfs) == (str(KDAMONDS) if at else "0")
    DamonAdmin(sysfs, tmp_path / "run")
    assert count(sysfs) == "0" and state(sysfs, 0) == "off"


def fail(at: int, began: str) -> str:
    if at == WRITES:
        raise KilledError
    return began


def held_up(path: Path, text: str, *, patience_s: float) -> None:
    """Stand for a write that waits for a watched process, which lets go of it never."""
    raise HeldError


def test_a_kdamond_that_waits_for_its_process_is_never_turned_off(
    sysfs: Path, tmp_path: Path, kdamonds: list[int]
):
    with waiting(tmp_path / "fifo") as process:
        put_damon(sysfs, [process.pid, kdamonds[0]])
        admin = DamonAdmin(sysfs, tmp_path / "run")
        evil, good = admin.start(12, RANGES), admin.start(13, RANGES)
        assert not admin.stop(evil) and state(sysfs, 0) == "on"
        with pytest.raises(DamonHeldError, match=r"blocks its own memory map \(pid 12\)"):
            admin.close()
        assert state(sysfs, 1) == "off" and good not in admin.begun
        # What is left is this agent's, also for whoever comes next.
        assert count(sysfs) == str(KDAMONDS) and (tmp_path / "run" / MARK).exists()
        let_go(tmp_path / "fifo")
        process.wait()
        admin.close()
    assert count(sysfs) == "0" and not (tmp_path / "run" / MARK).exists()


def test_a_kdamond_that_sleeps_is_not_turned_off_while_its_process_holds_readers_up(
    sysfs: Path, tmp_path: Path, kdamonds: list[int]
):
    put_damon(sysfs, kdamonds)
    admin, is_over = DamonAdmin(sysfs, tmp_path / "run"), list[bool]()
    with sleeping() as process:
        begun = admin.start(process.pid, RANGES)
        held.note_stuck(process.pid, lambda: bool(is_over))
        assert not admin.stop(begun) and state(sysfs, 0) == "on"
        is_over.append(True)
        while held.holds(process.pid):
            time.sleep(0.1)
        assert admin.stop(begun) and state(sysfs, 0) == "off"


def test_who_locked_its_map_in_the_moment_in_which_its_kdamond_is_turned_off_is_named(
    sysfs: Path, tmp_path: Path, kdamonds: list[int], monkeypatch: pytest.MonkeyPatch
):
    put_damon(sysfs, kdamonds[:2])
    admin = DamonAdmin(sysfs, tmp_path / "run")
    evil, good = admin.start(12, RANGES), admin.start(13, RANGES)
    with monkeypatch.context() as patched:
        patched.setattr(apart, "write", held_up)
        for begun in (evil, good):
            with pytest.raises(DamonHeldError, match=r"\(pid 12\)"):
                admin.stop(begun)
        with pytest.raises(DamonHeldError, match=r"\(pid 12\)"):
            admin.start(14, RANGES)
    assert admin.start(14, RANGES).slot == 2
    admin.close()
    assert count(sysfs) == "0"


def test_the_next_agent_uses_the_kdamonds_that_do_not_wait(sysfs: Path, tmp_path: Path, kdamonds: list[int]):
    with waiting(tmp_path / "fifo") as process:
        root = put_damon(sysfs, [process.pid, kdamonds[0]], kdamonds=KDAMONDS)
        put(root / "1/pid", "-1")
        left = mark(tmp_path, line(0, process.pid), line(1, 1 << 22))
        admin = DamonAdmin(sysfs, left)
        put(root / "1/pid", str(kdamonds[0]))
        assert admin.start(13, RANGES).slot == 1 and state(sysfs, 0) == "on"
        with pytest.raises(DamonHeldError):
            DamonAdmin.give_back(sysfs, left)


def test_while_somebody_waits_for_a_kdamond_the_next_agent_starts_and_tries_again(
    sysfs: Path, tmp_path: Path, kdamonds: list[int], monkeypatch: pytest.MonkeyPatch
):
    put_damon(sysfs, kdamonds[:1], kdamonds=KDAMONDS)
    left = mark(tmp_path, line(0, kdamonds[0]))
    with monkeypatch.context() as patched:
        patched.setattr(apart, "write", held_up)
        admin = DamonAdmin(sysfs, left)
        with pytest.raises(DamonHeldError, match="does not answer"):
            admin.start(12, RANGES)
    assert state(sysfs, 0) == "on" and (left / MARK).exists()
    assert admin.start(12, RANGES).slot == 0
    admin.close()
    assert count(sysfs) == "0" and not (left / MARK).exists()


def test_a_lock_of_damon_that_is_taken_for_a_moment_is_waited_for(
    sysfs: Path, tmp_path: Path, kdamonds: list[int], monkeypatch: pytest.MonkeyPatch
):
    put_damon(sysfs, kdamonds)
    admin, plain, tries = DamonAdmin(sysfs, tmp_path / "run"), apart.write, list[Path]()

    def busy(path: Path, text: str, *, patience_s: float) -> None:
        tries.append(path)
        if tries.count(path) < 4:
            raise OSError(errno.EBUSY, "busy")
        plain(path, text, patience_s=patience_s)

    monkeypatch.setattr(apart, "write", busy)
    assert admin.start(12, RANGES).pid == str(kdamonds[0])


def test_a_lock_of_damon_that_somebody_keeps_costs_the_others_a_second_in_ten(
    sysfs: Path, tmp_path: Path, kdamonds: list[int], monkeypatch: pytest.MonkeyPatch
):
    put_damon(sysfs, kdamonds)
    admin = DamonAdmin(sysfs, tmp_path / "run")

    def busy(*_: object, **__: object) -> str:
        raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr(apart, "write", busy)
    monkeypatch.setattr(damon_admin, "read_patiently", busy)
    began = time.monotonic()
    for _ in range(20):
        with pytest.raises(DamonHeldError):
            admin.start(12, RANGES)
    assert time.monotonic() - began < 2
