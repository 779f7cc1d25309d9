"""Whom DAMON watches, and whose answer is used; guests are real processes (the lab has real DAMON)."""

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from tests.unit.actuation.child_guest import child_guest
from tests.unit.sampling.damon_files import KDAMONDS, put, put_damon, sleeping, waiting
from vmplace import apart, held
from vmplace.errors import UnsupportedHostError, VmplaceError
from vmplace.held import HeldError
from vmplace.held_limits import UserQuota
from vmplace.sampling import damon_admin, source_damon
from vmplace.sampling.damon_trace import Aggregation
from vmplace.sampling.source import SourceSetup
from vmplace.sampling.source_damon import DamonLateError, DamonSource
from vmplace.topology.damon import ADMIN, MARK, TRACE_POINT
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


class Reported:
    """In place of the ring: all was touched; of ``silent`` guests, by pid, nothing is reported."""

    silent: ClassVar[set[int]] = set()
    closed: ClassVar[list[int]] = []

    def __init__(self, layout: object, guest_pid: int, kdamond_pid: int) -> None:
        self.guest_pid, self.kdamond_pid = guest_pid, kdamond_pid

    def newest(self) -> Aggregation | None:
        if self.guest_pid in self.silent:
            return None
        whole = np.array([0], np.uint64), np.array([1 << 47], np.uint64)
        return Aggregation(time.monotonic_ns(), *whole)

    def close(self) -> None:
        self.closed.append(self.kdamond_pid)


