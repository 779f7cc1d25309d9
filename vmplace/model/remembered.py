"""How far back do samples tell of what a guest does now?

Samples are few, so the more windows count the better is known who uses what; but programs change.  So the
samples of the newest windows are each predicted from as many windows before as there may be to count: the
shares of 2 MiB blocks and nodes in those.  What predicts best is believed; if two do so nearly as well, the
longer.  A block may have changed alone: it has ``LENGTHS[0]`` windows where these predict it better, or where
the older of its samples are of other nodes, or of more, than chance explains.

Example: of 64 blocks of node 0 the last is lately node 1's.

>>> blocks = np.arange(64)
>>> nodes = [np.where((blocks == 63) & (at < 4), 1, 0) for at in range(40)]
>>> found = best_memory(Samples.joined([Samples(blocks, of, blocks * 0 + at) for at, of in enumerate(nodes)]))
>>> found.windows, found.changed.tolist()
(64, [63])

Source: prequential choice of a model by the likelihood of what came next (Dawid, J. R. Stat. Soc. A, 1984).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vmplace.model.pages import HISTORY_WINDOWS, RangePages
from vmplace.sampling.page_arrays import Bools, Indexes
from vmplace.sampling.page_frames import block_offset
from vmplace.sampling.sample import NodeHits
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES

Floats = npt.NDArray[np.float64]
JUDGED = HISTORY_WINDOWS
"""So many of the newest windows are predicted."""
LENGTHS = (4, 8, 16, 32, 64)
UNSEEN = (0.5, 2.0, 8.0, 32.0, 128.0)
"""For so many samples each block counts besides, and in each the guest's usual nodes: of these, what predicts
best with a length."""
BETTER = 2.0
"""Seven times as likely, in natural logarithms: by less nothing shorter is better."""
MOST = 1 << 15
"""Of more samples some are looked at: these took 0.1 s of an AMD EPYC, and 33 MiB."""
WINDOWS, NODES = 128, 1024
"""Above all numbers of windows and of nodes."""
UNLIKE = 4.0
"""Of a block that changed, the logarithm of a likelihood ratio is so much at least, and 1 more for each node
but the first: chance alone exceeds it in one or two blocks of 100."""
EDGES = np.unique([*LENGTHS, *(at + 1 + length for at in range(JUDGED) for length in (-1, 0, *LENGTHS))])
"""So many samples are counted as windows with lower numbers have."""


@dataclass(frozen=True)
class Samples:
    """Of each sample the 2 MiB ``block`` and the ``node`` (any numbers), and its ``window``, 0 the newest."""

    block: Indexes
    node: Indexes
    window: Indexes

    @classmethod
    def joined(cls, parts: Sequence["Samples"]) -> "Samples":
        """Return all of them together."""
        names = "block", "node", "window"
        return cls(*(np.concatenate([getattr(one, name) for one in parts]) for name in names))

    def thinned(self) -> "Samples":
        """Return each n-th, so that there are MOST at most."""
        step = max(-(-len(self.block) // MOST), 1)
        return Samples(self.block[::step], self.node[::step], self.window[::step])


@dataclass(frozen=True)
class Memory:
    """So many windows tell (there may be fewer), but of blocks that ``changed`` ``LENGTHS[0]`` at most."""

    windows: int = LENGTHS[0]
    changed: Indexes = field(default_factory=lambda: np.zeros(0, np.intp))


def memories_of(ranges: Sequence[RangePages]) -> Mapping[int, Memory]:
    """Return how far back the samples of each range tell, by its address; all ranges are one guest's."""
    ranges = [one for one in ranges if one.sampled and len(one.counted) > LENGTHS[0]]
    if not ranges:
        return {}
    ends = np.cumsum([one.blocks for one in ranges])
    begins = ends - [one.blocks for one in ranges]
    found = best_memory(Samples.joined([_samples(*one) for one in zip(ranges, begins.tolist(), strict=True)]))
    parts = np.split(found.changed, np.searchsorted(found.changed, ends[:-1]))
    return {
        one.ram.hva: Memory(found.windows, part - begin)
        for one, begin, part in zip(ranges, begins, parts, strict=True)
    }


def _samples(one: RangePages, begin: int) -> Samples:
    """Return the range's samples; its blocks are numbered from ``begin`` on."""
    hits = NodeHits.joined(one.counted)
    block = (hits.pages + block_offset(one.ram)) // (HUGE_BYTES // PAGE_BYTES) + begin
    window = np.repeat(np.arange(len(one.counted)), [len(part.pages) for part in one.counted])
    return Samples(block, hits.rows, window)


def best_memory(samples: Samples) -> Memory:
    """Return what predicts the newest samples best; the fewest windows where there are none."""
    samples = samples.thinned()
    if not (samples.window < JUDGED).any():
        return Memory()
    past = _Past.of(samples)
    likely = [past.likely(length) for length in LENGTHS]
    gains = [likely[0].by_block - one.by_block - BETTER for one in likely]
    scores = [one.total + float(gain[gain > 0].sum()) for one, gain in zip(likely, gains, strict=True)]
    best = max(at for at, score in enumerate(scores) if score >= max(scores) - BETTER)
    return Memory(LENGTHS[best], past.blocks[(gains[best] > 0) | past.is_unlike(LENGTHS[best])])


