"""Page statistics: heat ages, ranges that changed start cold."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.model.known_pages import known_pages
from vmplace.model.page_windows import absorbed
from vmplace.model.pages import HEAT_WINDOWS, RangePages
from vmplace.sampling.sample import NodeBits, RangeSample, SampleBatch, SourceSight
from vmplace.topology.guest import Movability, RamRange


def batch(accessed: list[int], hva: int = 0x10000) -> SampleBatch:
    ram = RamRange(hva, len(accessed), None, 4096, Movability.MOVABLE, "")
    nodes = np.array([0] * (len(accessed) - 1) + [-1], np.int8)
    one = RangeSample(ram, np.array(accessed, np.uint8), nodes, np.zeros(1, np.uint8))
    return SampleBatch("db1", "idle", SourceSight(), 0, 1, (0, 3), (one,))


def test_heat_halves_and_a_touch_adds_128():
    pages = absorbed(absorbed(None, batch([1, 1, 0])), batch([0, 1, 0]))
    assert pages.ranges[0].part(0, 3)[0].tolist() == [64, 192, 0]


def test_windows_are_counted():
    assert absorbed(absorbed(None, batch([1, 0])), batch([1, 0])).windows == 2


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
        pages = absorbed(pages, SampleBatch("a", "kvm", SourceSight(), 0, 1, tuple(range(nodes)), (sample,)))
    assert pages
    return pages.ranges[0]


def test_a_page_takes_four_bytes_at_most_with_four_nodes_and_a_huge_one_less_than_a_tenth() -> None:
    blocks = 64
    small, huge = (seen_by(4, blocks, huge=huge).nbytes for huge in (False, True))
    assert 3.5 < small / (512 * blocks) <= 4
    # 40 MiB for 1 TiB of them.
    assert huge / blocks <= 80


@pytest.mark.parametrize("offset", [0, 37])
def test_units_elsewhere_are_those_that_are_not_on_the_node(offset: int) -> None:
    chance, npages = np.random.default_rng(offset), 40 * 512 - offset
    block = (np.arange(npages) + offset) // 512
    huge = (chance.random(40) < 0.3).astype(np.uint8)
    nodes = np.where(chance.random(40)[block] < 0.3, chance.integers(-1, 3, npages), block % 3)
    nodes = np.where(huge[block], block % 4 - 1, nodes).astype(np.int8)
    heat = chance.integers(0, 256, 40).astype(np.uint8)[block]
    ram = RamRange((1 << 40) + offset * 4096, npages, None, 4096, Movability.MOVABLE, "")
    pages = known_pages(ram, heat, nodes, huge)
    units = np.array([unit for of in pages.elsewhere(1).units() for unit in of.index.tolist()])
    unit = (huge[block] == 0) | ((np.arange(npages) + offset) % 512 == 0)
    assert sorted(units.tolist()) == np.flatnonzero(unit & (nodes >= 0) & (nodes != 1)).tolist()
    everywhere = sum(len(of.index) for of in pages.units())
    assert everywhere - len(units) == np.count_nonzero(unit & (nodes == 1))
