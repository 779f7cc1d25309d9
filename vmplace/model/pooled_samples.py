"""How hot is a 2 MiB block that was sampled once, or never, and who uses it?  Others around it tell.

Of a large guest there is less than one sample a block.  So blocks are drawn towards those near them, these
towards the others on their node, and these towards the whole guest.

1. How hot.  A block with more samples than chance allows, were it like the others, or with fewer, is as hot
   as its own samples say, and tells nothing of others.  The rest are Poisson with a Gamma prior around what
   is usual; its shape is what they scatter beyond chance.
2. Who.  The nodes' shares of a block's samples are drawn towards those around it.  Pairs of samples of one
   block tell how far: if all blocks are used alike, these are of one node as often as any two samples.
   ``PAIRS`` say so at first.

Example: the last of eight blocks is hot.  Of the others it does not matter which were sampled.

>>> counts = np.array([[1.0, 0], [0, 1], [0, 0], [1, 0], [0, 1], [0, 0], [0, 0], [9, 9]])
>>> pooled(counts, np.ones(8), [np.zeros(8, int)]).sum(axis=1).round(2).tolist()
[0.57, 0.57, 0.57, 0.57, 0.57, 0.57, 0.57, 18.0]

Source: empirical Bayes for Poisson rates (Robbins, Berkeley Symposium 1956); shares by a Dirichlet prior,
whose worth follows from the intraclass correlation (Bühlmann and Straub, ASTIN Bulletin, 1970).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vmplace.model.metrics import Matrix
from vmplace.sampling.page_arrays import Bools

Floats = npt.NDArray[np.float64]
Indexes = npt.NDArray[np.intp]
PAIRS = 4.0
"""So many pairs of samples agree at first as often as by chance: without any, all are taken to be alike."""
APART = 4.0
"""So many standard deviations of chance from what is usual; upwards so many samples besides."""
ROUNDS = 4
"""How often hot blocks are looked for; without those that were found, less is usual."""
ALIKE = 1e6
"""The shape of a prior that nothing speaks against: all are as usual."""


def pooled(counts: Matrix, sizes: Floats, groups: Sequence[Indexes]) -> Matrix:
    """Return what each block is expected to be sampled by each node [B, N], if sampled as often once more.

    ``sizes[B]``: of each, in any unit.  ``groups``: the number of the group that each block lies in, from 0,
    the smallest groups first, each inside one of the next.
    """
    total = row_totals(counts)
    if not total.any():
        return np.zeros_like(counts)
    apart = np.zeros(len(total), np.bool_)
    for _ in range(ROUNDS):
        expected, shape = _expected(total, sizes, groups, apart)
        before, apart = apart, _is_apart(total, expected)
        if np.array_equal(before, apart):
            break
    else:
        expected, shape = _expected(total, sizes, groups, apart)
    rates = np.where(apart, total, expected * (shape + total) / (shape + expected))
    found, users = np.zeros_like(counts), np.flatnonzero(counts.any(axis=0))
    # Who was never sampled has no share.
    shares = _shares(counts[:, users], apart, groups) if len(users) > 1 else 1.0
    found[:, users] = rates[:, None] * shares
    return found


def _expected(total: Floats, sizes: Floats, groups: Sequence[Indexes], apart: Bools) -> tuple[Floats, float]:
    """Return how many samples of each block are usual by those that are not apart, and the prior's shape."""
    usual, shape = _usual(np.where(apart, 0.0, total), np.where(apart, 0.0, sizes), groups)
    return usual * sizes, shape


def _is_apart(total: Floats, expected: Floats) -> Bools:
    by_chance = APART * np.sqrt(expected)
    return (total > expected + by_chance + APART) | (total < expected - by_chance)


def row_totals(counts: Matrix) -> Floats:
    """Return the sum over nodes."""
    totals: Floats = counts @ np.ones(counts.shape[1])
    return totals


def by_group(group: Indexes, values: Floats, count: int = 0) -> Floats:
    """Return the sum of ``values[B]``, or of each of their columns [B, N], over the blocks of each group.

    ``count``: of groups, if more than the blocks show.
    """
    if values.ndim > 1:
        columns = values.shape[1]
        cells = (group[:, None] * columns + np.arange(columns)).ravel()
        count = max(count, int(group.max(initial=-1)) + 1)
        return by_group(cells, values.ravel(), count * columns).reshape(-1, columns)
    sums: Floats = np.bincount(group, values, count).astype(np.float64, copy=False)
    return sums


def numbered(keys: Indexes) -> Indexes:
    """Return the number of each key among those that there are, ascending."""
    least = int(keys.min(initial=0))
    there = np.zeros(int(keys.max(initial=-1)) + 1 - least, np.bool_)
    there[keys - least] = True
    numbers: Indexes = (np.cumsum(there) - 1)[keys - least]
    return numbers


def _usual(total: Floats, sizes: Floats, groups: Sequence[Indexes]) -> tuple[Floats, float]:
    """Return the rate by size that is usual around each block, and the shape of how blocks differ from it."""
    whole = groups[-1]
    seen, size = by_group(whole, total), by_group(whole, sizes)
    usual = (seen / np.maximum(size, 1e-300))[whole]
    for group in groups[-2::-1]:
        seen, expected = by_group(group, total), by_group(group, usual * sizes)
        shape = _shape(seen, expected)
        usual = usual * ((shape + seen) / (shape + expected))[group]
    return usual, _shape(total, usual * sizes)


def _shape(seen: Floats, expected: Floats) -> float:
    """Return the shape of the prior of rates: 1 / the variance of what they are of what is expected."""
    squares = float((expected**2).sum())
    beyond = float(((seen - expected) ** 2 - expected).sum())
    return squares / beyond if beyond * ALIKE > squares else ALIKE


def _shares(counts: Matrix, apart: Bools, groups: Sequence[Indexes]) -> Matrix:
    """Return the nodes' shares of each block's samples [B, N]; a block that is apart has its own."""
    total = row_totals(counts)
    some = ((total > 0) & ~apart).nonzero()[0]
    usual = counts[some]
    all_samples = usual.sum(axis=0) if len(some) else counts.sum(axis=0)
    around, unit = all_samples[None] / max(float(all_samples.sum()), 1.0), np.zeros(len(counts), np.intp)
    for group in groups[::-1]:
        first = np.zeros(int(group.max()) + 1, np.intp)
        first[group] = np.arange(len(group))
        mine = around[unit[first]]
        around = _drawn(by_group(group[some], usual, len(first)), mine, row_totals(mine**2).mean())
        unit = group
    shares: Matrix = around[unit]
    shares[some] = _drawn(usual, shares[some], row_totals(around**2)[unit].mean())
    shares[apart] = counts[apart] / np.maximum(total[apart, None], 1.0)
    return shares


def _drawn(seen: Matrix, around: Matrix, by_chance: float) -> Matrix:
    """Return the shares [U, N] of units of which so much was ``seen``, drawn to those ``around`` each.

    ``by_chance``: how often two samples of any unit are of the same node if all are as those around them.
    """
    total = row_totals(seen)
    pairs = np.maximum(total - 1, 0.0)
    agree = float((row_totals(seen * (seen - 1)) / np.maximum(total, 1.0)).sum()) + PAIRS * by_chance
    expected = float(row_totals(around**2) @ pairs) + PAIRS * by_chance
    # Never nothing: a unit without samples has the shares of those around it.
    worth = max((pairs.sum() + PAIRS - agree) / max(agree - expected, 1 / ALIKE), 1 / ALIKE)
    drawn: Matrix = (around * worth + seen) / (worth + total)[:, None]
    return drawn
