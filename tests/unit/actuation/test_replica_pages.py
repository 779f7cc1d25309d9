"""Of which pages is it known that they have copies, once KVM has dropped some?"""

import numpy as np

from vmplace.actuation.replica_pages import MOST_DOUBTED, ReplicatedPages
from vmplace.sampling.page_set import NO_PAGES, PageSet


def held_on(*nids: int, pages: PageSet) -> ReplicatedPages:
    held = ReplicatedPages()
    held.nids = nids
    held.note(pages, pages)
    return held


def test_pages_that_have_copies_are_asked_for_again_once_kvm_has_dropped_some() -> None:
    held, pages = ReplicatedPages(), PageSet.of([3, 5, 9])
    assert held.note(pages, PageSet.of([9, 3])) == 2
    asked = []
    for dropped in (0, 1, 1, 3):
        held.note_drops(dropped)
        new, again = held.to_ask(pages)
        asked.append((new.pages().tolist(), again.pages().tolist()))
        held.note(again, again)
    assert asked == [([5], []), ([5], [3, 9]), ([5], []), ([5], [3, 9])]


def test_pages_in_doubt_are_asked_for_some_at_a_time_and_stay_in_doubt_until_they_were() -> None:
    every = PageSet.of(np.arange(2 * MOST_DOUBTED + 1))
    held = held_on(0, 1, pages=every)
    held.note_drops(1)
    counts = []
    for _ in range(4):
        again = held.to_ask(every)[1]
        assert again.is_same(held.to_ask(every)[1])
        held.note(again, again)
        counts.append(len(again))
    assert counts == [MOST_DOUBTED, MOST_DOUBTED, 1, 0]


def test_pages_that_lost_their_copies_count_anew() -> None:
    held, pages, first = ReplicatedPages(), PageSet.of([3, 5]), PageSet.of([3])
    assert [held.note(pages, pages), held.note(pages, first), held.note(pages, pages)] == [2, 0, 1]


def test_pages_whose_copies_were_dropped_are_held_no_more() -> None:
    held = held_on(0, 1, pages=PageSet.of([3, 5, 9]))
    assert held.take(PageSet.of([4, 5, 9])).pages().tolist() == [5, 9]
    assert held.take(PageSet.of([3, 5])).pages().tolist() == [3] and not len(held.pages)


def test_pages_in_doubt_count_as_there_if_half_of_their_copies_are() -> None:
    every = PageSet.of(np.arange(1024))
    held = held_on(0, 1, 2, pages=every)
    assert held.there(2048).pages is held.pages and held.there(2048).nids == (0, 1, 2)
    held.note_drops(900)
    assert [len(held.there(copies).pages) for copies in (2048, 1024, 1023, 248, 2, 0)] == [
        1024,
        1024,
        0,
        0,
        0,
        0,
    ]
    # Some were asked for since: these have copies.
    tried = PageSet.of(np.arange(100))
    held.note(tried, tried)
    assert held.there(248).pages.is_same(tried) and held.there(248) is held.there(248)
    # Nobody saw KVM drop anything, and yet it counts next to nothing.
    assert not len(held_on(0, 1, pages=every).there(1).pages)
    assert held_on(0, 1, pages=NO_PAGES).there(0).pages is NO_PAGES
