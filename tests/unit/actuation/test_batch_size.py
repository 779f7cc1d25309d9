import random

import pytest

from vmplace.actuation.batch_size import LIMIT_NS, BatchSize


def probed(first: int, fixed_ns: int = 0) -> BatchSize:
    """Return a size that knows the fixed price."""
    size = BatchSize(first)
    size.took(1, fixed_ns)
    return size


def test_the_first_call_moves_one_page_to_learn_the_fixed_price():
    assert BatchSize().pages == 1
    assert probed(16).pages == 16


def size_after(size: BatchSize, pages: int, duration_ns: int, fixed_ns: int = 0) -> int:
    """Return the size that follows a call, past a probe that may be due."""
    size.took(pages, duration_ns)
    if size.pages == 1:
        size.took(1, fixed_ns)
    return size.pages


def test_grows_at_most_twofold():
    assert size_after(probed(16), 16, 1) == 32


def test_shrinks_at_once():
    assert size_after(probed(1024), 1024, 50_000_000) <= 102


def test_a_short_last_batch_tells_nothing_about_larger_ones():
    assert size_after(probed(1024), 3, 1_000_000) == 1024


@pytest.mark.parametrize("fixed_ns", [6_000_000, 15_000_000, 40_000_000])
def test_a_high_fixed_price_does_not_starve_the_batch(fixed_ns: int):
    size = BatchSize()
    for _ in range(100):
        size.took(size.pages, fixed_ns + size.pages * 1000)
    assert size.pages > 1000


@pytest.mark.parametrize("seed", range(20))
def test_a_host_whose_calls_stall_at_random_still_moves_many_pages_per_call(seed: int):
    noise = random.Random(seed)  # noqa: S311 - not for secrets
    size, moved = BatchSize(), 0
    for _ in range(300):
        call = size.pages
        size.took(call, int(noise.lognormvariate(0, 1) * 50_000_000) + call * 20_000)
        moved += call
    assert moved / 300 > 200


def test_one_huge_page_that_takes_too_long_alone_still_moves():
    size = BatchSize(1, probes=False)
    size.took(1, 30_000_000)
    assert size.pages == 1


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("page_ns", [500, 5_000, 200_000])
def test_calls_stay_below_the_limit_under_noise(seed: int, page_ns: int):
    noise = random.Random(seed)  # noqa: S311 - not for secrets
    size, longest, moved, spent = BatchSize(), 0, 0, 0
    for _ in range(500):
        call = size.pages
        took = int((500_000 + call * page_ns) * noise.uniform(0.5, 2))
        longest, moved, spent = max(longest, took), moved + call, spent + took
        size.took(call, took)
    assert longest < LIMIT_NS
    # At least half of what endless batches would reach.
    assert moved / spent > 0.5 / (1.25 * page_ns)
