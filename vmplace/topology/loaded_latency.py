"""How much does a memory controller serve, and how long do accesses wait for it?  By latencies under load.

1. One CPU reads a line at a time while some of its node's others stream from the same memory.  What a line
   takes beyond what it takes on an idle host is the wait.
2. Of a controller that serves C lines a ns and is asked for x of them, it is queue / C x rho / (1 - rho),
   with rho = x / C (model/memory_system.py).  So x / wait = C (C - x) / queue: a straight line over x, from
   which both follow.
3. They are believed only where the line falls, explains what was measured, and meets the axis not far beyond
   the most that was read: where CPUs cannot fill a controller, nothing tells how much it would serve.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LINE_BYTES = 64
LEAST_NS, MOST_NS = 0.1, 1e9
"""Of a latency."""
LEAST_WAIT = 0.05
"""Of the idle latency: a wait of less is noise."""
MOST_BEYOND = 1.5
"""A controller serves up to so many times the most that was read of it."""
LEAST_EXPLAINED = 0.8
"""The share of the variance that the line explains."""
FEWEST = 3
LEAST_SPREAD = 0.1
"""Of what was read at most: figures that hardly differ tell no line."""
QUEUES = (0.3, 500.0)
"""Outside of these it is no queue that was measured."""


@dataclass(frozen=True)
class LoadedPoint:
    """What a line of a node's memory takes beyond its idle latency, while so many bytes/s of it are read."""

    bytes_per_s: float
    wait_ns: float


@dataclass(frozen=True)
class Controller:
    """What a node's memory serves, in bytes/s, and how many lines at a time (the model's queue)."""

    bytes_per_s: float
    queue: float


def fitted(points: Iterable[LoadedPoint], idle_ns: float) -> Controller | None:
    """Return the controller that explains the waits at a node's memory, None where they do not show one.

    Example: it serves a line a ns, and two at a time.

    >>> waits = [LoadedPoint(64e9 * x, 2.0 * x / (1 - x)) for x in (0.8, 0.85, 0.9)]
    >>> fitted(waits, 90.0)
    Controller(bytes_per_s=64000000000.0, queue=2.0)
    """
    some = [point for point in points if point.wait_ns >= LEAST_WAIT * idle_ns]
    if len(some) < FEWEST:
        return None
    asked = np.array([point.bytes_per_s / LINE_BYTES / 1e9 for point in some])
    if np.ptp(asked) < LEAST_SPREAD * asked.max():
        return None
    each = asked / np.array([point.wait_ns for point in some])
    slope, start = np.polynomial.polynomial.polyfit(asked, each, 1)[::-1].tolist()
    if slope >= 0 or _explained(each, start + slope * asked) < LEAST_EXPLAINED:
        return None
    serves = -start / slope
    queue = serves / -slope
    is_near = asked.max() <= serves <= MOST_BEYOND * asked.max()
    if not is_near or not QUEUES[0] <= queue <= QUEUES[1]:
        return None
    return Controller(float(round(serves * LINE_BYTES * 1e9, -3)), round(queue, 6))


def host_queue(controllers: Sequence[Controller], nodes: int) -> float | None:
    """Return the queue of a host's controllers: the median, None where that of most nodes is not known."""
    return median(one.queue for one in controllers) if 2 * len(controllers) > nodes else None


def _explained(seen: Floats, line: Floats) -> float:
    """Return the share of the variance that the line explains."""
    whole = float(((seen - seen.mean()) ** 2).sum())
    return 1 - float(((seen - line) ** 2).sum()) / whole if whole > 0 else 0.0
