"""Guests as a source that samples accesses knows them, for bench_decision.py."""

import numpy as np

from vmplace.model.page_windows import absorbed
from vmplace.model.pages import SAMPLED_WINDOWS, GuestPages
from vmplace.sampling.sample import NodeBits, NodeHits, RangeSample, SampleBatch, SourceCoverage
from vmplace.topology.guest import Movability, RamRange

NODES = 4
SAMPLES = 25
"""Of each guest in a window."""


def sampled_guest(npages: int, nodes: tuple[int, ...], seed: int) -> GuestPages:
    """Return a guest of huge pages on the first of ``nodes``, all sampled alike."""
    chance, known = np.random.default_rng(seed), None
    for second in range(SAMPLED_WINDOWS):
        known = absorbed(known, _window(npages, nodes, second * 10**9, chance))
    if known is None:
        raise ValueError("there were no windows")
    return known


def _window(npages: int, nodes: tuple[int, ...], began_ns: int, chance: np.random.Generator) -> SampleBatch:
    pages, rows = chance.integers(npages, size=SAMPLES), chance.choice(nodes, SAMPLES)
    seen = np.zeros((NODES + 1, npages // 512, 512), np.uint8)
    seen[rows, pages // 512] = 1
    bits = np.packbits(seen.reshape(NODES + 1, -1), axis=1, bitorder="little").view(np.uint64)
    sample = RangeSample(
        RamRange(1 << 40, npages, None, 4096, Movability.MOVABLE, ""),
        seen.any(axis=0).reshape(-1).view(np.uint8),
        np.full(npages, nodes[0], np.int8),
        np.ones(npages // 512, np.uint8),
        NodeBits(bits, np.zeros_like(bits)),
        counted=NodeHits(pages, rows),
    )
    coverage = SourceCoverage(sampled=True, accessor_nid=True, written=True)
    return SampleBatch("g", "ibs", coverage, began_ns, began_ns + 10**9, tuple(range(NODES)), (sample,))
