"""Page statistics: heat ages, ranges that changed start cold."""

import numpy as np

from vmplace.model.pages import absorbed
from vmplace.sampling.sample import RangeSample, SampleBatch, SourceSight
from vmplace.topology.guest import Movability, RamRange


def batch(accessed: list[int], hva: int = 0x10000) -> SampleBatch:
    ram = RamRange(hva, len(accessed), None, 4096, Movability.MOVABLE, "")
    nodes = np.array([0] * (len(accessed) - 1) + [-1], np.int8)
    one = RangeSample(ram, np.array(accessed, np.uint8), nodes, np.zeros(1, np.uint8))
    return SampleBatch("db1", "idle", SourceSight(), 0, 1, (0, 3), (one,))


def test_heat_halves_and_a_touch_adds_128():
    pages = absorbed(absorbed(None, batch([1, 1, 0])), batch([0, 1, 0]))
    assert pages.ranges[0].heat.tolist() == [64, 192, 0]


def test_windows_are_counted():
    assert absorbed(absorbed(None, batch([1, 0])), batch([1, 0])).windows == 2


def test_a_range_of_other_shape_starts_cold():
    pages = absorbed(absorbed(None, batch([1, 1])), batch([0, 0, 0]))
    assert pages.ranges[0].heat.tolist() == [0, 0, 0]


def test_pages_are_counted_by_nid_and_absent_ones_are_not():
    pages = absorbed(None, batch([1, 0, 0]))
    assert pages.pages_by_node() == {0: 2, 3: 0}
    assert pages.pages_by_node(hot_only=True) == {0: 1, 3: 0}
    assert pages.ranges[0].present == 2
