"""How often was each page of the emulated host accessed?  The meter's exact counts (meter/page_counts.h).

Asked for by ``boot_host(..., meter=True, plugin_args=PAGES)``; it counts while the meter is on.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.emulator import RUN
from lab.machine import LabHost
from lab.topology import cpu_nids, memory_ranges
from vmplace.topology.guest import PAGE_BYTES

FILE = "pages"
PAGES = {FILE: str(RUN / FILE)}
"""The meter's argument that switches it on."""


@dataclass(frozen=True)
class PageCounts:
    """Accesses before caches, by [cpu, page]; page i: frame ``frames[i]`` of node ``nids[i]``, ascending."""

    frames: npt.NDArray[np.int64]
    nids: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    def since(self, earlier: "PageCounts") -> "PageCounts":
        """Return the growth since ``earlier``, for less than 2^32 accesses of a page."""
        return PageCounts(self.frames, self.nids, (self.counts - earlier.counts) % (1 << 32))


def read_page_counts(host: LabHost) -> PageCounts:
    """Return the counts as they are now; raises FileNotFoundError if the host was booted without PAGES."""
    ranges = memory_ranges(host.topology)
    parts = [np.arange(one.start // PAGE_BYTES, one.end // PAGE_BYTES) for one in ranges]
    nids = [np.full(len(part), one.nid) for one, part in zip(ranges, parts, strict=True)]
    counts = np.fromfile(host.shared_memory.with_name(FILE), np.uint32)
    return PageCounts(
        np.concatenate(parts),
        np.concatenate(nids),
        counts.reshape(len(cpu_nids(host.topology)), -1).astype(np.int64),
    )
