"""What records of hint faults say of pages, and hint faults on a host that lacks them."""

from pathlib import Path

import numpy as np
import pytest

from vmplace.errors import UnsupportedHostError
from vmplace.sampling.hint_ring import hints_of
from vmplace.sampling.page_arrays import unpacked
from vmplace.sampling.sample import VcpuHits
from vmplace.sampling.source import SourceSetup
from vmplace.sampling.source_hints import HintsSource, _node_bits, _pages, _parts, _rows
from vmplace.topology.guest import Movability, RamRange
from vmplace.topology.host import HostTopology
from vmplace.topology.placement import Slot

MIB = 1 << 20
RAM = RamRange(512 * MIB, 2048, None, 4096, Movability.MOVABLE, "test")


def test_a_host_without_patched_kvm_gets_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vmplace.sampling.source_hints.probe_features", lambda: 0b1111)
    with pytest.raises(UnsupportedHostError, match="no hint faults"):
        HintsSource(SourceSetup(HostTopology((), {}), sysfs=Path("/nowhere")))


def test_addresses_are_pages_of_the_range_through_all_its_memslots() -> None:
    slots = (Slot(0, 1024, 512 * MIB, 0), Slot(0x100000, 4096, 516 * MIB, 0), Slot(0, 2048, 512 * MIB, 1))
    parts = _parts(slots, RAM)
    gpas = np.array([0, 5 * 4096 + 7, 1024 * 4096, 1 << 32, (1 << 32) + 1023 * 4096, (1 << 32) + 1024 * 4096])
    assert _pages(gpas.astype(np.uint64), parts).tolist() == [0, 5, -1, 1024, 2047, -1]


def test_a_memslot_that_begins_before_the_range_counts_from_the_range() -> None:
    parts = _parts((Slot(100, 8192, 508 * MIB, 0),), RAM)
    assert _pages(np.array([(100 + 1024) * 4096], np.uint64), parts).tolist() == [0]


def test_nodes_have_rows_and_strangers_the_last_one() -> None:
    assert _rows(np.array([4, 0, -1, 7]), (0, 4)).tolist() == [1, 0, 2, 2]


def test_a_small_page_is_exact_and_a_huge_one_is_touched_whole() -> None:
    hits = VcpuHits(np.array([3, 600, 3]), np.array([0, 0, 1]), np.array([False, False, True]))
    bits = _node_bits(RAM, np.array([0, 1, 0, 0], np.uint8), hits, np.array([0, 0, 1]), count=3)
    assert bits.written is not None
    assert np.flatnonzero(unpacked(bits.accessed[0], 2048)).tolist() == [3, *range(512, 1024)]
    assert np.flatnonzero(unpacked(bits.written[1], 2048)).tolist() == [3]
    assert not bits.written[0].any() and not bits.accessed[2].any()


def test_a_huge_page_that_the_range_has_only_a_part_of_ends_with_it() -> None:
    ram = RamRange(512 * MIB + 500 * 4096, 20, None, 4096, Movability.MOVABLE, "test")
    hits = VcpuHits(np.array([2, 19]), np.array([0, 0]), np.array([False, False]))
    bits = _node_bits(ram, np.ones(2, np.uint8), hits, np.array([0, 0]), count=1)
    assert unpacked(bits.accessed[0], 20).tolist() == [1] * 20


def test_rows_of_the_ring_have_their_meaning() -> None:
    nowhere = np.int64(-1).astype(np.uint64)
    table = np.array([[4096, 8192], [5, 6], [0, 3], [1, nowhere], [1, 6], [1, 2]], np.uint64)
    hints = hints_of(table)
    assert hints.nids.tolist() == [1, -1]
    assert (hints.written.tolist(), hints.walked.tolist()) == ([True, False], [False, True])
    assert hints.fetched.tolist() == [False, True]
    assert hints.levels.tolist() == [1, 2]
