"""What a guest may cost follows from what it has resident, not from what it mapped."""

import mmap
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vmplace.cpu_time import thread_cpu_ns
from vmplace.topology.guest import GuestTopology, Movability, RamRange
from vmplace.topology.guest_finder import GuestFinder
from vmplace.topology.memory_budget import (
    BASE_BYTES,
    GIB,
    MIB,
    affordable,
    guests_budget_bytes,
    host_limit_bytes,
    needed_bytes,
)
from vmplace.topology.resident import MOST_RUNS, PIECE_BYTES, ResidentRam, parts, present_pieces
from vmplace.users import Users

CHILD = Path(__file__).with_name("kvm_child.py")
MAP_NORESERVE = 0x4000
TIB = 1 << 40


def ram(npages: int, hva: int = 0, base_gfn: int | None = None) -> RamRange:
    return RamRange(hva, npages, base_gfn, 4096, Movability.MOVABLE, "")


def guest(name: str, gib: float) -> GuestTopology:
    return GuestTopology(name, sum(name.encode()), 1, "kvm", (), (ram(int(gib * GIB) // 4096),))


@pytest.fixture
def huge() -> Iterator[tuple[mmap.mmap, int]]:
    """A mapping of 1 TiB, its address, and three pages that are there."""
    try:
        room = mmap.mmap(-1, TIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    except OSError:
        pytest.skip("this machine overcommits no memory (vm.overcommit_memory = 2)")
    room.madvise(mmap.MADV_NOHUGEPAGE)
    for at in (0, 5 * PIECE_BYTES, TIB - 1):
        room[at] = 1
    # To read a page maps the zero page, which takes no memory.
    assert room[TIB // 2] == 0
    address = next(vma for vma in Path("/proc/self/maps").read_text().splitlines() if _is_tib(vma))
    yield room, int(address.partition("-")[0], 16)
    room.close()


def _is_tib(line: str) -> bool:
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    return end - start >= TIB


@pytest.fixture
def pagemap() -> Iterator[int]:
    fd = os.open("/proc/self/pagemap", os.O_RDONLY)
    yield fd
    os.close(fd)


def test_of_a_tebibyte_those_pieces_count_that_have_a_page(huge: tuple[mmap.mmap, int], pagemap: int):
    try:
        found = present_pieces(pagemap, huge[1], TIB)
    except OSError:
        pytest.skip("this kernel (before 6.7) has no PAGEMAP_SCAN")
    assert found.tolist() == [0, 5, TIB // PIECE_BYTES - 1]


def test_a_guest_with_little_of_it_there_is_cut_down_and_only_grows(huge: tuple[mmap.mmap, int]):
    room, hva = huge
    now, me = 0.0, (os.getpid(), 1)
    resident = ResidentRam(clock=lambda: now)
    whole = (ram(TIB // 4096, hva, base_gfn=1 << 20),)
    before = resident.ranges(me, whole, 0)
    if before == whole:
        pytest.skip("this kernel (before 6.7) has no PAGEMAP_SCAN")
    assert [part.hva - hva for part in before] == [0, 5 * PIECE_BYTES, TIB - PIECE_BYTES]
    assert [part.base_gfn for part in before] == [(1 << 20) + (part.hva - hva) // 4096 for part in before]
    room.madvise(mmap.MADV_DONTNEED, 0, PIECE_BYTES)
    room[9 * PIECE_BYTES] = 1
    assert resident.ranges(me, whole, 0) == before
    now = 31.0
    assert [part.hva - hva for part in resident.ranges(me, whole, 0)] == [
        0, 5 * PIECE_BYTES, 9 * PIECE_BYTES, TIB - PIECE_BYTES,
    ]  # fmt: skip


@pytest.mark.parametrize(("mapped", "there"), [(GIB, 0), (16 * GIB, 4 * GIB)])
def test_a_guest_that_is_small_or_mostly_there_stays_whole(mapped: int, there: int):
    whole = (ram(mapped // 4096),)
    assert ResidentRam().ranges((1, 1), whole, there) == whole


def test_scattered_pages_make_no_more_than_so_many_ranges():
    chosen = np.unique(np.random.default_rng(1).integers(0, 1 << 20, 5000))
    found = list(parts(ram(32 * TIB // 4096), chosen))
    assert len(found) <= MOST_RUNS
    held = [(part.hva // PIECE_BYTES, (part.hva + part.size_bytes) // PIECE_BYTES) for part in found]
    assert all(any(first <= piece < end for first, end in held) for piece in chosen[::50].tolist())


@pytest.mark.kvm
@pytest.mark.parametrize("tib", [1, 32])
def test_a_process_with_tebibytes_mapped_costs_next_to_nothing(tib: int):
    process = subprocess.Popen(
        [sys.executable, str(CHILD), "private", "1", "CPU {}/KVM"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NORESERVE_TIB": str(tib)},
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            pytest.skip("this machine overcommits no memory (vm.overcommit_memory = 2)")
        tracemalloc.start()
        scan = GuestFinder().find()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        found = next(guest for guest in scan.guests if guest.pid == process.pid)
        mapped = sum(one.size_bytes for one in found.ram)
        if mapped >= TIB:
            pytest.skip("this kernel (before 6.7) has no PAGEMAP_SCAN")
        # 4 pages in 32 MiB each; the guest's own 96 MiB are no part of the largest mapping.
        assert mapped <= GIB
        assert peak < 32 * MIB
    finally:
        process.kill()
        process.communicate()


@pytest.mark.kvm
def test_where_memory_is_short_an_idle_process_of_a_gibibyte_costs_what_it_has_touched():
    process = subprocess.Popen(
        [sys.executable, str(CHILD), "private", "1", "CPU {}/KVM"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "NORESERVE_MIB": "1024"},
    )
    try:
        assert process.stdout is not None and process.stdout.readline()
        finder = GuestFinder()

        def counted() -> tuple[int, int | None]:
            found = next(guest for guest in finder.find().guests if guest.pid == process.pid)
            return sum(one.size_bytes for one in found.ram), found.uid

        assert counted() == (GIB, os.getuid())
        finder.spare()
        there = counted()[0]
        if there == GIB:
            pytest.skip("this kernel (before 6.7) has no PAGEMAP_SCAN")
        # A page in each quarter.
        assert there == 4 * PIECE_BYTES
    finally:
        process.kill()
        process.communicate()


def plain_s(pid: int) -> float:
    """Return the CPU time that it takes, on this machine and now, to read its mappings in /proc."""
    began = thread_cpu_ns()
    lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    assert len(lines) > 9000
    return (thread_cpu_ns() - began) / 1e9


@pytest.mark.slow
@pytest.mark.kvm
@pytest.mark.parametrize(("mappings", "is_read"), [(9_000, True), (32_000, False)])
def test_a_process_with_many_mappings_costs_a_look_little_or_is_left_alone(mappings: int, is_read: bool):
    process = subprocess.Popen(
        [sys.executable, str(CHILD), "private", "1", "CPU {}/KVM"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MAPPINGS": str(mappings)},
    )
    try:
        assert process.stdout is not None and process.stdout.readline()
        finder, began = GuestFinder(), thread_cpu_ns()
        scan = finder.find()
        first_s, began = (thread_cpu_ns() - began) / 1e9, thread_cpu_ns()
        finder.find()
        second_s = (thread_cpu_ns() - began) / 1e9
        tracemalloc.start()
        GuestFinder().find()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # Text of 32 MiB at the most is read, and only when a mapping changed.
        slow = max(1.0, 30 * plain_s(process.pid))
        assert first_s < slow and second_s < slow / 2 and peak < 80 * MIB
        assert (process.pid in {guest.pid for guest in scan.guests}) == is_read
        if not is_read:
            (reason,) = (skip.reason for skip in scan.skipped if skip.pid == process.pid)
            assert "more than 10000 mappings" in reason
    finally:
        process.kill()
        process.communicate()


PIECES = """
import ctypes, fcntl, os, sys
libc, pieces, step = ctypes.CDLL(None), int(sys.argv[1]), (16 << 20) + 4096
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
base = libc.mmap(None, pieces * step, 0, 0x4022, -1)
for piece in range(pieces):
    assert libc.mprotect(base + piece * step, 16 << 20, 3) == 0
vm = fcntl.ioctl(os.open("/dev/kvm", os.O_RDWR), 0xAE01, 0)
vcpu = fcntl.ioctl(vm, 0xAE41, 0)
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.kvm
def test_ram_in_thousands_of_pieces_is_left_alone_and_nothing_of_it_is_kept():
    command = [sys.executable, "-c", PIECES, "4900"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        finder = GuestFinder()
        tracemalloc.start()
        try:
            scan = finder.find()
            kept = tracemalloc.get_traced_memory()[0]
            began = thread_cpu_ns()
            finder.find()
            again_s = (thread_cpu_ns() - began) / 1e9
        finally:
            tracemalloc.stop()
        slow = max(1.0, 30 * plain_s(process.pid))
        process.kill()
    (reason,) = (skip.reason for skip in scan.skipped if skip.pid == process.pid)
    assert "left alone" in reason and "more than 1024 pieces" in reason
    # It was 5 MiB for each such process, and 0.3 s each time once nothing was kept.
    assert kept < 2 * MIB and again_s < slow


def test_thousands_of_guests_without_memory_count_with_what_the_agent_keeps_of_them():
    tiny = [replace(guest("tiny", 1 / 4096), pid=pid, uid=1000) for pid in range(10_000)]
    large = replace(guest("large", 16), pid=20_000, uid=1001)
    kept, left = affordable([*tiny, large], 200 * MIB, owner_of=lambda uid: uid)
    assert large in kept and 300 < len(kept) < 700 and len(kept) + len(left) == 10_001
    pieces = replace(guest("pieces", 1), ram=tuple(ram(256, hva=i << 30) for i in range(1024)))
    assert needed_bytes([pieces]) > 4 * MIB


def test_what_the_agent_needs_follows_from_the_host():
    # docs/design/block-rows.md: up to 1,540 MiB of statistics for 1 TiB; one guest may have all of it.
    assert 1540 * MIB < host_limit_bytes(1 << 40) - host_limit_bytes(0) < 4 * GIB
    assert host_limit_bytes(4 * GIB) < 256 * MIB


def test_the_largest_guest_that_does_not_fit_is_left_alone_with_the_reason():
    kept, left = affordable([guest("a", 4), guest("b", 1024), guest("c", 8)], 160 * MIB)
    assert [one.name for one in kept] == ["a", "c"]
    assert [one.name for one, _ in left] == ["b"]
    assert left[0][1].startswith("guest b: left alone, its 1024.0 GiB need 3072 MiB")
    assert "160 MiB of memory" in left[0][1]


def test_guests_of_anybody_do_not_push_out_what_libvirt_runs():
    mine = replace(guest("mine", 1024), origin="libvirt")
    others = [replace(guest(f"other{pid}", 900), pid=pid) for pid in (7, 8)]
    kept, left = affordable([*others, mine, guest("small", 4)], 4 * GIB)
    assert [one.name for one in kept] == ["mine", "small"]
    assert {one.name for one, _ in left} == {"other7", "other8"}


BUDGET_OF_64_GIB = host_limit_bytes(64 * GIB) - BASE_BYTES


def many_of_one_user(count: int) -> list[GuestTopology]:
    return [replace(guest("idle", 1), pid=pid, uid=1001) for pid in range(1, count + 1)]


def test_many_small_guests_of_one_user_do_not_push_out_anothers():
    theirs = replace(guest("theirs", 16), uid=1002)
    kept, left = affordable([*many_of_one_user(191), theirs], BUDGET_OF_64_GIB)
    assert theirs in kept
    assert {one.uid for one, _ in left} == {1001}
    # What nobody else wants is theirs all the same.
    assert len(kept) > 120


def test_a_user_with_subordinate_ids_has_one_share(tmp_path: Path):
    """Each idle process runs as another id of those that /etc/subuid lends one user."""
    (tmp_path / "passwd").write_text("alice:x:1001:1001::/:/bin/sh\n")
    (tmp_path / "subuid").write_text("alice:100000:65536\n")
    idle = [replace(one, uid=100_000 + one.pid) for one in many_of_one_user(190)]
    idle.append(replace(guest("own", 1), pid=777, uid=1001))
    theirs = replace(guest("theirs", 16), uid=1002)
    kept, left = affordable([*idle, theirs], BUDGET_OF_64_GIB, Users(tmp_path).owner_of)
    assert theirs in kept
    assert len(kept) > 120 and all(one.uid != 1002 for one, _ in left)


@pytest.mark.parametrize("seed", range(20))
def test_guests_that_have_no_more_memory_than_the_host_are_all_kept(seed: int):
    """So nobody is pushed out by many small ones, unless the host promises memory that it does not have."""
    cuts = np.sort(np.random.default_rng(seed).integers(1, 64 * 1024, seed * 3))
    mib = np.diff([0, *cuts.tolist(), 64 * 1024])
    guests = [
        replace(guest("vm", size / 1024), pid=pid, uid=64055 + pid % 3, origin=("libvirt", "kvm")[pid % 2])
        for pid, size in enumerate(mib.tolist(), 1)
        if size
    ]
    assert affordable(guests, BUDGET_OF_64_GIB)[1] == ()


def test_users_come_in_equal_shares_whatever_the_sizes_of_their_guests():
    big = [replace(guest("big", 20), pid=pid, uid=1002) for pid in (501, 502)]
    kept, _ = affordable([*big, *many_of_one_user(191)], BUDGET_OF_64_GIB)
    assert [one.pid for one in kept if one.uid == 1002] == [501, 502]


def test_libvirts_guests_are_one_users_and_smaller_ones_come_first_among_them():
    ran = [replace(guest("vm", gib), pid=gib, uid=64055, origin="libvirt") for gib in (150, 30, 20)]
    kept, left = affordable([*many_of_one_user(191), *ran], BUDGET_OF_64_GIB)
    assert [one.pid for one in kept if one.origin == "libvirt"] == [30, 20]
    assert ran[0] in [one for one, _ in left]


def test_guests_that_fit_are_all_kept():
    guests = [guest("a", 4), guest("b", 8)]
    assert affordable(guests, 160 * MIB) == (tuple(guests), ())


def test_limits_of_the_control_group_and_of_those_above_it_are_kept_to(tmp_path: Path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("1:name=systemd:/\n0::/system.slice/vmplace.service\n")
    group = tmp_path / "sys/fs/cgroup/system.slice/vmplace.service"
    group.mkdir(parents=True)
    free = guests_budget_bytes(1 << 40, tmp_path / "proc", tmp_path / "sys")
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text(f"{256 * MIB}\n")
    assert guests_budget_bytes(1 << 40, tmp_path / "proc", tmp_path / "sys") == 160 * MIB < free
    # Workers that ask libvirt are in the group.
    assert guests_budget_bytes(1 << 40, tmp_path / "proc", tmp_path / "sys", with_libvirt=True) == 96 * MIB
