"""Are huge pages found, though not each page is asked about?  On this machine's own frames."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.sampling.guest_process import GuestProcess, ram_range
from vmplace.sampling.page_frames import FrameChunk, FrameReader, huge_blocks, whole_blocks
from vmplace.topology.guest import RamRange

PMD_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE = pytest.mark.parametrize("guest", [2 << 20], indirect=True)

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="frame numbers need root (CAP_SYS_ADMIN)"),
    pytest.mark.skipif("[never]" in PMD_THP.read_text(), reason="transparent huge pages are off"),
]


@pytest.fixture
def frames() -> Iterator[FrameReader]:
    reader = FrameReader()
    yield reader
    reader.close()


def resolved(frames: FrameReader, guest: GuestProcess, ram: RamRange) -> FrameChunk:
    """Return the first frames of the range, resolved."""
    with frames.opened(guest.topology) as pagemap:
        chunk = next(frames.chunks(pagemap, ram))
    frames.resolve_blocks(ram, chunk)
    return chunk


@HUGE
def test_huge_pages_are_found(frames: FrameReader, guest: GuestProcess) -> None:
    guest.touch(0, 1024)
    ram = guest.topology.ram[0]
    chunk = resolved(frames, guest, ram)
    assert huge_blocks(chunk, ram).tolist() == [1, 1]
    assert chunk.heads.tolist() == np.repeat(chunk.pfns[::512], 512).tolist()


@HUGE
def test_what_is_left_of_a_huge_page_is_not_one(frames: FrameReader, guest: GuestProcess) -> None:
    guest.touch(0, 1024)
    guest.touch(600, 610, "drop")
    ram = guest.topology.ram[0]
    assert huge_blocks(resolved(frames, guest, ram), ram).tolist() == [1, 0]


@HUGE
def test_a_range_that_begins_within_a_huge_page_has_none_there(
    frames: FrameReader, guest: GuestProcess
) -> None:
    guest.touch(0, 1024)
    whole = guest.topology.ram[0]
    ram = ram_range(whole.hva + 4096, whole.npages - 1)
    assert huge_blocks(resolved(frames, guest, ram), ram).tolist() == [0, 1]


def test_small_pages_are_no_huge_ones(frames: FrameReader, guest: GuestProcess) -> None:
    guest.touch(0, 1024)
    ram = guest.topology.ram[0]
    chunk = resolved(frames, guest, ram)
    assert huge_blocks(chunk, ram).tolist() == [0, 0]
    assert chunk.heads.tolist() == chunk.pfns.tolist()


@pytest.mark.parametrize(
    ("npages", "at", "count"), [(1024, 0, 2), (1023, 1, 1), (511, 1, 0), (510, 1, 0), (3, 5, 0)]
)
def test_whole_blocks_begin_at_their_borders(npages: int, at: int, count: int) -> None:
    blocks = whole_blocks(np.arange(npages), at)
    assert blocks.shape == (count, 512)
    assert all((first + at) % 512 == 0 for first in blocks[:, 0])
