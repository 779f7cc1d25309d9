"""Do frames that KVM refuses hold up those behind them, and how many are tried in a window?"""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.actuation.child_guest import guest_of
from tests.unit.actuation.copying_kvm import COPIES, CountingKvm, OneSlot
from tests.unit.actuation.node_kvm import CopiedGuest, NodeKvm
from vmplace.actuation import replica_turns
from vmplace.actuation.budget import Budget
from vmplace.actuation.frame_sets import FrameSet
from vmplace.actuation.replica_calls import Attempt
from vmplace.actuation.replica_frames import ReplicatedFrames
from vmplace.actuation.replica_turns import MOST_IN_A_ROW, MOST_PARTS, CopyWindow, Turn
from vmplace.actuation.replicator import Replicator

SECOND = 10**9
FEW = 4096


@pytest.fixture
def few_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a window try few frames."""
    for name in ("MOST_REFUSED", "MOST_AT_ONCE"):
        monkeypatch.setattr(replica_turns, name, FEW)


def windows(
    kvm: CountingKvm, npages: int, count: int, *, mb_per_s: float = 1.0, mapped_at: int = -1
) -> list[tuple[int, int]]:
    """Return how many frames each window, a second long, asked for, and how many got copies.

    From number ``mapped_at`` on none are refused.
    """
    guest, slot, now_ns = guest_of(os.getpid(), 1 << 32, npages), OneSlot(npages=npages, kvm=kvm), [0]
    opened: Any = lambda *_: slot  # noqa: E731
    replicator = Replicator(Budget(mb_per_s * 1e6), lambda: now_ns[0], opened=opened, ask=kvm)
    wanted = replace(COPIES, npages=np.array([npages], np.int32))
    seen = []
    for number in range(count):
        if number == mapped_at:
            kvm.refused.clear()
        before, kvm.asked = len(kvm.copied), []
        (outcome,), failures = replicator.apply([wanted], {"db1": guest})
        assert not failures and outcome.replicated == len(kvm.copied) - before
        seen.append((len(set(kvm.asked)), outcome.replicated))
        now_ns[0] += SECOND
    return seen


def test_pages_that_are_refused_do_not_hold_up_those_behind_them() -> None:
    kvm = CountingKvm(refused=set(range(4096)))
    seen = windows(kvm, 8192, 10)
    # What was saved up at first is a block.
    assert seen[0][1] == 512 and sum(made for _, made in seen[1:]) > 0.9 * 9 * 1e6 / 4096
    assert min(kvm.copied) >= 4096


def test_a_window_tries_some_of_what_is_refused_and_the_next_one_goes_on_there(few_a_window: None) -> None:
    refused = 5 * FEW // 2
    kvm = CountingKvm(refused=set(range(refused)))
    seen = windows(kvm, refused + 100, 8, mb_per_s=1000.0, mapped_at=6)
    assert max(tried for tried, _ in seen[:6]) < 2 * FEW
    # The first ones are not forgotten: something may be mapped there by now.
    assert [made > 0 for _, made in seen] == [False, False, True, False, False, False, True, False]
    assert [seen[2][1], seen[6][1]] == [100, refused]


def test_a_small_budget_makes_no_more_than_some_calls_and_comes_to_the_end_as_well() -> None:
    kvm = CountingKvm(refused=set(range(100_000)))
    seen = windows(kvm, 100_100, 12, mb_per_s=0.1)
    assert max(tried for tried, _ in seen) <= 512 * MOST_PARTS
    assert sum(made for _, made in seen) == 100


def test_a_window_has_some_parts_however_small_these_are() -> None:
    guest = CopiedGuest(1000, NodeKvm(refusals=dict.fromkeys(range(1000), "not present")))
    outcome = guest.window(0, 1, limit_bytes=4096)
    assert len(guest.kvm.asked) == MOST_PARTS and outcome.left == 1000 - MOST_PARTS


def test_the_ranges_of_a_guest_have_their_turn_together_and_one_outcome() -> None:
    kvm, npages = CountingKvm(refused={*range(2048), *range(4096, 6144)}), 8192
    guest, slot, now_ns = guest_of(os.getpid(), 1 << 32, npages), OneSlot(npages=npages, kvm=kvm), [0]
    opened: Any = lambda *_: slot  # noqa: E731
    replicator = Replicator(Budget(512 * 4096), lambda: now_ns[0], opened=opened, ask=kvm)
    half = np.array([4096], np.int32)
    ranges = [replace(COPIES, hva=COPIES.hva + np.uint64(at * 4096), npages=half) for at in (0, 4096)]
    for _ in range(8):
        (outcome,), _ = replicator.apply(ranges, {"db1": guest})
        assert outcome.replicated == 512
        now_ns[0] += SECOND
    assert kvm.copied == {*range(2048, 4096), *range(6144, 8192)}


def test_a_call_that_fails_holds_up_nobody_behind_it() -> None:
    kvm, npages = CountingKvm(fails_at=1), 1024
    guest, slot = guest_of(os.getpid(), 1 << 32, npages), OneSlot(npages=npages, kvm=kvm)
    opened: Any = lambda *_: slot  # noqa: E731
    replicator = Replicator(Budget(512 * 4096), lambda: 0, opened=opened, ask=kvm)
    wanted = replace(COPIES, npages=np.array([npages], np.int32))
    _, failures = replicator.apply([wanted], {"db1": guest})
    assert failures and kvm.copied == {0}
    replicator.apply([wanted], {"db1": guest})
    assert kvm.copied == {0, *range(512, 1023)}


def test_an_order_to_stop_ends_a_window_after_the_part_that_is_tried() -> None:
    kvm, npages = CountingKvm(refused=set(range(4096))), 8192
    guest, slot = guest_of(os.getpid(), 1 << 32, npages), OneSlot(npages=npages, kvm=kvm)
    opened: Any = lambda *_: slot  # noqa: E731
    replicator = Replicator(Budget(512 * 4096), lambda: 0, opened=opened, ask=kvm)
    wanted = replace(COPIES, npages=np.array([npages], np.int32))
    orders = iter((False, True))
    (outcome,), _ = replicator.apply([wanted], {"db1": guest}, lambda: next(orders))
    assert outcome.left == npages - 512 and outcome.refused == {"not present": 512}


def test_a_guest_waits_only_once_all_was_refused_for_good(few_a_window: None) -> None:
    npages = 4 * FEW
    kvm = CountingKvm(refused=set(range(npages - 8)), refusal="not anonymous")
    seen = windows(kvm, npages, 5, mb_per_s=1000.0)
    assert sum(made for _, made in seen) == 8


def asked_in_turn(asked: list[int], turn: Turn, most: int) -> list[int]:
    """Return the first part of a window, all of which is refused."""
    window = CopyWindow(FrameSet.of(np.array(asked, np.uint64)), turn, most)
    attempt = Attempt(3, 0b11, window.part(most), lambda *_: None)
    window.note(attempt)
    window.end(ReplicatedFrames())
    tried: list[int] = attempt.gfns.tolist()
    return tried


def test_a_block_that_was_cut_is_asked_for_as_a_whole_once_that_is_paid_for() -> None:
    """It may be a huge page, of which KVM copies no part."""
    turn, asked = Turn(), [*range(512, 1024), 2000]
    assert asked_in_turn(asked, turn, 100) == asked[:100]
    assert asked_in_turn(asked, turn, 512) == asked[:512]
    assert asked_in_turn(asked, turn, 512) == [2000]


def test_what_is_refused_before_a_whole_block_is_not_asked_for_each_time() -> None:
    turn, asked = Turn(), [5, 6, *range(512, 1024), 2000]
    assert [asked_in_turn(asked, turn, 512) for _ in range(2)] == [[5, 6], asked[2:514]]


def test_where_very_many_are_refused_for_good_the_rest_has_to_wait_for_its_turn() -> None:
    turn = Turn()
    for _ in range(3):
        turn.note(MOST_IN_A_ROW // 4, is_vain=True)
        assert not turn.is_whole(10 * MOST_IN_A_ROW)
    turn.note(MOST_IN_A_ROW // 4, is_vain=True)
    assert turn.is_whole(10 * MOST_IN_A_ROW) and not turn.is_whole(10 * MOST_IN_A_ROW)
    turn.note(10, is_vain=True)
    assert turn.is_whole(10)
    turn.note(10, is_vain=False)
    assert not turn.is_whole(10)
