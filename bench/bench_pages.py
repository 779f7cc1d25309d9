"""What do page statistics cost?  Memory, and the CPU time of one window of harvest, for SIZE GiB; JSON.

Two hosts: one whose pages all differ within their 2 MiB block (4K throughout), in each window anew, and one
whose blocks are whole.  The control is the least that any such statistics must do: read the harvest once and
read and write as many bytes as there are, in C as well (numpy.bitwise_or on words).  Ratios are of one run.

    python3 -m bench.bench_pages 1024 --nodes 8 --share 64

--share N builds the Nth part of the host and multiplies: memory and time are proportional to blocks, and
few machines can spare what a host of 1 TiB takes.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from bench.record import add_record_options, measure
from vmplace.model.page_windows import absorbed, places_of
from vmplace.model.pages import HEAT_WINDOWS
from vmplace.sampling.sample import NodeBits, RangeSample, SampleBatch, SourceCoverage
from vmplace.topology.guest import Movability, RamRange

Words = npt.NDArray[np.uint64]
BLOCK_PAGES = 512

GIB_PAGES = 1 << 18
RUNS = 5
LEAST_S = 0.02
"""What takes less is done several times: a clock's step would be much of it."""


def cpu_ms(work: Callable[[], object]) -> float:
    """Return the CPU time of this process for one run, the median of some that are LEAST_S or longer."""
    times, taken_s = 1, _cpu_s(work, 1)
    while taken_s < LEAST_S:
        times, taken_s = times * 2, _cpu_s(work, times * 2)
    return sorted(_cpu_s(work, times) for _ in range(RUNS))[RUNS // 2] * 1000 / times


def _cpu_s(work: Callable[[], object], times: int) -> float:
    before = time.process_time()
    for _ in range(times):
        work()
    return time.process_time() - before


def harvest(npages: int, nodes: int, window: int, *, whole: bool) -> tuple[Words, Words]:
    """Return (accessed, written) by node: random pages, or whole blocks for the nodes in turn."""
    words = npages // 64
    accessed: Words
    if whole:
        turn = np.repeat(np.arange(npages // BLOCK_PAGES) % nodes, 8)
        accessed = np.where(turn == np.arange(nodes)[:, None], ~np.uint64(0), np.uint64(0)).astype(np.uint64)
        return accessed, accessed
    accessed = np.random.default_rng(window).integers(0, 1 << 63, (nodes, words), np.uint64)
    written: Words = accessed & accessed[::-1]
    return accessed, written


def control(seen: tuple[Words, Words], planes: tuple[Words, Words]) -> None:
    """Combine the harvest with as many bits of state: what any statistics by page and node must touch."""
    for news, plane in zip(seen, planes, strict=True):
        np.bitwise_or(plane, news, out=plane)


def batch(npages: int, nodes: int, window: int, *, whole: bool) -> SampleBatch:
    """Return a window of harvest; the last plane of bits, of nodes that are not known, has none."""
    accessed, written = (
        np.concatenate([rows, np.zeros((1, rows.shape[1]), np.uint64)])
        for rows in harvest(npages, nodes, window, whole=whole)
    )
    ram = RamRange(1 << 40, npages, None, 4096, Movability.MOVABLE, "")
    placed = (np.arange(npages) // (BLOCK_PAGES if whole else 1) % nodes).astype(np.int8)
    huge, nothing = np.full(npages // BLOCK_PAGES, whole, np.uint8), np.zeros(0, np.uint8)
    sample = RangeSample(ram, nothing, placed, huge, NodeBits(accessed, written))
    return SampleBatch("g", "kvm", SourceCoverage(), 0, 10**9, tuple(range(nodes)), (sample,))


def measured(npages: int, nodes: int, share: int, *, whole: bool) -> dict[str, float]:
    """Return memory and time of one host, multiplied by ``share``."""
    pages = absorbed(None, batch(npages, nodes, 0, whole=whole))
    for window in range(1, HEAT_WINDOWS):
        pages = absorbed(pages, batch(npages, nodes, window, whole=whole))
    (known,), newest = pages.ranges, batch(npages, nodes, HEAT_WINDOWS, whole=whole)
    (sample,), seen = newest.ranges, harvest(npages, nodes, HEAT_WINDOWS, whole=whole)
    planes = (np.zeros_like(seen[0]), np.zeros_like(seen[1]))
    control(seen, planes)
    places = cpu_ms(lambda: places_of(sample))
    taken = cpu_ms(lambda: absorbed(pages, newest)) - places
    least = cpu_ms(lambda: control(seen, planes))
    return {
        "window_cpu_ms": round(taken * share, 3),
        "places_cpu_ms": round(places * share, 3),
        "control_cpu_ms": round(least * share, 3),
        "ratio_to_control": round(taken / least, 1),
        "memory_mib": round(known.nbytes * share / (1 << 20), 1),
        "bytes_per_page": round(known.nbytes / npages, 3),
        "counts_cpu_ms": round(cpu_ms(lambda: known.by_node(nodes, hot_only=True)) * share, 3),
    }


def main() -> int:
    """Run the bench; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("size_gib", type=int, nargs="?", default=1024)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--share", type=int, default=16)
    add_record_options(parser)
    options = parser.parse_args()
    npages = options.size_gib * GIB_PAGES // options.share // BLOCK_PAGES * BLOCK_PAGES
    host = partial(measured, npages, options.nodes, options.share)
    return measure("pages", {"4k": partial(host, whole=False), "2m": partial(host, whole=True)}, options)


if __name__ == "__main__":
    sys.exit(main())
