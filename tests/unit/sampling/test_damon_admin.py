"""Whose is the kdamond?  In a copy of its files; the lab has the real one (tests/lab/test_sampling.py)."""

import itertools
from pathlib import Path

import pytest

from vmplace import apart
from vmplace.errors import UnsupportedHostError
from vmplace.held import HeldError
from vmplace.sampling.damon_admin import DamonAdmin, DamonHeldError, _settings
from vmplace.topology.damon import ADMIN, MARK

TARGETS = [(12, [(0x1000, 0x3000)])]


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A tree like the kernel's with one kdamond that runs as an agent has set it."""
    root = tmp_path / "sys" / ADMIN
    for name, text in [("nr_kdamonds", "1"), ("0/state", "on"), ("0/pid", "77")]:
        put(root / name, text)
    put(root / "0/contexts/nr_contexts", "1")
    put(root / "0/contexts/0/avail_operations", "vaddr\nfvaddr\npaddr\n")
    for path, value in _settings(TARGETS, 25_000, 250_000):
        put(root / f"0/contexts/0/{path}", str(value))
    return tmp_path / "sys"


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def noted(sysfs: Path, tmp_path: Path, pid: str) -> Path:
    """Leave the mark of a killed agent whose kdamond had ``pid``."""
    reported = [f"{path}={value}" for path, value in _settings(TARGETS, 25_000, 250_000)]
    put(tmp_path / "run" / MARK, "\n".join([pid, *reported]) + "\n")
    return tmp_path / "run"


def kdamonds(sysfs: Path) -> str:
    return (sysfs / ADMIN / "nr_kdamonds").read_text()


@pytest.mark.parametrize(("noted_pid", "pid"), [("77", "77"), ("77", "-1"), ("", "77"), ("", "-1")])
def test_what_a_killed_agent_left_is_taken_over(sysfs: Path, tmp_path: Path, noted_pid: str, pid: str):
    put(sysfs / ADMIN / "0/pid", pid)
    DamonAdmin(sysfs, noted(sysfs, tmp_path, noted_pid))
    assert kdamonds(sysfs) == "0" and not (tmp_path / "run" / MARK).exists()


@pytest.mark.parametrize("pid", ["78", "-1"], ids=["runs", "stopped"])
def test_what_somebody_else_set_up_since_is_left_alone(sysfs: Path, tmp_path: Path, pid: str):
    put(sysfs / ADMIN / "0/pid", pid)
    put(sysfs / ADMIN / "0/contexts/0/targets/0/pid_target", "999")
    with pytest.raises(UnsupportedHostError, match="in use by somebody else"):
        DamonAdmin(sysfs, noted(sysfs, tmp_path, "77"))
    assert kdamonds(sysfs) == "1"


def test_after_a_crash_it_is_stopped_once(sysfs: Path, tmp_path: Path):
    state = noted(sysfs, tmp_path, "77")
    assert DamonAdmin.give_back(sysfs, state) and kdamonds(sysfs) == "0"
    assert not DamonAdmin.give_back(sysfs, state)


def test_a_mark_of_an_earlier_version_tells_by_its_pid_alone(sysfs: Path, tmp_path: Path):
    put(tmp_path / "run" / MARK, "77\n")
    put(sysfs / ADMIN / "0/pid", "-1")
    assert DamonAdmin.give_back(sysfs, tmp_path / "run") and kdamonds(sysfs) == "1"


def started_at(proc: Path, pid: int, ticks: int) -> None:
    put(proc / f"{pid}/stat", f"{pid} (kdamond.0) S{' 0' * 18} {ticks} 0\n")


@pytest.mark.parametrize(("ticks", "is_ours"), [(500, True), (501, False)])
def test_a_pid_that_was_given_again_is_somebody_elses(
    sysfs: Path, tmp_path: Path, ticks: int, *, is_ours: bool
):
    """A mark may be hours old, and pids come round."""
    proc, state = tmp_path / "proc", tmp_path / "run"
    started_at(proc, 77, 500)
    mine = DamonAdmin(sysfs, noted(sysfs, tmp_path, "77"), proc=proc)
    mine.start(TARGETS)
    assert (state / MARK).read_text().startswith("77 500\n")
    started_at(proc, 77, ticks)
    put(sysfs / ADMIN / "0/contexts/0/targets/0/pid_target", "999")
    assert DamonAdmin.give_back(sysfs, state, proc) and kdamonds(sysfs) == ("0" if is_ours else "1")