@pytest.fixture
def kdamonds(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    monkeypatch.setattr(damon_admin, "KDAMONDS", KDAMONDS)
    monkeypatch.setattr(source_damon, "KDAMONDS", KDAMONDS)
    monkeypatch.setattr(source_damon, "OTHERS", UserQuota(most=4, share=0, reserved=0))
    monkeypatch.setattr(Reported, "silent", set())
    monkeypatch.setattr(Reported, "closed", [])
    with ExitStack() as stack:
        pids = [stack.enter_context(sleeping()).pid for _ in range(KDAMONDS)]
        put_damon(sysfs, pids)
        yield pids


@pytest.fixture
def source(sysfs: Path, tmp_path: Path, host: HostTopology, kdamonds: list[int]) -> Iterator[DamonSource]:
    setup = SourceSetup(host, sysfs=sysfs, state_dir=tmp_path / "run")
    with contextlib.closing(DamonSource(setup, traced=Reported)) as opened:
        yield opened


def watched(sysfs: Path) -> dict[int, str]:
    """Return which kdamonds were turned on, and for which pid."""
    root = sysfs / ADMIN
    slots = [slot for slot in range(KDAMONDS) if (root / f"{slot}/state").read_text() == "on"]
    return {slot: (root / f"{slot}/contexts/0/targets/0/pid_target").read_text() for slot in slots}


def test_each_guest_has_a_kdamond_and_gives_it_back(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path, tmp_path: Path
):
    for guest in guests:
        source.arm(guest)
    assert watched(sysfs) == {slot: str(guest.pid) for slot, guest in enumerate(guests)}
    for guest in guests:
        assert source.harvest(guest).ranges[0].accessed.sum() == 8
    source.close()
    assert watched(sysfs) == {} and not (tmp_path / "run" / MARK).exists()


def test_a_guest_that_holds_readers_up_changes_nothing_for_others(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path, kdamonds: list[int]
):
    evil, good, new = guests
    for guest in (evil, good):
        source.arm(guest)
    is_over: list[bool] = []
    held.note_stuck(evil.pid, lambda: bool(is_over))
    Reported.silent.add(evil.pid)
    source.arm(new)
    source.arm(good)
    assert source.harvest(good).ranges and source.harvest(new).ranges
    with pytest.raises(HeldError):
        source.harvest(evil)
    # Its kdamond is not touched, and tells of it once it can.
    assert watched(sysfs)[0] == str(evil.pid) and not Reported.closed
    is_over.append(True)
    Reported.silent.clear()
    while held.holds(evil.pid):
        time.sleep(0.1)
    source.arm(evil)
    assert source.harvest(evil).ranges


def test_a_kdamond_that_waits_for_its_process_is_given_up_and_not_waited_for_again(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path, tmp_path: Path
):
    guest = guests[0]
    with waiting(tmp_path / "fifo") as process:
        put(sysfs / ADMIN / "0/pid", str(process.pid))
        source.arm(guest)
        Reported.silent.add(guest.pid)
        assert 0.5 < harvested_late(source, guest) < 2
        for _ in range(3):
            source.arm(guest)
            assert harvested_late(source, guest) < 0.1
        Reported.silent.clear()
        source.arm(guest)
        assert source.harvest(guest).ranges
        put(sysfs / ADMIN / "0/pid", "-1")


def test_a_guest_that_keeps_its_kdamond_waiting_again_and_again_is_left_alone(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path, tmp_path: Path
):
    evil, good, _ = guests
    with waiting(tmp_path / "fifo") as process:
        put(sysfs / ADMIN / "0/pid", str(process.pid))
        source.arm(evil)
        source.arm(good)
        until = time.monotonic() + 60
        while not held.holds(evil.pid) and time.monotonic() < until:
            # It lets the kdamond go on in between: so it is waited for anew.
            Reported.silent.clear()
            source.arm(evil)
            assert source.harvest(evil).ranges
            Reported.silent.add(evil.pid)
            source.arm(evil)
            harvested_late(source, evil)
        assert held.holds(evil.pid)
        with pytest.raises(HeldError):
            source.arm(evil)
        assert source.harvest(good).ranges and not held.holds(good.pid)
        put(sysfs / ADMIN / "0/pid", "-1")


def test_a_guest_whose_kdamond_had_no_cpu_is_not_left_alone(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source_damon, "PATIENCE_S", 1.5)
    with sleeping() as process:
        put(sysfs / ADMIN / "0/pid", str(process.pid))
        source.arm(guests[0])
        Reported.silent.add(guests[0].pid)
        assert harvested_late(source, guests[0]) >= 1
        assert not held.holds(guests[0].pid)
        put(sysfs / ADMIN / "0/pid", "-1")


def harvested_late(source: DamonSource, guest: GuestTopology) -> float:
    """Return how long a harvest took that found nothing, in seconds."""
    began = time.monotonic()
    with pytest.raises(DamonLateError):
        source.harvest(guest)
    return time.monotonic() - began


def test_a_kdamond_that_is_only_late_is_waited_for(
    source: DamonSource, guests: list[GuestTopology], monkeypatch: pytest.MonkeyPatch
):
    source.arm(guests[0])
    due, plain = time.monotonic() + 1.5, Reported.newest
    monkeypatch.setattr(Reported, "newest", lambda one: plain(one) if time.monotonic() > due else None)
    assert source.harvest(guests[0]).ranges and time.monotonic() > due


def test_a_kdamond_that_somebody_else_turned_off_is_begun_anew(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source_damon, "PATIENCE_S", 0.1)
    with sleeping() as process:
        put(sysfs / ADMIN / "0/pid", str(process.pid))
        source.arm(guests[0])
    Reported.silent.add(guests[0].pid)
    harvested_late(source, guests[0])
    Reported.silent.clear()
    put(sysfs / ADMIN / "0/contexts/0/targets/0/pid_target", "nobody")
    source.arm(guests[0])
    assert source.harvest(guests[0]).ranges and watched(sysfs) == {0: str(guests[0].pid)}


def test_a_user_with_many_guests_leaves_kdamonds_to_others_and_to_libvirts(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source_damon, "OTHERS", UserQuota(most=4, share=1, reserved=0))
    mine = [replace(guest, uid=1000) for guest in guests]
    for guest in mine[:2]:
        source.arm(guest)
    with pytest.raises(VmplaceError, match="too many guests of this user"):
        source.arm(mine[2])
    source.arm(replace(mine[2], origin="libvirt"))
    assert len(watched(sysfs)) == 3


def test_a_kdamond_that_cannot_be_ended_counts_with_its_user_and_one_that_ended_does_not(
    source: DamonSource, guests: list[GuestTopology], sysfs: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(source_damon, "OTHERS", UserQuota(most=1, share=0, reserved=0))
    evil, good, _ = (replace(guest, uid=1000) for guest in guests)
    with waiting(tmp_path / "fifo") as process:
        put(sysfs / ADMIN / "0/pid", str(process.pid))
        source.arm(evil)
        source.forget(evil)
        with pytest.raises(VmplaceError, match="too many guests of this user"):
            source.arm(good)
        assert watched(sysfs) == {0: str(evil.pid)}
    process.wait()
    source.arm(good)
    assert source.harvest(good).ranges


def test_a_guest_whose_ram_changes_all_the_time_is_watched_anew_now_and_then(
    source: DamonSource, guests: list[GuestTopology], monkeypatch: pytest.MonkeyPatch
):
    evil, *others = guests
    now, starts = 1000.0, list[tuple[float, int]]()
    plain = source._admin.start

    def counted(pid: int, ranges: list[tuple[int, int]]) -> object:
        starts.append((now, pid))
        return plain(pid, ranges)

    monkeypatch.setattr(source, "_clock", lambda: now)
    for guest in guests:
        source.arm(guest)
    monkeypatch.setattr(source._admin, "start", counted)
    for look in range(200):
        now += 3
        source.arm(replace(evil, ram=(replace(evil.ram[0], npages=4 + look % 3),)))
        for guest in others:
            source.arm(guest)
    assert {pid for _, pid in starts} == {evil.pid}
    # At once, then after 30, 60, 120 and 240 s.
    assert np.diff([at for at, _ in starts]).tolist() == [30, 60, 120, 240]


def test_the_whole_ram_of_a_guest_is_watched(source: DamonSource, guests: list[GuestTopology], sysfs: Path):
    (ram,) = guests[0].ram
    second = replace(ram, hva=ram.hva - 64 * PAGE_BYTES, npages=4)
    source.arm(replace(guests[0], ram=(ram, second)))
    regions = sysfs / ADMIN / "0/contexts/0/targets/0/regions"
    assert (regions / "nr_regions").read_text() == "2"
    bounds = [int((regions / f"{at}/{end}").read_text()) for at in (0, 1) for end in ("start", "end")]
    assert bounds == sorted(bounds) and bounds[2:] == [ram.hva, ram.hva + ram.size_bytes]


def test_without_the_trace_point_the_host_is_not_supported_and_the_cure_is_named(
    sysfs: Path, tmp_path: Path, host: HostTopology, kdamonds: list[int]
):
    (sysfs / TRACE_POINT).unlink()
    with pytest.raises(UnsupportedHostError, match="trace point cannot be read") as raised:
        DamonSource(SourceSetup(host, sysfs=sysfs, state_dir=tmp_path / "run"))
    assert raised.value.hint and "mount -t tracefs" in raised.value.hint
