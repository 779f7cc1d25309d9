"""Whom DAMON watches, read from a copy of its files; guests are real processes (the lab has real DAMON)."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.actuation.child_guest import child_guest
from vmplace import apart, held
from vmplace.held import HeldError
from vmplace.sampling.damon_admin import DamonHeldError, _settings
from vmplace.sampling.source import SourceSetup
from vmplace.sampling.source_damon import DamonSource
from vmplace.topology.damon import ADMIN
from vmplace.topology.guest import PAGE_BYTES, GuestTopology
from vmplace.topology.host import HostTopology

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="frame numbers need root (CAP_SYS_ADMIN)")
MOST = 3


@pytest.fixture
def guests() -> Iterator[list[GuestTopology]]:
    with ExitStack() as stack:
        yield [stack.enter_context(child_guest(8)).guest for _ in range(MOST)]
        apart.close()
        held.keep(set())


@pytest.fixture
def source(sysfs: Path, tmp_path: Path, host: HostTopology) -> Iterator[DamonSource]:
    root = sysfs / ADMIN
    settings = _settings([(1, [(0, 4096)])] * MOST, 25_000, 250_000)
    files = {f"0/contexts/0/{path}": str(value) for path, value in settings}
    files |= {"nr_kdamonds": "0", "0/state": "off", "0/pid": "-1", "0/contexts/nr_contexts": "0"}
    for path, text in {**files, "0/contexts/0/avail_operations": "fvaddr"}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    with contextlib.closing(
        DamonSource(SourceSetup(host, sysfs=sysfs, state_dir=tmp_path / "run"))
    ) as opened:
        yield opened


def watched(sysfs: Path) -> set[int]:
    """Return the pids that the kernel was given."""
    targets = sysfs / ADMIN / "0/contexts/0/targets"
    count = int((targets / "nr_targets").read_text())
    return {int((targets / f"{index}/pid_target").read_text()) for index in range(count)}


def let_go(guest: GuestTopology, is_over: list[bool]) -> None:
    held.note_stuck(guest.pid, lambda: bool(is_over))


def test_a_guest_that_holds_readers_up_does_not_keep_others_from_being_watched(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path
):
    evil, good, new = guests
    for guest in (evil, good):
        source.arm(guest)
    assert watched(sysfs) == {evil.pid, good.pid}
    is_over: list[bool] = []
    let_go(evil, is_over)
    # Whoever is new has all of them set up anew.
    source.arm(new)
    source.arm(good)
    assert watched(sysfs) == {good.pid, new.pid}
    assert source.harvest(good).ranges
    with pytest.raises(HeldError):
        source.arm(evil)
    is_over.append(True)


def test_damon_that_is_only_late_goes_on_with_what_it_has_learnt(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path, monkeypatch: pytest.MonkeyPatch
):
    for guest in guests:
        source.arm(guest)
    with monkeypatch.context() as patched:
        patched.setattr(apart, "write", held_up)
        with pytest.raises(DamonHeldError):
            source.harvest(guests[0])
    kept = sysfs / ADMIN / "0/contexts/0/targets/0/pid_target"
    kept.write_text("as it was")
    source.arm(guests[0])
    assert source.harvest(guests[0]).ranges and kept.read_text() == "as it was"


def held_up(path: Path, text: str, *, patience_s: float) -> None:
    """Stand for a write that nothing answers."""
    raise HeldError


def test_once_damon_answers_again_it_is_set_up_without_who_held_it_up(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path, monkeypatch: pytest.MonkeyPatch
):
    evil, good, _ = guests
    for guest in (evil, good):
        source.arm(guest)
    is_over: list[bool] = []
    let_go(evil, is_over)
    with monkeypatch.context() as patched:
        patched.setattr(apart, "write", held_up)
        with pytest.raises(DamonHeldError):
            source.harvest(good)
        with pytest.raises(DamonHeldError):
            source.arm(good)
    source.arm(good)
    assert watched(sysfs) == {good.pid}
    assert source.harvest(good).ranges
    is_over.append(True)


class Slow:
    """Time by a clock that goes on only as DAMON has one wait."""

    def __init__(self, source: DamonSource, sysfs: Path, monkeypatch: pytest.MonkeyPatch, takes_s: float):
        self.now, self.waited_s, self.takes_s = 1000.0, 0.0, takes_s
        monkeypatch.setattr(source, "_clock", lambda: self.now)
        monkeypatch.setattr(source._admin, "regions", self.regions)

    def regions(self, count: int) -> tuple[()]:
        self.now, self.waited_s = self.now + self.takes_s, self.waited_s + self.takes_s
        return ()


def test_damon_that_answers_slowly_is_asked_more_seldom(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path, monkeypatch: pytest.MonkeyPatch
):
    slow = Slow(source, sysfs, monkeypatch, takes_s=4.8)
    for _ in range(400):
        with contextlib.suppress(DamonHeldError):
            source.arm(guests[0])
            source.harvest(guests[0])
        slow.now += 0.25
    assert 4.8 < slow.waited_s <= 0.2 * (slow.now - 1000) + 4.8


def test_damon_that_answers_in_time_is_asked_in_each_window(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path, monkeypatch: pytest.MonkeyPatch
):
    slow = Slow(source, sysfs, monkeypatch, takes_s=0.5)
    for _ in range(20):
        source.arm(guests[0])
        source.harvest(guests[0])
    assert slow.waited_s == 10


def test_after_a_slow_answer_who_holds_readers_up_is_watched_no_more(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path, monkeypatch: pytest.MonkeyPatch
):
    evil, good, _ = guests
    for guest in (evil, good):
        source.arm(guest)
    slow, is_over = Slow(source, sysfs, monkeypatch, takes_s=4.8), list[bool]()
    let_go(evil, is_over)
    source.harvest(good)
    slow.now += 60
    source.arm(good)
    assert watched(sysfs) == {good.pid}
    is_over.append(True)


def test_a_guest_whose_ram_changes_all_the_time_has_damon_set_up_anew_for_all_now_and_then(
    source: DamonSource, guests: list[GuestTopology], monkeypatch: pytest.MonkeyPatch
):
    evil, *others = guests
    now, starts = 1000.0, list[float]()
    plain = source._admin.start

    def counted(targets: Sequence[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        starts.append(now)
        plain(targets)

    monkeypatch.setattr(source, "_clock", lambda: now, raising=False)
    monkeypatch.setattr(source._admin, "start", counted)
    for guest in guests:
        source.arm(guest)
    del starts[:]
    for look in range(200):
        now += 3
        size = 4 + look % 3
        source.arm(replace(evil, ram=(replace(evil.ram[0], npages=size),)))
        for guest in others:
            source.arm(guest)
    # At once, then after 30, 60, 120 and 240 s.
    assert np.diff(starts).tolist() == [30, 60, 120, 240]


def test_many_guests_whose_ram_changes_have_damon_set_up_anew_once_for_a_while(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path, monkeypatch: pytest.MonkeyPatch
):
    now = 1000.0
    monkeypatch.setattr(source, "_clock", lambda: now, raising=False)
    for guest in guests:
        source.arm(guest)
    starts, plain = list[float](), source._admin.start

    def counted(targets: Sequence[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        starts.append(now)
        plain(targets)

    monkeypatch.setattr(source._admin, "start", counted)
    changed = [replace(guest, ram=(replace(guest.ram[0], npages=4),)) for guest in guests]
    for _ in range(40):
        for guest in changed:
            source.arm(guest)
        now += 3
    assert starts[0] == 1000 and np.diff(starts).tolist() == [30, 30]
    targets = sysfs / ADMIN / "0/contexts/0/targets"
    for index, guest in enumerate(changed):
        end = int((targets / f"{index}/regions/0/end").read_text())
        assert end == guest.ram[0].hva + 4 * PAGE_BYTES
