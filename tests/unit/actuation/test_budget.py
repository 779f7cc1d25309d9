import random

from vmplace.actuation.budget import Budget

MB = 1_000_000
SECOND = 1_000_000_000


def test_grants_never_exceed_rate_times_time_plus_bucket():
    noise = random.Random(1)  # noqa: S311 - not for secrets
    budget, granted, now = Budget(100 * MB), 0, 0
    for _ in range(5000):
        now += noise.randrange(SECOND // 50)
        size = noise.randrange(4 * MB)
        granted += size if budget.take(size, now) else 0
        assert granted <= 100 * MB * now / SECOND + budget.capacity_bytes + 1
    assert granted > 0.9 * 100 * MB * now / SECOND


def test_all_or_nothing():
    budget = Budget(10 * MB)
    assert not budget.take(11 * MB, 0)
    assert budget.take(10 * MB, 0)


def test_a_huge_page_always_fits_the_bucket():
    assert Budget(1000).take(2 << 20, 0)


def test_a_clock_that_steps_back_grants_nothing():
    budget = Budget(10 * MB)
    assert budget.take(10 * MB, 5 * SECOND)
    assert budget.available_bytes(1 * SECOND) == 0
    assert budget.available_bytes(6 * SECOND) == 10 * MB


def test_no_rate_is_no_limit():
    budget = Budget(None)
    assert all(budget.take(1 << 40, 0) for _ in range(100))


def test_waiting_time_is_what_is_missing():
    budget = Budget(10 * MB)
    budget.take(10 * MB, 0)
    assert budget.wait_s(5 * MB, 0) == 0.5
    assert budget.wait_s(20 * MB, 0) is None


def test_what_was_used_beyond_the_budget_is_made_good_before_more_is_granted():
    budget = Budget(10 * MB)
    budget.charge(15 * MB, 0)
    assert budget.available_bytes(0) == budget.available_bytes(SECOND // 2) == 0
    assert not budget.take(MB, SECOND // 2) and budget.wait_s(MB, SECOND // 2) == 0.1
    assert budget.available_bytes(SECOND) == 5 * MB
    # Whatever was used: it is not stuck.
    budget.charge(10**6 * MB, SECOND)
    assert budget.available_bytes(3 * SECOND) == 10 * MB
    budget.charge(10**6 * MB, 3 * SECOND, owed_bytes=30 * MB)
    assert budget.available_bytes(6 * SECOND) == 0 and budget.available_bytes(7 * SECOND) == 10 * MB
    assert budget.is_full(7 * SECOND) and budget.take(1, 7 * SECOND) and not budget.is_full(7 * SECOND)
    nothing = Budget(None)
    assert nothing.is_full(0)
    nothing.charge(MB, 0)
    assert nothing.take(MB, 0) and nothing.wait_s(MB, 0) == 0.0


def test_who_waits_as_long_as_was_asked_for_gets_something():
    """A clock of whole ns, and a rate that gives parts of bytes."""
    budget, now, size = Budget(1_000_003), 0, 3 << 19
    for used in (2 << 20, 3 << 20):
        budget.charge(used, now)
        for _ in range(3):
            wait_s = budget.wait_s(size, now)
            assert wait_s is not None
            now += round(wait_s * SECOND)
            if budget.take(size, now):
                break
        else:
            raise AssertionError("it waits for ever")
