"""The rate of pages, against touches at rates that were declared; the control: bits read once a window."""

import numpy as np
import numpy.typing as npt
import pytest

from vmplace.model.page_rates import PER_SECOND
from vmplace.model.page_windows import absorbed
from vmplace.model.pages import GuestPages, RangePages
from vmplace.model.touched_blocks import touched_pages
from vmplace.sampling.page_arrays import Bits
from vmplace.sampling.page_frames import block_count
from vmplace.sampling.sample import EarlyBits, NodeBits, RangeSample, SampleBatch, SourceCoverage
from vmplace.topology.guest import Movability, RamRange

Floats = npt.NDArray[np.float64]
SECOND_NS = 10**9
READINGS_NS = (4 * 10**6, 16 * 10**6, 62 * 10**6, 250 * 10**6)
NPAGES, WINDOWS = 70_000, 12
OWN, NEIGHBOUR = 60.0, 3.0
EVEN = np.full((2, NPAGES), 3.0)
declared = np.repeat([3.0, 24.0, 192.0], NPAGES // 3)


def packed(touched: npt.NDArray[np.bool_]) -> Bits:
    """Return bitmaps [node, page], and a row for nodes that are not known."""
    rows = np.zeros((len(touched) + 1, -(-touched.shape[1] // 64) * 64), np.uint8)
    rows[:-1, : touched.shape[1]] = touched
    return np.packbits(rows, axis=1, bitorder="little").view(np.uint64)


def window(per_second: Floats, chance: np.random.Generator, readings_ns: tuple[int, ...]) -> SampleBatch:
    """Return a second of touches by [node, page], at random times."""
    with np.errstate(divide="ignore"):
        due_ns = chance.exponential(1.0, per_second.shape) / per_second * SECOND_NS
    early = tuple(EarlyBits(ns, packed(due_ns < ns)) for ns in readings_ns)
    npages = per_second.shape[1]
    ram = RamRange(0x7F0000000000, npages, None, 4096, Movability.MOVABLE, "test")
    bits = NodeBits(packed(due_ns < SECOND_NS), None, early)
    sample = RangeSample(
        ram, bits.anywhere(npages), np.zeros(npages, np.int8), np.zeros(block_count(ram), np.uint8), bits
    )
    coverage = SourceCoverage(accessor_nid=True)
    return SampleBatch("test", "kvm", coverage, 0, SECOND_NS, tuple(range(len(per_second))), (sample,))


def watched(per_second: Floats, readings_ns: tuple[int, ...] = READINGS_NS, seed: int = 1) -> GuestPages:
    """Return what is known after ``WINDOWS`` windows at these rates."""
    chance, pages = np.random.default_rng(seed), None
    for _ in range(WINDOWS):
        pages = absorbed(pages, window(per_second, chance, readings_ns))
    assert pages
    return pages


def touch_rates(pages: GuestPages) -> Floats:
    return rate_of(pages.ranges[0], len(pages.nids))


def rate_of(pages: RangePages, nodes: int) -> Floats:
    """Return the touches a second by [node, page]."""
    assert pages.rate
    codes = pages.rate.some(np.arange(nodes * pages.blocks)).reshape(nodes, -1)
    return PER_SECOND[codes[:, : pages.ram.npages]]


def test_bits_that_are_read_once_tell_no_rate() -> None:
    assert watched(EVEN, ()).ranges[0].rate is None


@pytest.mark.parametrize("rate", [3.0, 10.0, 100.0])
def test_the_rate_is_as_many_touches_a_second_as_there_were(rate: float) -> None:
    assert touch_rates(watched(np.full((2, NPAGES), rate))).mean() == pytest.approx(rate, rel=0.15)


def rightly_ordered(reported: Floats, slow: float, fast: float) -> float:
    """Return in how many pairs of pages of two rates the faster one has more; like ones count half."""
    values, number = np.unique(reported, return_inverse=True)
    of_slow = np.bincount(number[declared == slow], minlength=len(values)) / (declared == slow).sum()
    of_fast = np.bincount(number[declared == fast], minlength=len(values)) / (declared == fast).sum()
    return float((of_fast * (np.cumsum(of_slow) - of_slow / 2)).sum())


def test_pages_are_ordered_by_how_often_they_were_touched() -> None:
    reported = touch_rates(watched(declared[None]))[0]
    assert rightly_ordered(reported, 3.0, 24.0) > 0.99 and rightly_ordered(reported, 24.0, 192.0) > 0.99
    means = [reported[declared == rate].mean() for rate in (3.0, 24.0, 192.0)]
    assert means == pytest.approx([3.0, 24.0, 192.0], rel=0.25)


def test_heat_by_one_reading_hardly_orders_them() -> None:
    """The control."""
    heat = watched(declared[None], ()).ranges[0].part(0, len(declared))[0].astype(np.float64)
    assert rightly_ordered(heat, 3.0, 24.0) < 0.7 and rightly_ordered(heat, 24.0, 192.0) == 0.5


def test_a_node_that_uses_a_page_now_and_then_is_distinguished_from_the_one_that_always_does() -> None:
    reported = touch_rates(watched(np.tile([[OWN], [NEIGHBOUR]], NPAGES)))
    assert reported[0].mean() / reported[1].mean() == pytest.approx(OWN / NEIGHBOUR, rel=0.2)


def test_pages_that_nobody_touches_have_none() -> None:
    rates = np.tile([[5.0], [0.0]], NPAGES)
    rates[0, ::2] = 0
    reported = touch_rates(watched(rates))
    assert not reported[1].any() and not reported[0, ::2].any() and reported[0, 1::2].any()


def test_a_page_that_is_used_no_more_is_forgotten() -> None:
    chance, pages = np.random.default_rng(1), watched(EVEN)
    before = touch_rates(pages).mean()
    for _ in range(8):
        pages = absorbed(pages, window(EVEN * 0, chance, READINGS_NS))
    assert touch_rates(pages).mean() < 0.03 * before


def test_a_window_that_was_read_once_changes_no_rate() -> None:
    pages = watched(EVEN * 10)
    before = touch_rates(pages).copy()
    pages = absorbed(pages, window(EVEN, np.random.default_rng(2), ()))
    assert (touch_rates(pages) == before).all()


def test_a_rate_counts_as_long_as_the_history_has_touches() -> None:
    chance, pages = np.random.default_rng(1), watched(EVEN * 10)
    for left in (True, True, True, False):
        pages = absorbed(pages, window(EVEN * 0, chance, ()))
        touched = touched_pages(pages.ranges[0])
        assert touched is not None
        reported = touched.rate_of(1)
        assert reported is not None and reported.any() == left


def test_ranges_of_one_guest_learn_together() -> None:
    """A range with few pages has the rate that the other one's many pages teach."""
    chance, pages = np.random.default_rng(1), None
    for _ in range(WINDOWS):
        large, small = (window(np.full((1, n), 8.0), chance, READINGS_NS) for n in (NPAGES, 100))
        moved = RamRange(0x7E0000000000, 100, None, 4096, Movability.MOVABLE, "test")
        one = small.ranges[0]
        few = RangeSample(moved, one.accessed, one.node_index, one.huge, one.by_node)
        both = SampleBatch("test", "kvm", large.coverage, 0, SECOND_NS, large.nids, (*large.ranges, few))
        pages = absorbed(pages, both)
    assert pages
    assert rate_of(pages.ranges[1], 1).mean() == pytest.approx(8.0, rel=0.25)
