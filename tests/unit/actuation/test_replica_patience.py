"""Does a guest wait with copies that do not last?"""

from itertools import pairwise

from vmplace.actuation.replica_patience import FEW, FIRST_NS, LONGEST_NS, Patience

SECOND = 10**9


def counts(made: int, lost: int, around: int = 0) -> dict[str, int]:
    """Return what KVM counts: ``lost`` has those that were lost ``around`` writes, too."""
    return {"replicated_pages": made, "collapsed_pages": lost, "collapsed_around": around}


def test_a_table_that_is_only_read_gets_all_its_copies_at_once() -> None:
    patience = Patience()
    # Ten of a hundred are lost: pages of the guest's kernel.
    answers = [patience.is_over(counts(1000 * n, 100 * n), n * SECOND) for n in range(1, 20)]
    assert all(answers)


def test_copies_lost_as_fast_as_they_are_made_are_made_ever_more_seldom() -> None:
    patience, made, lost, tries = Patience(), 0, 0, []
    for second in range(2000):
        if patience.is_over(counts(made, lost), second * SECOND):
            tries.append(second)
            made, lost = made + 100, lost + 100
    gaps = [after - before for before, after in pairwise(tries)]
    assert len(tries) < 15
    assert gaps[1:] == sorted(gaps[1:]) and gaps[-1] >= 256


def test_a_few_lost_copies_do_not_hold_up_the_others() -> None:
    patience = Patience()
    assert [patience.is_over(counts(0, (FEW - 1) * n), n) for n in range(5)] == [True] * 5


def test_once_copies_last_the_wait_shortens_again() -> None:
    patience, now, made, lost = Patience(), 0, 0, 0
    for _ in range(5):
        lost += FEW
        assert not patience.is_over(counts(made, lost), now)
        now += LONGEST_NS
    for _ in range(5):
        made += FEW
        assert patience.is_over(counts(made, lost), now)
    assert not patience.is_over(counts(made, lost + FEW), now)
    assert patience.is_over(counts(made, lost + FEW), now + FIRST_NS)


def test_copies_lost_around_writes_are_not_the_guests_fault() -> None:
    patience = Patience()
    assert all(patience.is_over(counts(1000 * n, 900 * n, 850 * n), n) for n in range(1, 10))
    # The same losses, each by a write of its own.
    assert not patience.is_over(counts(10_000, 9000, 7650), 10)


def test_a_kernel_that_does_not_drop_around_writes_counts_none() -> None:
    patience = Patience()
    assert not patience.is_over({"replicated_pages": 1000, "collapsed_pages": 900}, 1)
