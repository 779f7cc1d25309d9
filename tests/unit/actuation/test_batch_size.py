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


def test_grows_at_most_twofold():
    size = probed(16)
    size.took(16, 1)
    assert size.pages == 32


def test_shrinks_at_once():
    size = probed(1024)
    size.took(1024, 50_000_000)
    assert size.pages <= 102


def test_a_short_last_batch_tells_nothing_about_larger_ones():
    size = probed(1024)
    size.took(3, 1_000_000)
    assert size.pages == 1024


@pytest.mark.parametrize("fixed_ns", [6_000_000, 15_000_000, 40_000_000])
def test_a_high_fixed_price_does_not_starve_the_batch(fixed_ns: int):
    size = BatchSize()
    for _ in range(100):
        size.took(size.pages, fixed_ns + size.pages * 1000)
    assert size.pages > 1000


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
