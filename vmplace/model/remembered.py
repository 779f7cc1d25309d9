"""How far back do samples tell of what a guest does now?

Samples are few, so the more windows count the better is known who uses what; but programs change.  So the
samples of the newest windows are each predicted from as many windows before as there may be to count: the
shares of 2 MiB blocks and nodes in those.  What predicts best is believed.

Example: what was sampled in the last four windows is another block than before.

>>> samples = [*(np.array([block * NODES * WINDOWS]) for block in [7] * 6 + [3] * 6)]
>>> best_length(np.concatenate([one + at for at, one in enumerate(samples)]), 12)
4

Source: prequential choice of a model by the likelihood of what came next (Dawid, J. R. Stat. Soc. A, 1984).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from vmplace.model.pages import HISTORY_WINDOWS, GuestPages, RangePages
from vmplace.sampling.page_frames import block_offset
from vmplace.sampling.sample import NodeHits
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES

Keys = npt.NDArray[np.int64]
JUDGED = HISTORY_WINDOWS
"""So many of the newest windows are predicted."""
LENGTHS = (4, 8, 16, 32, 64)
UNSEEN = 0.5
"""So many samples a block and node that was not sampled counts for (Krichevsky and Trofimov, 1981)."""
WINDOWS, NODES = 128, 1024
"""Above all numbers of windows and of nodes: a key is block, node and window."""


def as_remembered(guest: GuestPages) -> GuestPages:
    """Return the guest with the samples of as many windows as tell of what it does now."""
    if not any(one.sampled and len(one.counted) > LENGTHS[0] for one in guest.ranges):
        return guest
    windows = max(len(one.counted) for one in guest.ranges)
    length = best_length(_keys(guest.ranges), windows)
    return replace(guest, ranges=tuple(replace(one, counted=one.counted[:length]) for one in guest.ranges))


def best_length(keys: Keys, windows: int) -> int:
    """Return how many of so many windows tell; ``keys``: of all samples, the newest window is number 0."""
    keys = np.sort(keys)
    cells = int(np.count_nonzero(np.diff(keys // WINDOWS))) + 1
    before = np.searchsorted(np.sort(keys % WINDOWS), np.arange(WINDOWS))
    newest = keys[keys % WINDOWS < JUDGED]
    best, found = -np.inf, LENGTHS[0]
    for length in LENGTHS:
        if length >= 2 * windows:
            break
        likely = _log_likelihood(newest, keys, before, length, cells)
        if likely >= best:
            best, found = likely, length
    return found


def _log_likelihood(newest: Keys, keys: Keys, before: Keys, length: int, cells: int) -> float:
    """Return how likely the newest samples are by those of so many windows before each of them.

    ``before[w]``: so many samples are of windows below that number.
    """
    first = newest % WINDOWS + 1
    until = np.minimum(first + length, WINDOWS - 1)
    seen = np.searchsorted(keys, newest - first + 1 + until) - np.searchsorted(keys, newest + 1)
    every = before[until] - before[first]
    return float(np.log((seen + UNSEEN) / (every + UNSEEN * cells)).sum())


def _keys(ranges: Sequence[RangePages]) -> Keys:
    keys = [np.zeros(0, np.int64)]
    for number, one in enumerate(ranges):
        if not one.counted:
            continue
        hits = NodeHits.joined(one.counted)
        window = np.repeat(np.arange(len(one.counted)), [len(part.pages) for part in one.counted])
        block = (hits.pages + block_offset(one.ram)) // (HUGE_BYTES // PAGE_BYTES)
        keys.append(((block * len(ranges) + number) * NODES + hits.rows) * WINDOWS + window)
    return np.concatenate(keys)
