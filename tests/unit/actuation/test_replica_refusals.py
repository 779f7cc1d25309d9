"""For how long is KVM not asked again for copies that it refused?"""

import numpy as np

from vmplace.actuation.replica_patience import LONGEST_NS
from vmplace.actuation.replica_refusals import Refusals
from vmplace.sampling.page_set import NO_PAGES, PageSet

S = 10**9


def asked_at(refusals: Refusals, page: int, seconds: int) -> list[int]:
    """Ask for the page in each second in which it does not wait; return when."""
    asked = []
    for now_s in range(seconds):
        if not refusals.waiting(now_s * S).are_in(np.array([page]))[0]:
            asked.append(now_s)
            refusals.note(NO_PAGES, PageSet.of([page]), now_s * S)
    return asked


def test_what_is_refused_is_tried_again_at_once_and_then_ever_more_seldom() -> None:
    refusals = Refusals()
    # After waits of 0, 2, 4, 8 and 16 s.
    assert asked_at(refusals, 700, 60) == [0, 1, 3, 7, 15, 31]
    # Once it has copies, nothing is held against it.
    refusals.note(PageSet.of([700]), NO_PAGES, 60 * S)
    assert not len(refusals.waiting(60 * S)) and asked_at(refusals, 700, 5) == [0, 1, 3]


def test_the_other_pages_of_a_block_do_not_wait_but_the_block_does_so_as_a_whole() -> None:
    refusals = Refusals()
    for _ in range(3):
        refusals.note(NO_PAGES, PageSet.of([700]), 0)
    assert refusals.waiting(S).pages().tolist() == [700]
    assert refusals.waiting(S) is refusals.waiting(2 * S) and not len(refusals.waiting(4 * S))
    # What is refused of the same block later waits as long, and what is refused elsewhere does not.
    refusals.note(NO_PAGES, PageSet.of([701, 5]), 4 * S)
    assert refusals.waiting(11 * S).pages().tolist() == [700, 701]


def test_what_nobody_asks_for_again_is_forgotten() -> None:
    refusals = Refusals()
    for _ in range(30):
        refusals.note(NO_PAGES, PageSet.of([700]), 0)
    assert len(refusals.waiting(LONGEST_NS - 1)) == 1 and not len(refusals.waiting(LONGEST_NS))
    refusals.note(NO_PAGES, PageSet.of([5]), 2 * LONGEST_NS)
    refusals.note(NO_PAGES, PageSet.of([700]), 2 * LONGEST_NS)
    assert not len(refusals.waiting(2 * LONGEST_NS))
