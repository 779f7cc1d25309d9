"""What the choice of a memory is made from, against counts that are made sample by sample."""

from collections.abc import Iterator

import numpy as np
import pytest

from vmplace.model.remembered import LENGTHS, UNLIKE, Samples, _Past

PSEUDO = (0.5, 2.0, 8.0, 32.0, 128.0)
NEWEST = 4
Bools = np.ndarray


def some_samples(seed: int) -> Samples:
    """Return 20 to 150 samples of one to eight blocks; those of some guests changed nine windows ago."""
    chance = np.random.default_rng(seed)
    size = int(chance.integers(20, 150))
    block = chance.integers(0, chance.integers(1, 9), size) * 3 + 5
    node, window = chance.integers(0, chance.integers(1, 5), size), chance.integers(0, 68, size)
    window[:3] = chance.integers(0, NEWEST, 3)
    return Samples(block, np.where(window < 9, node, 0) if seed % 3 == 0 else node, window)


def newest(samples: Samples, length: int) -> Iterator[tuple[Bools, Bools, Bools]]:
    """Yield for each of the newest samples which are of so many windows before, its block, its node."""
    for at in np.flatnonzero(samples.window < NEWEST):
        own = samples.window[at]
        past = (samples.window > own) & (samples.window <= own + length)
        yield past, samples.block == samples.block[at], samples.node == samples.node[at]


def of_blocks(samples: Samples, length: int, pseudo: float) -> list[float]:
    kinds = len(np.unique(samples.block))
    return [
        np.log((np.sum(past & block) + pseudo) / (past.sum() + pseudo * kinds))
        for past, block, _ in newest(samples, length)
    ]


def of_nodes(samples: Samples, length: int, pseudo: float) -> list[float]:
    found, nodes = [], len(np.unique(samples.node))
    for past, block, node in newest(samples, length):
        usual = (np.sum(past & node) + 1) / (past.sum() + nodes)
        found.append(np.log((np.sum(past & block & node) + pseudo * usual) / (np.sum(past & block) + pseudo)))
    return found


def expected(samples: Samples, length: int, pseudo: float) -> list[float]:
    """Return how many of the newest samples each block is to have by its share in the windows before."""
    blocks = np.unique(samples.block)
    found = np.zeros(len(blocks))
    for past, _, _ in newest(samples, length):
        seen = np.array([np.sum(past & (samples.block == one)) for one in blocks])
        found += (seen + pseudo) / (past.sum() + pseudo * len(blocks))
    return found.tolist()


def unlike(samples: Samples, length: int, block: int) -> bool:
    """Return whether newer windows of a block differ from all by more than chance (G-test, by node)."""
    nodes, answers = np.unique(samples.node[samples.block == block]), []
    inside = samples.window < length
    for shorter in [one for one in LENGTHS if one < length]:
        share, ratio = np.sum(samples.window < shorter) / inside.sum(), 0.0
        for node in nodes:
            mine = inside & (samples.block == block) & (samples.node == node)
            new, every = np.sum(mine & (samples.window < shorter)), mine.sum()
            for count, due in ((new, every * share), (every - new, every * (1 - share))):
                ratio += count * np.log(count / due) if count else 0.0
        answers.append(ratio > UNLIKE + len(nodes) - 1)
    return any(answers)


@pytest.mark.parametrize("seed", range(12))
def test_each_length_predicts_the_newest_samples_so_well(seed: int) -> None:
    samples = some_samples(seed)
    totals, by_block = _Past.of(samples).likely()
    blocks, block = np.unique(samples.block, return_inverse=True)
    for at, length in enumerate(LENGTHS):
        pseudo = max(PSEUDO, key=lambda one: sum(of_blocks(samples, length, one)))
        nodes = max((of_nodes(samples, length, one) for one in PSEUDO), key=sum)
        mine = np.array(of_blocks(samples, length, pseudo)) + nodes
        assert totals[at] == pytest.approx(mine.sum())
        own = np.bincount(block[samples.window < NEWEST], mine, len(blocks))
        assert by_block[at].tolist() == pytest.approx(own - expected(samples, length, pseudo))


@pytest.mark.parametrize("seed", range(12))
def test_blocks_whose_newer_samples_are_other_than_the_older_are_found(seed: int) -> None:
    samples = some_samples(seed)
    past = _Past.of(samples)
    for at, length in enumerate(LENGTHS):
        by_hand = [unlike(samples, length, block) for block in past.blocks.tolist()]
        assert past.is_unlike(at).tolist() == by_hand


def test_what_blocks_have_is_all_but_for_how_many_samples_there_are() -> None:
    samples = some_samples(1)
    totals, by_block = _Past.of(samples).likely()
    assert by_block.sum(axis=1).tolist() == pytest.approx(totals - np.sum(samples.window < NEWEST))
