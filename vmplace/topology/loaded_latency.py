"""How long does an access wait at a busy memory controller?  Latencies were measured beside streams.

1. One CPU reads a line at a time while some of its node's others stream from the same memory.  What a line
   takes beyond what it takes on an idle host is the wait.
2. Of a controller that serves C lines a ns and is used to the share rho, it is queue / C x rho / (1 - rho)
   (model/memory_system.py).  Each measurement gives one queue; the host has their median.

Where streams use little of a controller, waits are lost in noise; where nearly all of it, a small error of
rho is a large one of the queue: neither says anything.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

LINE_BYTES = 64
LEAST_USED, MOST_USED = 0.25, 0.92
LEAST_QUEUE, MOST_QUEUE = 0.1, 50.0
"""Outside of these it is no queue that was measured."""
FEWEST = 2


@dataclass(frozen=True)
class LoadedPoint:
    """What a line of a node's own memory took, while some of its CPUs read so many bytes/s of it."""

    nid: int
    bytes_per_s: float
    latency_ns: float


def measured_queue(
    points: Iterable[LoadedPoint], idle_ns: Mapping[int, float], bytes_per_s: Mapping[int, float]
) -> float | None:
    """Return the queue of the host's controllers, None where measurements do not tell.

    ``idle_ns``, ``bytes_per_s``: what a node's own memory takes and serves, idle and alone.

    Example: at half of 64e9 bytes/s, one line a ns, an access waits for 2 ns: the queue is 2.

    >>> point = LoadedPoint(0, 32e9, 102.0)
    >>> measured_queue([point, point], {0: 100.0}, {0: 64e9})
    2.0
    """
    found = []
    for point in points:
        whole = bytes_per_s.get(point.nid, 0.0)
        used = point.bytes_per_s / whole if whole else 0.0
        if LEAST_USED <= used <= MOST_USED and point.nid in idle_ns:
            wait_ns = point.latency_ns - idle_ns[point.nid]
            found.append(wait_ns * whole / LINE_BYTES / 1e9 * (1 - used) / used)
    if len(found) < FEWEST:
        return None
    queue = median(found)
    return queue if LEAST_QUEUE <= queue <= MOST_QUEUE else None
