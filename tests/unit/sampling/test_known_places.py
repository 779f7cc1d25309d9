"""A window looks up what was touched or moved, and all else within 16 windows."""

import mmap
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.sampling.guest_process import GuestProcess, ram_range
from vmplace.sampling.block_rows import BlockRows, rows_of_pages
from vmplace.sampling.known_places import TURNS, KnownPlaces
from vmplace.sampling.page_arrays import Bytes
from vmplace.sampling.page_frames import FrameChunk, block_count
from vmplace.sampling.range_walk import RangeWalk
from vmplace.sampling.sample import RangeSample
from vmplace.topology.guest import GuestTopology, RamRange
from vmplace.topology.procfs import read_start_time

BLOCKS, HVA = 3000, 1 << 40
RAM = ram_range(HVA + 100 * 4096, BLOCKS * 512 - 300)
GUEST = GuestTopology("db1", 1, 1, "kvm", (), (RAM,))
NOBODY = np.zeros(BLOCKS, np.bool_)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="frame numbers need root (CAP_SYS_ADMIN)")


def known(ram: RamRange = RAM) -> RangeSample:
    nothing = np.zeros(ram.npages, np.uint8)
    nodes = BlockRows.of(rows_of_pages(nothing.view(np.int8), ram, -1))
    return RangeSample(ram, nothing, nothing.view(np.int8), np.zeros(block_count(ram), np.uint8), nodes=nodes)


@pytest.fixture
def places() -> KnownPlaces:
    places = KnownPlaces()
    places.note(GUEST, (known(),))
    return places


def due(places: KnownPlaces, touched: np.ndarray = NOBODY) -> np.ndarray:
    before = places.before(GUEST, RAM, touched)
    assert before
    return before.due


def test_all_is_looked_up_of_a_guest_a_range_or_a_size_that_is_new(places: KnownPlaces) -> None:
    assert KnownPlaces().before(GUEST, RAM, NOBODY) is None
    assert places.before(GUEST, replace(RAM, npages=RAM.npages - 512), NOBODY) is None
    places.forget(GUEST)
    assert places.before(GUEST, RAM, NOBODY) is None


def test_each_block_is_looked_up_within_so_many_windows(places: KnownPlaces) -> None:
    seen = np.zeros(BLOCKS, np.int64)
    for _ in range(TURNS):
        seen += due(places)
        places.note(GUEST, (known(),))
    assert (seen == 1).all()


def test_what_was_touched_or_moved_is_looked_up_at_once_and_but_once(places: KnownPlaces) -> None:
    touched = np.arange(BLOCKS) == 2000
    places.moved(GUEST, np.array([HVA + 1500 * (2 << 20) + 7 * 4096, RAM.hva, HVA - 4096], np.uint64))
    in_turn = due(KnownPlaces(dict(places._guests)))
    assert due(places, touched)[[0, 1500, 2000]].all() and not in_turn[2000]
    places.note(GUEST, (known(),))
    assert not due(places)[1500]


@pytest.fixture
def walk() -> Iterator[RangeWalk]:
    walk = RangeWalk((0,), Path("/sys"), Path("/proc"))
    yield walk
    walk.close()


def looked_up(
    walk: RangeWalk, guest: GuestTopology, places: KnownPlaces, touched: list[int]
) -> tuple[RangeSample, int]:
    """Return the first range as a source would tell it, and how many pages were looked up."""
    ram, count = guest.ram[0], []

    def fill(_chunk: FrameChunk, accessed: Bytes) -> None:
        count.append(len(accessed))

    blocks = np.isin(np.arange(block_count(ram)), touched)
    with walk.frames.opened(guest) as pagemap:
        sample = walk.sample(guest, pagemap, ram, fill, places.before(guest, ram, blocks))
    sample = replace(sample, nodes=BlockRows.of(rows_of_pages(sample.node_index, ram, -1)))
    places.note(guest, (sample,))
    return sample, sum(count)


def has_huge_pages(guest: GuestProcess) -> bool:
    """Return what the kernel says of the range's mapping, in smaps."""
    hva, huge = guest.topology.ram[0].hva, 0
    inside = False
    for line in Path(f"/proc/{guest.topology.pid}/smaps").read_text().splitlines():
        first, _, rest = line.partition("-")
        if rest and all(c in "0123456789abcdef" for c in first):
            inside = int(first, 16) <= hva < int(rest.split()[0], 16)
        elif inside and line.startswith("AnonHugePages:"):
            huge += int(line.split()[1])
    return huge > 0


@needs_root
def test_what_is_not_due_is_as_it_was(walk: RangeWalk, guest: GuestProcess) -> None:
    """Both blocks are of the same turn: after the first two windows none is due."""
    guest.touch(0, 1024)
    places = KnownPlaces()
    first, of_all = looked_up(walk, guest.topology, places, [])
    looked_up(walk, guest.topology, places, [])
    guest.touch(100, 200, "drop")
    guest.touch(600, 700, "drop")
    sample, pages = looked_up(walk, guest.topology, places, [1])
    assert (of_all, pages) == (1024, 512)
    gone = np.flatnonzero(sample.node_index != first.node_index)
    assert gone.tolist() == list(range(600, 700)) and (sample.node_index[gone] == -1).all()
    places.moved(guest.topology, np.array([guest.topology.ram[0].hva], np.uint64))
    sample, pages = looked_up(walk, guest.topology, places, [])
    assert pages == 512 and (sample.node_index[100:200] == -1).all()


@needs_root
@pytest.mark.parametrize("guest", [4096, 2 << 20], indirect=True)
def test_huge_pages_are_distinguished_from_small_ones(walk: RangeWalk, guest: GuestProcess) -> None:
    guest.touch(0, 1024)
    smaps_say = has_huge_pages(guest)
    sample, _ = looked_up(walk, guest.topology, KnownPlaces(), [])
    assert sample.huge.tolist() == [smaps_say] * 2


@needs_root
def test_the_zero_page_is_nowhere(walk: RangeWalk) -> None:
    area = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    area[4096] = 1
    area.seek(0)
    area.read(3 * 4096)
    ram = ram_range(np.frombuffer(area, np.uint8).ctypes.data, 4)
    me = GuestTopology("me", os.getpid(), read_start_time(os.getpid()), "kvm", (), (ram,))
    sample, _ = looked_up(walk, me, KnownPlaces(), [])
    assert (sample.node_index >= 0).tolist() == [False, True, False, False]
