"""A page's price is spread over how long it was used as it is: anew with each other user, or write."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.policy.test_host_plan import guest, two_nodes
from vmplace.policy.host_plan import HostPlanner
from vmplace.policy.host_view import GuestEvidence, HostView
from vmplace.policy.steadiness import SPAN_NS, Spans, Steadiness


def after_looks(*looks: tuple[float, GuestEvidence]) -> Spans:
    """Let a guest be looked at, at times in spans; return what is said at the last one."""
    steady = Steadiness.unknown(len(looks[0][1].node))
    for spans, seen in looks:
        steady = steady.seen(seen, spans * SPAN_NS)
    return steady.spans(looks[-1][0] * SPAN_NS)


READ = guest([[9.0, 1.0]], written=False)


def test_what_was_seen_for_less_than_a_span_is_expected_once_more():
    assert after_looks((5.0, READ), (5.9, READ)) == Spans(np.ones(1), np.ones(1))


def test_what_goes_on_for_long_is_expected_to_last_as_long_again():
    spans = after_looks((2.0, READ), (5.0, READ))
    assert (spans.moves[0], spans.copies[0]) == pytest.approx((3.0, 3.0))


def test_another_user_begins_the_time_of_moves_anew_and_a_write_that_of_copies():
    other, written = guest([[1.0, 9.0]], written=False), guest([[9.0, 1.0]], written=True)
    assert after_looks((0.0, READ), (3.0, other)).moves[0] == 1.0
    assert after_looks((0.0, READ), (3.0, other)).copies[0] == pytest.approx(3.0)
    assert after_looks((0.0, READ), (3.0, written), (5.0, READ)).copies[0] == pytest.approx(2.0)
    assert after_looks((0.0, READ), (3.0, written), (5.0, READ)).moves[0] == pytest.approx(5.0)


def test_after_a_full_controller_no_pattern_of_moves_is_older_than_the_calm():
    calm = replace(READ, calm_since_ns=6.0 * SPAN_NS)
    spans = after_looks((0.0, READ), (8.0, calm))
    assert (spans.moves[0], spans.copies[0]) == pytest.approx((2.0, 8.0))


def test_time_in_which_nobody_used_a_page_does_not_count():
    nobody = guest([[0.0, 0.0]], written=False)
    assert after_looks((0.0, nobody), (8.0, READ), (10.0, READ)).moves[0] == pytest.approx(2.0)
    assert after_looks((0.0, nobody), (8.0, READ), (10.0, READ)).copies[0] == pytest.approx(2.0)


def test_pages_that_are_seldom_used_move_once_they_were_so_for_long():
    # Used from node 1 in each look, at home on 0: 100 accesses cost 100 x (200 - 100) ns more than at home.
    seen = replace(guest([[0.0, 100.0]] * 64, windows=1, parallelism=1.0), mlp=1.0)
    planner, moved_at = HostPlanner(), None
    for look in range(40):
        now_ns = look * SPAN_NS / 2
        view = HostView(two_nodes(), np.full(2, 1e9), (seen,), move_ns=4 * 100 * 100.0, now_ns=now_ns)
        if moved_at is None and (planner.plan(view).pages[0] == 1).any():
            moved_at = now_ns / SPAN_NS
    # A price of four times what is seen in a span is lost after four spans; moves begin at a hurdle of two.
    assert moved_at == pytest.approx(8.0, abs=0.6)
