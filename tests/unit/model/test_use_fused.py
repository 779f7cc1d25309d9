"""Who uses pages when bits, samples and sights of code come together."""

from dataclasses import replace

import numpy as np

from tests.unit.model.known_pages import by_page, rate_codes
from tests.unit.policy.views import NPAGES, bits, view
from vmplace.model.page_rates import PER_SECOND
from vmplace.model.pages import RangePages
from vmplace.model.touched_blocks import touched_pages
from vmplace.model.touched_pages import TouchedPages
from vmplace.model.use_fused import fused_use
from vmplace.policy.plan import GuestView
from vmplace.sampling.sample import NodeHits

ALL_NODES = {index: range(NPAGES) for index in range(4)}
Row = int


def range_of(seen: GuestView) -> RangePages:
    assert seen.pages
    return seen.pages.ranges[0]


def touched(pages: RangePages) -> TouchedPages:
    """Return what was touched."""
    found = touched_pages(pages)
    assert found
    return found


def with_more(seen: GuestView, counted: dict[int, list[Row]], text: range = range(0)) -> GuestView:
    """Return the view with samples, rows by page, and with code."""
    assert seen.pages
    pages = np.repeat(list(counted), [len(rows) for rows in counted.values()]).astype(np.int64)
    rows = np.array([row for of_page in counted.values() for row in of_page], np.int64)
    (one,) = seen.pages.ranges
    one = replace(one, counted=(NodeHits(pages, rows),), text=(np.array(text, np.int64),))
    return replace(seen, pages=replace(seen.pages, ranges=(one,)))


def test_written_pages_that_all_touch_go_to_the_node_with_nearly_all_samples() -> None:
    window = bits(ALL_NODES, range(NPAGES))
    seen = with_more(view(window, window), {100: [2] * 90 + [1]})
    pages = touched(range_of(seen))
    owner = by_page(pages, fused_use(pages).owner)
    assert (owner[:512] == 2).all() and (owner[512:] == -1).all()


def test_samples_that_are_few_or_of_several_nodes_leave_a_page_shared() -> None:
    window = bits(ALL_NODES, range(NPAGES))
    for rows in ([2] * 5, [2] * 45 + [1] * 45, [4] * 90):
        use = fused_use(touched(range_of(with_more(view(window, window), {100: rows}))))
        assert use.shared.all()


def written_at_random() -> GuestView:
    """Return a view of 64 pages that all nodes read, other ones of which were written in each window."""
    read = {index: range(64) for index in range(4)}
    return view(bits(read, written=range(24)), bits(read, written=range(16, 40)))


def test_code_counts_as_written_only_if_a_write_was_seen() -> None:
    seen = written_at_random()
    assert fused_use(touched(range_of(seen))).written[:64].all()
    code = fused_use(touched(range_of(with_more(seen, {}, text=range(30, 50)))))
    assert code.written[30:50].tolist() == [True] * 10 + [False] * 10


def with_rate(seen: GuestView, per_second: dict[int, dict[int, range]]) -> RangePages:
    """Return the range with pages, by node, that are touched so often a second."""
    codes = np.zeros((4, NPAGES), np.uint8)
    for rate, by_node in per_second.items():
        for node, pages in by_node.items():
            codes[node, pages] = np.abs(PER_SECOND - rate).argmin()
    return replace(range_of(seen), rate=rate_codes(codes, range_of(seen).ram))


def test_written_pages_that_all_touch_go_to_the_node_that_touches_them_nearly_always() -> None:
    window = bits(ALL_NODES, range(NPAGES))
    seen = view(window, window, window)
    rest = {node: range(NPAGES) for node in (0, 1, 3)}
    use = fused_use(touched(with_rate(seen, {400: {2: range(256)}, 1: {2: range(256, NPAGES)} | rest})))
    assert (use.owner[:256] == 2).all() and (use.owner[256:] == -1).all()
    control = fused_use(touched(range_of(seen)))
    assert control.shared.all()


def test_a_rate_that_was_seen_in_two_windows_gives_a_page_to_nobody() -> None:
    window = bits(ALL_NODES, range(NPAGES))
    use = fused_use(touched(with_rate(view(window, window), {400: {2: range(NPAGES)}})))
    assert use.shared.all()


def test_samples_count_for_more_than_the_rate() -> None:
    window = bits(ALL_NODES, range(NPAGES))
    seen = with_more(view(window, window, window), {100: [1] * 90})
    pages = touched(with_rate(seen, {400: {2: range(1024)}, 40: {1: range(1024)}}))
    owner = by_page(pages, fused_use(pages).owner)
    assert (owner[:512] == 1).all() and (owner[512:1024] == -1).all()
