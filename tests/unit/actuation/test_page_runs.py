import random

import numpy as np
import pytest

from vmplace.actuation.page_runs import OriginMap, PageRuns, decode_runs, encode_pages

GIB_PAGES = 1 << 18


def runs_of(pages: dict[int, int]) -> PageRuns:
    hva = np.array([frame * 4096 for frame in pages], np.uint64)
    return encode_pages(hva, np.ones(len(hva), np.uint16), np.array(list(pages.values()), np.int16))


def as_dict(origins: OriginMap) -> dict[int, int]:
    found: dict[int, int] = {}
    for runs in origins.iter_runs():
        frames, nids = runs.page_frames()
        found |= dict(zip(frames.tolist(), nids.tolist(), strict=True))
    return found


@pytest.mark.parametrize("seed", range(10))
def test_the_earliest_origin_stays(seed: int):
    noise = random.Random(seed)  # noqa: S311 - not for secrets
    origins, truth = OriginMap(), dict[int, int]()
    for _ in range(20):
        pages = {noise.randrange(1 << 35, (1 << 35) + 40_000): noise.randrange(8) for _ in range(500)}
        origins.add(decode_runs(runs_of(pages).encoded()))
        truth = pages | truth
    assert as_dict(origins) == truth
    assert origins.total_pages == len(truth)


def test_a_huge_page_is_512_pages():
    runs = encode_pages(np.array([0, 2 << 20], np.uint64), np.array([512, 512], np.uint16), np.array([3, 3]))
    assert runs.npages.tolist() == [1024]


def test_an_interleaved_gib_takes_few_bytes():
    frames = np.arange(GIB_PAGES, dtype=np.uint64) * np.uint64(4096)
    runs = encode_pages(frames, np.ones(GIB_PAGES, np.uint16), np.arange(GIB_PAGES) % 4)
    assert len(runs.hva) == GIB_PAGES
    assert len(runs.encoded()) < 64 << 10


def test_cut_runs_are_refused():
    with pytest.raises(ValueError, match="damaged"):
        decode_runs(runs_of({1: 0}).encoded()[:-2])


def test_runs_that_went_elsewhere_than_they_came_from_are_refused():
    with pytest.raises(ValueError, match="not the same"):
        OriginMap().add(runs_of({1: 0}), runs_of({2: 1}))


@pytest.mark.parametrize("seed", range(5))
def test_steps_lead_to_the_same_origins(seed: int):
    noise = random.Random(seed)  # noqa: S311 - not for secrets
    origins, again = OriginMap(), OriginMap()
    for _ in range(20):
        pages = [noise.randrange(1 << 35, (1 << 35) + 2_000) for _ in range(300)]
        where, there = ({page: noise.randrange(4) for page in pages} for _ in range(2))
        origins.add(runs_of(where), runs_of(there) if noise.random() < 0.8 else None)
    for block in origins.iter_pages():
        for runs, to in block.steps():
            again.add(runs, to)
    for one, other in zip(origins.iter_pages(), again.iter_pages(), strict=True):
        for column in ("hva", "nid", "via", "to"):
            assert np.array_equal(getattr(one, column), getattr(other, column))


def test_where_a_gib_went_takes_few_bytes():
    frames = np.arange(GIB_PAGES, dtype=np.uint64) * np.uint64(4096)
    one = np.ones(GIB_PAGES, np.uint16)
    there = encode_pages(frames, one, np.full(GIB_PAGES, 2))
    assert len(there.encoded()) < 100
