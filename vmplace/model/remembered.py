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
from vmplace.model.pooled_samples import numbered
from vmplace.sampling.page_arrays import Bools, Indexes
from vmplace.sampling.page_frames import block_offset
from vmplace.sampling.sample import NodeHits
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES

Floats = npt.NDArray[np.float64]
JUDGED = HISTORY_WINDOWS
"""So many of the newest windows are predicted."""
LENGTHS = (4, 8, 16, 32, 64)
UNSEEN = np.array([0.5, 2.0, 8.0, 32.0, 128.0])
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


FIRST = np.searchsorted(EDGES, np.arange(JUDGED) + 1)
UNTIL = np.searchsorted(EDGES, np.add.outer(LENGTHS, np.arange(JUDGED) + 1))
"""Of each window that is predicted those before it are of EDGES FIRST[window] to UNTIL[length, window]."""


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
    total, by_block = past.likely()
    gains = by_block[0] - by_block - BETTER
    scores = total + np.maximum(gains, 0.0).sum(axis=1)
    best = int(np.flatnonzero(scores >= scores.max() - BETTER)[-1])
    return Memory(LENGTHS[best], past.blocks[(gains[best] > 0) | past.is_unlike(best)])


@dataclass(frozen=True)
class _Past:
    """The samples of B ``blocks``, and of N nodes.

    ``keys``: block, node and window of each sample, sorted.  ``newest[S]``: those that are predicted;
    ``block``, ``node`` and ``window``: theirs.  ``blocks_before[E, B]``, ``nodes_before[E, N]``: how many
    samples each has in windows below each of EDGES.
    """

    keys: Indexes
    newest: Indexes
    block: Indexes
    node: Indexes
    window: Indexes
    blocks: Indexes
    blocks_before: Floats
    nodes_before: Floats

    @classmethod
    def of(cls, samples: Samples) -> "_Past":
        """Return what is known before each window."""
        keys = np.sort((samples.block * NODES + samples.node) * WINDOWS + samples.window)
        blocks, block = _numbered(keys // (NODES * WINDOWS))
        node, window = numbered(keys // WINDOWS % NODES), keys % WINDOWS
        before = [_before(EDGES, some, window) for some in (block, node)]
        is_new = window < JUDGED
        return cls(keys, keys[is_new], block[is_new], node[is_new], window[is_new], blocks, *before)

    def likely(self) -> tuple[Floats, Floats]:
        """Return how likely the newest samples are by each of LENGTHS [L], and a block's part in that [L, B].

        Logarithms.  Of a block: of its samples, less how many it is to have by its share; so the sum over
        blocks is that of all but for how many samples there are.
        """
        every, size = _between(self.blocks_before.sum(axis=1)), len(self.blocks)
        seen = self.blocks_before[UNTIL[:, self.window], self.block]
        seen -= self.blocks_before[FIRST[self.window], self.block]
        pseudo = UNSEEN[:, None, None]
        chances = np.log((seen + pseudo) / (every[:, self.window] + pseudo * size))
        best = chances.sum(axis=2).argmax(axis=0)
        mine = chances[best, np.arange(len(LENGTHS))] + self._of_nodes(seen)
        by_block = np.stack([np.bincount(self.block, one, size) for one in mine])
        return mine.sum(axis=1), by_block - self._expected(every, UNSEEN[best, None])

    def _of_nodes(self, seen: Floats) -> Floats:
        """Return how likely the newest samples' nodes are [L, S], by those of blocks and of the guest.

        ``seen[L, S]``: the samples of each one's block.
        """
        until = np.searchsorted(self.keys, self.newest + 1 + np.array(LENGTHS)[:, None])
        mine = until - np.searchsorted(self.keys, self.newest + 1)
        nodes = _between(self.nodes_before) + 1.0
        usual = (nodes / nodes.sum(axis=2, keepdims=True))[:, self.window, self.node]
        pseudo = UNSEEN[:, None, None]
        chances = np.log((mine + pseudo * usual) / (seen + pseudo))
        best = chances.sum(axis=2).argmax(axis=0)
        found: Floats = chances[best, np.arange(len(LENGTHS))]
        return found

    def _expected(self, every: Floats, unseen: Floats) -> Floats:
        """Return of how many of the newest samples each block's share is [L, B]."""
        newest = np.bincount(self.window, minlength=JUDGED)
        weight = newest / (every + unseen * len(self.blocks))
        of_edge = np.zeros((len(LENGTHS), len(EDGES)))
        for at in range(JUDGED):
            of_edge[np.arange(len(LENGTHS)), UNTIL[:, at]] += weight[:, at]
            of_edge[:, FIRST[at]] -= weight[:, at]
        expected: Floats = of_edge @ self.blocks_before + (weight * unseen).sum(axis=1, keepdims=True)
        return expected

    def is_unlike(self, best: int) -> Bools:
        """Return of which blocks the newer samples of LENGTHS[best] windows are other than the older ones."""
        cells, cell = _numbered(self.keys // WINDOWS)
        before = _before(np.array(LENGTHS), cell, self.keys % WINDOWS)
        newer, whole = before[:best], before[best]
        block = _begins(cells // NODES).nonzero()[0]
        bound = UNLIKE + np.diff(block, append=len(cells)) - 1
        ratio = _log_ratio(newer, whole, newer.sum(axis=1, keepdims=True) / whole.sum())
        most = np.add.reduceat(ratio, block, axis=1).max(axis=0, initial=0.0)
        unlike: Bools = most > bound
        return unlike


def _log_ratio(newer: Floats, whole: Floats, share: Floats) -> Floats:
    """Return how much likelier counts are if the newer ones are no ``share`` of the whole (logarithm)."""
    older, due = whole - newer, whole * share
    tiny = 1e-300
    ratio: Floats = newer * np.log((newer + tiny) / (due + tiny))
    ratio += older * np.log((older + tiny) / (whole - due + tiny))
    return ratio


def _begins(ascending: Indexes) -> Bools:
    """Return which of these are the first of their value."""
    return np.append(True, ascending[1:] != ascending[:-1])


def _numbered(ascending: Indexes) -> tuple[Indexes, Indexes]:
    """Return the values that there are, and the number of each one's among these."""
    begins = _begins(ascending)
    return ascending[begins], np.cumsum(begins) - 1


def _before(edges: Indexes, some: Indexes, window: Indexes) -> Floats:
    """Return how many samples each of these numbers has in windows below each of the edges."""
    below, size = np.searchsorted(edges, np.arange(WINDOWS), side="right"), int(some.max()) + 1
    count = np.bincount(below[window] * size + some, minlength=(len(edges) + 1) * size).reshape(-1, size)
    return np.cumsum(count[:-1], axis=0, dtype=np.float64)


def _between(before: Floats) -> Floats:
    """Return how many samples there are in each of LENGTHS windows before each that is predicted."""
    found: Floats = before[UNTIL] - before[FIRST]
    return found
