"""Page statistics: heat ages, ranges that changed start cold."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.model.known_pages import known_pages
from vmplace.model.page_windows import absorbed
from vmplace.model.pages import HEAT_WINDOWS, RangePages
from vmplace.sampling.sample import NodeBits, NodeHits, RangeSample, SampleBatch, SourceCoverage
from vmplace.topology.guest import Movability, RamRange


def batch(accessed: list[int], hva: int = 0x10000) -> SampleBatch:
    ram = RamRange(hva, len(accessed), None, 4096, Movability.MOVABLE, "")
    nodes = np.array([0] * (len(accessed) - 1) + [-1], np.int8)
    one = RangeSample(ram, np.array(accessed, np.uint8), nodes, np.zeros(1, np.uint8))
    return SampleBatch("db1", "idle", SourceCoverage(), 0, 1, (0, 3), (one,))


def test_heat_halves_and_a_touch_adds_128():
    pages = absorbed(absorbed(None, batch([1, 1, 0])), batch([0, 1, 0]))
    assert pages.ranges[0].part(0, 3)[0].tolist() == [64, 192, 0]


def test_windows_are_counted():
    assert absorbed(absorbed(None, batch([1, 0])), batch([1, 0])).windows == 2


def test_samples_are_remembered_as_long_as_bits_and_code_for_longer():
    """A program may do other things by now; code stays code."""
    pages = None
    for page in range(9):
        one = batch([1, 1, 1])
        hits, text = NodeHits(np.array([page % 3]), np.array([0])), np.array([page % 3])
        pages = absorbed(pages, replace(one, ranges=(replace(one.ranges[0], counted=hits, text=text),)))
    assert pages is not None
    assert [int(one.pages[0]) for one in pages.ranges[0].counted] == [2, 1, 0, 2]
    assert len(pages.ranges[0].text) == 9


def test_a_range_of_other_shape_starts_cold():
    pages = absorbed(absorbed(None, batch([1, 1])), batch([0, 0, 0]))
    assert pages.ranges[0].part(0, 3)[0].tolist() == [0, 0, 0]


def test_all_start_cold_on_other_nodes():
    before = absorbed(None, batch([1, 1, 0]))
    after = absorbed(before, replace(batch([0, 1, 0]), nids=(0, 1, 3)))
    assert after.ranges[0].part(0, 3)[0].tolist() == [0, 128, 0] and after.windows == 1


def test_pages_are_counted_by_nid_and_absent_ones_are_not():
    pages = absorbed(None, batch([1, 0, 0]))
    assert pages.pages_by_node() == {0: 2, 3: 0}
    assert pages.pages_by_node(hot_only=True) == {0: 1, 3: 0}
    assert pages.ranges[0].present == 2


def seen_by(nodes: int, blocks: int, *, huge: bool) -> RangePages:
    """Return what is known of pages, or of huge ones, that all nodes touch in half of the windows."""
    chance, npages, pages = np.random.default_rng(1), 512 * blocks, None
    ram = RamRange(1 << 40, npages, None, 4096, Movability.MOVABLE, "")
    places = (np.arange(npages) // (512 if huge else 1) % nodes).astype(np.int8)
    for _ in range(HEAT_WINDOWS + 1):
        touched = chance.random((nodes + 1, blocks, 512)) < 0.5
        touched[nodes] = False
        touched = touched[:, :, :1].repeat(512, axis=2) if huge else touched
        bits = np.packbits(touched.reshape(nodes + 1, -1), axis=1, bitorder="little").view(np.uint64)
        by_node = NodeBits(bits, bits)
        sample = RangeSample(ram, by_node.anywhere(npages), places, np.full(blocks, huge, np.uint8), by_node)
        pages = absorbed(
            pages, SampleBatch("a", "kvm", SourceCoverage(), 0, 1, tuple(range(nodes)), (sample,))
        )
    assert pages
    return pages.ranges[0]


def test_a_page_takes_four_bytes_at_most_with_four_nodes_and_a_huge_one_less_than_a_tenth() -> None:
    blocks = 64
    small, huge = (seen_by(4, blocks, huge=huge).nbytes for huge in (False, True))
    assert 3.5 < small / (512 * blocks) <= 4
    # 40 MiB for 1 TiB of them.
    assert huge / blocks <= 80


@pytest.mark.parametrize("offset", [0, 37])
def test_units_are_what_can_move_in_runs_of_what_is_alike(offset: int) -> None:
    chance, npages = np.random.default_rng(offset), 40 * 512 - offset
    block = (np.arange(npages) + offset) // 512
    huge = (chance.random(40) < 0.3).astype(np.uint8)
    nodes = np.where(chance.random(40)[block] < 0.3, chance.integers(-1, 3, npages), block % 3)
    nodes = np.where(huge[block], block % 4 - 1, nodes).astype(np.int8)
    differs = (chance.random(40) < 0.3)[block] & (huge[block] == 0)
    heat = np.where(differs, chance.integers(0, 256, npages), chance.integers(0, 256, 40)[block]) & 0xFE
    ram = RamRange((1 << 40) + offset * 4096, npages, None, 4096, Movability.MOVABLE, "")
    pages = known_pages(ram, heat.astype(np.uint8), nodes, huge)
    first = (np.arange(npages) + offset) % 512 == 0
    for settled, of in ((1, pages.elsewhere(1)), (-1, pages)):
        unit = np.flatnonzero(((huge[block] == 0) | first) & (nodes >= 0) & (nodes != settled))
        wanted = [(huge[block[i]], i, heat[i], nodes[i]) for i in unit.tolist()]
        assert singly(of) == sorted(wanted, key=lambda one: one[:2])


def test_memory_of_one_node_that_is_touched_as_a_whole_is_a_run_for_each_block() -> None:
    npages = 40 * 512
    ram = RamRange(1 << 40, npages, None, 4096, Movability.MOVABLE, "")
    heat = np.repeat(np.arange(40, dtype=np.uint8) * 2, 512)
    heat[7] += 2
    runs = [*known_pages(ram, heat, np.zeros(npages, np.int8), np.zeros(40, np.uint8)).units()]
    counts = np.concatenate([units.count for units in runs]).tolist()
    assert counts == [7, 1, 504, *[512] * 39]


def singly(pages: RangePages) -> list[tuple[int, int, int, int]]:
    """Return each unit in the order in which they are listed: huge, page, heat, node."""
    return [
        (int(units.huge), (hva - pages.ram.hva) // 4096 + i, heat, node)
        for units in pages.units()
        for hva, count, heat, node in zip(
            *(one.tolist() for one in (units.hva, units.count, units.heat, units.node_index)), strict=True
        )
        for i in range(count)
    ]