@dataclass(frozen=True)
class _Likelihood:
    """Logarithms: of the newest samples, and for each block [B] of which of them are its own."""

    total: float
    by_block: Floats


@dataclass(frozen=True)
class _Past:
    """The samples of B ``blocks``.

    ``keys``: block, node and window of each sample, sorted.  ``newest``: those that are predicted, ``block``
    and ``node`` the numbers of theirs.  ``blocks_before[B, E]``, ``nodes_before[N, E]``: how many samples
    each has in windows below each of EDGES.
    """

    keys: Indexes
    newest: Indexes
    block: Indexes
    node: Indexes
    blocks: Indexes
    blocks_before: Floats
    nodes_before: Floats

    @classmethod
    def of(cls, samples: Samples) -> "_Past":
        """Return what is known before each window."""
        keys = np.sort((samples.block * NODES + samples.node) * WINDOWS + samples.window)
        blocks, block = np.unique(keys // (NODES * WINDOWS), return_inverse=True)
        node = np.unique(keys // WINDOWS % NODES, return_inverse=True)[1]
        before = [_before(some, keys % WINDOWS) for some in (block, node)]
        is_new = keys % WINDOWS < JUDGED
        return cls(keys, keys[is_new], block[is_new], node[is_new], blocks, *before)

    def likely(self, length: int) -> _Likelihood:
        """Return how likely the newest samples are by those of so many windows before each of them."""
        window = self.newest % WINDOWS
        seen = _between(self.blocks_before, length)
        every = seen.sum(axis=0)
        here = seen[self.block, window]
        chances = [np.log((here + one) / (every + one * len(seen))[window]) for one in UNSEEN]
        best = int(np.argmax([chance.sum() for chance in chances]))
        of_nodes = self._of_nodes(length, here, window)
        total = float(chances[best].sum() + of_nodes.sum())
        there = (seen + UNSEEN[best]) / (every + UNSEEN[best] * len(seen))
        mine = np.diff(self.blocks_before[:, : JUDGED + 1], axis=1)
        elsewhere = (mine.sum(axis=0) - mine) * np.log(np.maximum(1.0 - there, 1e-9))
        by_block = np.bincount(self.block, chances[best] + of_nodes, len(seen)) + elsewhere.sum(axis=1)
        return _Likelihood(total, by_block)

    def _of_nodes(self, length: int, here: Floats, window: Indexes) -> Floats:
        """Return how likely each newest sample's node is, by those of its block ``here`` and of the guest."""
        until = np.searchsorted(self.keys, self.newest + 1 + length)
        seen = until - np.searchsorted(self.keys, self.newest + 1)
        nodes = _between(self.nodes_before, length) + 1.0
        usual = (nodes / nodes.sum(axis=0))[self.node, window]
        chances = [np.log((seen + one * usual) / (here + one)) for one in UNSEEN]
        return max(chances, key=lambda chance: float(chance.sum()))

    def is_unlike(self, length: int) -> Bools:
        """Return of which blocks the newer samples of so many windows are other than the older ones."""
        cell = np.unique(self.keys // WINDOWS)
        before = _before(np.searchsorted(cell, self.keys // WINDOWS), self.keys % WINDOWS)
        block = np.searchsorted(self.blocks, cell // NODES)
        bound = UNLIKE + np.bincount(block) - 1
        found = np.zeros(len(bound), np.bool_)
        whole = before[:, np.searchsorted(EDGES, length)]
        for shorter in LENGTHS:
            if shorter < length:
                newer = before[:, np.searchsorted(EDGES, shorter)]
                ratio = _log_ratio(newer, whole, float(newer.sum() / whole.sum()))
                found |= np.bincount(block, ratio) > bound
        return found


def _log_ratio(newer: Floats, whole: Floats, share: float) -> Floats:
    """Return how much likelier counts are if the newer ones are no ``share`` of the whole (logarithm)."""
    older, due = whole - newer, whole * share
    tiny = 1e-300
    ratio: Floats = newer * np.log((newer + tiny) / (due + tiny))
    ratio += older * np.log((older + tiny) / (whole - due + tiny))
    return ratio


def _before(some: Indexes, window: Indexes) -> Floats:
    """Return how many samples each of these numbers has in windows below each of EDGES."""
    size = len(EDGES) + 1
    place = some * size + np.searchsorted(EDGES, window, side="right")
    count = np.bincount(place, minlength=(int(some.max()) + 1) * size).reshape(-1, size)
    return np.cumsum(count, axis=1, dtype=np.float64)[:, :-1]


def _between(before: Floats, length: int) -> Floats:
    """Return how many samples there are in so many windows before each of those that are predicted."""
    at = np.arange(JUDGED)
    first, until = (np.searchsorted(EDGES, at + 1 + more) for more in (0, length))
    found: Floats = before[:, until] - before[:, first]
    return found