@pytest.mark.parametrize("pid", ["78", "-1"], ids=["runs", "stopped"])
def test_a_mark_without_settings_claims_nothing_that_somebody_else_watches(
    sysfs: Path, tmp_path: Path, pid: str
):
    """An agent that is killed as it begins leaves such a mark; then somebody sets DAMON up."""
    put(tmp_path / "run" / MARK, "\n")
    put(sysfs / ADMIN / "0/pid", pid)
    with pytest.raises(UnsupportedHostError, match="in use by somebody else"):
        DamonAdmin(sysfs, tmp_path / "run")
    assert kdamonds(sysfs) == "1"


def held_up(path: Path, text: str, *, patience_s: float) -> None:
    """Stand for a write that waits for a watched process, which lets go of it never."""
    raise HeldError


def test_an_agent_starts_though_the_one_before_it_left_damon_waiting_for_a_process(
    sysfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    state = noted(sysfs, tmp_path, "77")
    with monkeypatch.context() as patched:
        patched.setattr(apart, "write", held_up)
        admin = DamonAdmin(sysfs, state)
        with pytest.raises(DamonHeldError, match="does not answer"):
            admin.start(TARGETS)
    # Until it answers it is this agent's, and so it is for whoever comes next.
    assert (sysfs / ADMIN / "0/state").read_text() == "on" and (state / MARK).exists()
    admin.start(TARGETS)
    assert (sysfs / ADMIN / "0/contexts/0/targets/0/pid_target").read_text() == "12"
    admin.stop()
    assert kdamonds(sysfs) == "0" and not (state / MARK).exists()


class KilledError(BaseException):
    """The agent is killed here: what would clean up is not run."""


@pytest.mark.parametrize("at", range(len(_settings(TARGETS, 25_000, 250_000)) + 4))
def test_an_agent_that_is_killed_while_it_sets_up_is_taken_over(
    sysfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
):
    root, fresh = sysfs / ADMIN, DamonAdmin(sysfs, noted(sysfs, tmp_path, "77"))
    # As the kernel makes it: nothing is set.
    put(root / "0/pid", "-1")
    put(root / "0/state", "off")
    for path, value in _settings(TARGETS, 25_000, 250_000):
        put(root / f"0/contexts/0/{path}", "0" if str(value) != "0" else "7")
    left, plain = at, fresh._write

    def write(path: str, value: object) -> None:
        nonlocal left
        if not left:
            raise KilledError
        left -= 1
        plain(path, value)

    monkeypatch.setattr(fresh, "_write", write)
    try:
        fresh.start(TARGETS)
    except KilledError:
        assert kdamonds(sysfs) == ("1" if at else "0")
    DamonAdmin(sysfs, tmp_path / "run")
    assert kdamonds(sysfs) == "0" and not (tmp_path / "run" / MARK).exists()


def test_an_agent_that_is_killed_while_it_probes_is_taken_over(sysfs: Path, tmp_path: Path):
    root = sysfs / ADMIN
    for path, text in (("0/pid", "-1"), ("0/state", "off"), ("0/contexts/0/targets/nr_targets", "0")):
        put(root / path, text)
    put(tmp_path / "run" / MARK, "\n")
    DamonAdmin(sysfs, tmp_path / "run")
    assert kdamonds(sysfs) == "0"


def test_what_somebody_else_set_up_since_an_agent_was_killed_so_is_left_alone(sysfs: Path, tmp_path: Path):
    put(sysfs / ADMIN / "0/pid", "-1")
    put(sysfs / ADMIN / "0/contexts/0/operations", "vaddr")
    with pytest.raises(UnsupportedHostError, match="in use by somebody else"):
        DamonAdmin(sysfs, noted(sysfs, tmp_path, ""))
    assert kdamonds(sysfs) == "1"


def test_a_process_that_has_each_question_wait_a_little_less_than_is_given_up_has_them_all_wait_once(
    sysfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now, beats, tried = 1000.0, list[float](), itertools.count(1)
    admin = DamonAdmin(sysfs, noted(sysfs, tmp_path, "77"), beat=lambda: beats.append(now), clock=lambda: now)
    admin.start(TARGETS)

    def just_in_time(path: Path, text: str, *, patience_s: float) -> None:
        nonlocal now
        now += patience_s - 0.1
        put(sysfs / ADMIN / "0/contexts/0/schemes/0/stats/nr_tried", str(next(tried)))

    monkeypatch.setattr(apart, "write", just_in_time)
    with pytest.raises(DamonHeldError):
        admin.regions(1)
    assert now - 1000 < 6 and len(beats) >= 2
