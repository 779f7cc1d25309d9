"""For how long samples count, against programs that are declared to go on, or to change."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from vmplace.model.evidence import entries_of
from vmplace.model.page_windows import absorbed
from vmplace.model.pages import HISTORY_WINDOWS, SAMPLED_WINDOWS, SAMPLES_KEPT, GuestPages
from vmplace.model.remembered import as_remembered
from vmplace.sampling.sample import NodeBits, NodeHits, RangeSample, SampleBatch, SourceCoverage
from vmplace.topology.guest import Movability, RamRange

BLOCK, BLOCKS, NODES = 512, 64, 4
RAM = RamRange(1 << 30, BLOCKS * BLOCK, None, 4096, Movability.MOVABLE, "")
NOTHING = np.zeros(BLOCKS * BLOCK, np.uint8)
SEED = 11


def window(rates: np.ndarray, chance: np.random.Generator, *, sampled: bool = True) -> SampleBatch:
    """Return a window of a second in which the nodes were sampled in blocks of 2 MiB at ``rates[B, N]``."""
    counts = chance.poisson(rates)
    block, row = (np.repeat(some.ravel(), counts.ravel()) for some in np.indices(counts.shape))
    pages = block * BLOCK + chance.integers(BLOCK, size=len(block))
    planes = np.zeros((NODES + 1, BLOCKS * BLOCK), np.uint8)
    planes[row, pages] = 1
    bits = np.packbits(planes, axis=1, bitorder="little").view(np.uint64)
    hits = NodeHits(pages, row)
    sample = RangeSample(
        RAM,
        np.asarray(planes.any(axis=0), np.uint8),
        NOTHING.view(np.int8),
        np.ones(BLOCKS, np.uint8),
        NodeBits(bits, np.zeros_like(bits)),
        counted=hits,
    )
    coverage = SourceCoverage(accessor_nid=True, written=True, sampled=sampled)
    return SampleBatch("db1", "ibs", coverage, 0, 10**9, tuple(range(NODES)), (sample,))


def known(rates: Sequence[np.ndarray], *, sampled: bool = True) -> GuestPages:
    """Return a guest's statistics after windows at these rates."""
    chance, pages = np.random.default_rng(SEED), None
    for one in rates:
        pages = absorbed(pages, window(one, chance, sampled=sampled))
    assert pages
    return pages


def used(first: int, *nodes: int, rate: float = 0.1) -> np.ndarray:
    """Return the rates of 16 blocks that these nodes use alike."""
    rates = np.zeros((BLOCKS, NODES))
    rates[first : first + 16, list(nodes)] = rate / len(nodes)
    return rates


def length(pages: GuestPages) -> int:
    return len(as_remembered(pages).ranges[0].counted)


def test_samples_of_a_program_that_goes_on_count_for_long() -> None:
    """Of each of 16 blocks there is a sample in ten windows."""
    assert length(known([used(0, 0, 1)] * 80)) >= 32


def test_what_is_learnt_from_many_windows_is_nearer_to_what_was_declared() -> None:
    """Sixteen blocks are node 0's, sixteen are shared alike."""
    rates = used(0, 0, rate=0.3) + used(16, 0, 1, rate=0.3)
    pages = known([rates] * SAMPLED_WINDOWS)
    cut = (replace(one, counted=one.counted[:HISTORY_WINDOWS]) for one in pages.ranges)
    due = rates[:32, 0] / rates[:32].sum(axis=1)
    errors = []
    for guest in (pages, replace(pages, ranges=tuple(cut))):
        found = entries_of(guest, 1.0)
        assert found is not None
        heat = found.heat[:32]
        errors.append(float(np.abs(heat[:, 0] / np.maximum(heat.sum(axis=1), 1e-9) - due).mean()))
    assert errors[0] < 0.6 * errors[1]


@pytest.mark.parametrize(
    "after", [used(32, 0, 1, rate=2.0), used(0, 2, 3, rate=2.0)], ids=["other blocks", "other nodes"]
)
def test_once_a_program_does_something_else_what_it_did_before_is_forgotten(after: np.ndarray) -> None:
    before = used(0, 0, 1, rate=2.0)
    assert length(known([before] * 30)) > HISTORY_WINDOWS
    assert length(known([*[before] * 30, *[after] * 4])) == HISTORY_WINDOWS


def test_half_of_the_windows_count_where_the_other_half_is_of_something_else() -> None:
    found = length(known([*[used(0, 0, 1)] * 30, *[used(32, 0, 1)] * 30]))
    assert HISTORY_WINDOWS < found <= 32


def test_many_samples_are_not_kept_for_long() -> None:
    dense = known([used(0, 0, rate=SAMPLES_KEPT / 160)] * 20)
    assert 8 <= len(dense.ranges[0].counted) <= 10
    denser = known([used(0, 0, rate=SAMPLES_KEPT / 32)] * 6)
    assert len(denser.ranges[0].counted) == HISTORY_WINDOWS


def test_so_many_windows_are_kept_beside_bits_as_of_these() -> None:
    assert len(known([used(0, 0)] * 20, sampled=False).ranges[0].counted) == HISTORY_WINDOWS
    assert len(known([used(0, 0)] * 80).ranges[0].counted) == SAMPLED_WINDOWS


def test_a_guest_that_was_not_sampled_at_all_is_left_as_it_is() -> None:
    idle = known([np.zeros((BLOCKS, NODES))] * 6)
    assert length(idle) >= HISTORY_WINDOWS and entries_of(idle, 1.0) is not None
