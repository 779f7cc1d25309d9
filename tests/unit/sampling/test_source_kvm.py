"""How the bits of a guest's ranges are asked for: through which memslots, and in how many calls."""

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from vmplace.sampling import source_kvm
from vmplace.sampling.source_kvm import (
    MOST_PIECES,
    PIECE_BYTES,
    KvmSource,
    _iter_pieces,
    _overlap,
    _Piece,
    _portions,
)
from vmplace.topology.guest import PAGE_BYTES, GuestTopology, Movability, RamRange
from vmplace.topology.placement import FEATURE_HARVEST, Placement, PlacementInfo, Slot

T = TypeVar("T")
MIB = 1 << 20
HVA = 1 << 40
Bits = npt.NDArray[np.uint64]


class KernelOfBits(Placement):
    """A placement fd on which node 1 touched each of the guest's first ``touched`` frames; counts calls."""

    def __init__(self, *slots: Slot, touched: int = 0, knows_writes: bool = True) -> None:
        super().__init__(3)
        self._info = PlacementInfo(FEATURE_HARVEST, 0b11, 0b11, slots)
        self._touched, self._knows_writes = touched, knows_writes
        self.calls = 0

    def call(self, step: Callable[[int], T]) -> T:
        self.calls += 1
        return step(self.fd)

    def info(self) -> PlacementInfo:
        self.calls += 1
        return self._info

    def harvest(
        self,
        fd: int,
        gfn: int,
        npages: int,
        page: int,
        rows: npt.NDArray[np.int32],
        accessed: Bits,
        written: Bits,
        clear: bool,
    ) -> bool:
        """Set a bit for each page, one by one, as placement.rst says."""
        words = len(accessed) // (len(rows) + 1)
        for nth in range(npages):
            if gfn + nth < self._touched:
                accessed[words + (page + nth) // 64] |= np.uint64(1 << (page + nth) % 64)
        return self._knows_writes


def harvested(
    monkeypatch: pytest.MonkeyPatch, kernel: KernelOfBits, *ranges: RamRange
) -> tuple[list[Bits], list[bool]]:
    """Return the bits of node 1, and whether writes are known, by range."""
    monkeypatch.setattr("vmplace.native.placement_harvest", kernel.harvest)
    source = object.__new__(KvmSource)
    guest = GuestTopology("g", 1, 1, "kvm", (), ranges)
    source._nids, source._rows, source._beat = (0, 1), np.array([0, 1], np.int32), lambda: None
    source._placements = {guest.identity: kernel}
    bits = source._read(guest)
    return [one.accessed[1] for one in bits], [one.written is not None for one in bits]


def ram(mib: float, npages: int) -> RamRange:
    return RamRange(HVA + int(mib * MIB), npages, None, 4096, Movability.MOVABLE, "test")


def set_bits(words: Bits) -> list[int]:
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()


def test_a_small_guest_with_many_ranges_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = (Slot(0, 160, HVA, 0), Slot(0x100000, 96, HVA + 160 * 4096, 0))
    kernel = KernelOfBits(*slots)
    harvested(monkeypatch, kernel, *(ram(nth / 4, 64) for nth in range(4)))
    assert kernel.calls == 2


def test_each_range_gets_its_own_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    # The second range begins in frame 64, so six of its pages are before frame 70.
    kernel = KernelOfBits(Slot(0, 128, HVA, 0), touched=70)
    first, second = harvested(monkeypatch, kernel, ram(0, 64), ram(0.25, 64))[0]
    assert set_bits(first) == list(range(64))
    assert set_bits(second) == list(range(6))


def test_a_range_in_two_memslots_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = (Slot(0, 100, HVA, 0), Slot(100, 28, HVA + 100 * 4096, 0), Slot(0, 128, HVA, 1))
    bits, _ = harvested(monkeypatch, KernelOfBits(*slots, touched=128), ram(0, 128))
    assert set_bits(bits[0]) == list(range(128))


def test_writes_are_not_known_where_dirty_logging_hides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = KernelOfBits(Slot(0, 64, HVA, 0), knows_writes=False)
    assert harvested(monkeypatch, kernel, ram(0, 64))[1] == [False]


def test_a_guest_with_very_many_memslots_is_asked_in_short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A VMM chooses its memslots, up to 32764 (KVM_USER_MEM_SLOTS): the watchdog hears of each call."""
    slots = (Slot(gfn, 1, HVA + gfn * PAGE_BYTES, 0) for gfn in range(10 * MOST_PIECES))
    kernel = KernelOfBits(*slots, touched=10 * MOST_PIECES)
    bits, _ = harvested(monkeypatch, kernel, ram(0, 10 * MOST_PIECES))
    assert kernel.calls == 1 + 10
    assert set_bits(bits[0]) == list(range(10 * MOST_PIECES))


def test_of_very_many_memslots_those_of_a_range_alone_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each range against each memslot would be a million looks here, without a beat."""
    looks = []

    def counted(slot: Slot, ram: RamRange) -> tuple[int, int]:
        looks.append(slot)
        return _overlap(slot, ram)

    monkeypatch.setattr(source_kvm, "_overlap", counted)
    slots = tuple(Slot(gfn, 1, HVA + gfn * PAGE_BYTES, 0) for gfn in range(1000))
    ranges = tuple(RamRange(one.hva, 1, None, 4096, Movability.MOVABLE, "test") for one in slots)
    pieces = list(_iter_pieces(slots, ranges))
    assert [one.gfn for one in pieces] == list(range(1000))
    assert len(looks) == 1000


def test_the_portions_of_very_many_pieces_take_a_time_that_grows_with_their_number_alone() -> None:
    pieces = [_Piece(0, gfn, 1, gfn) for gfn in range(32_764)]
    began = time.thread_time()
    portions = list(_portions(pieces))
    # A sum over all pieces for each of them took 16 s.
    assert time.thread_time() - began < 0.5
    assert [one for portion in portions for one in portion] == pieces


def test_no_portion_is_larger_than_what_is_harvested_in_one_go() -> None:
    most = PIECE_BYTES // PAGE_BYTES
    sizes = [most // 2, most // 2, 1, most, most - 1, 1, 1]
    portions = _portions([_Piece(0, 0, npages, 0) for npages in sizes])
    assert [[one.npages for one in portion] for portion in portions] == [
        [most // 2, most // 2],
        [1],
        [most],
        [most - 1, 1],
        [1],
    ]
