"""How long does a manager act?  Rules on made-up looks at it."""

import re
from pathlib import Path

import pytest

from lab import machine_share, scenario_meter, scenario_rest, scenario_speed
from lab.errors import TooSlowError
from lab.scenario import Timing
from lab.scenario_rest import AWAITED, Acting

FEW = 100
LIMITED = (machine_share, scenario_meter, scenario_rest, scenario_speed)
TIMING = Timing(least_s=10, quiet_s=5, most_s=30)


def acting(
    *,
    moves: int,
    share: float = 1.0,
    speed: float = 1.0,
    made: float | None = None,
    rounds_per_s: float | None = None,
    rests: bool = True,
    longest_s: float = 0.0,
) -> Acting:
    """Return a manager that moves pages at the first so many looks, one a second, and has its time.

    Guests could make ``speed`` of their touches before it acted, and make ``made`` of them under it; it looks
    at them ``rounds_per_s`` times a second.
    """
    seen = Acting(TIMING, (0, 0), FEW, rests=rests, longest_s=longest_s, speed=speed)
    for second in range(1, 1000):
        if seen.is_over:
            break
        work_s = None if made is None else made * second
        rounds = None if rounds_per_s is None else int(rounds_per_s * second)
        progress = (1000 * min(second, moves) + second, 0)
        seen.look(1.0, share, progress, work_s=work_s, rounds=rounds)
    return seen


@pytest.mark.parametrize(("moves", "ends_s"), [(0, 10), (3, 10), (8, 13), (24, 29), (40, 45), (100, 60)])
def test_it_ends_at_rest_but_not_before_the_least_nor_after_twice_the_most(moves: int, ends_s: int):
    assert acting(moves=moves).passed_s == ends_s


def test_one_that_never_rests_ends_with_the_most():
    assert acting(moves=100, rests=False).passed_s == 30
    assert acting(moves=100, rests=False, longest_s=45).passed_s == 45


def test_a_machine_that_is_half_others_gives_it_twice_the_time():
    assert acting(moves=0, share=0.5).passed_s == 20
    assert acting(moves=100, share=0.5, rests=False).passed_s == 60


def test_guests_that_could_make_half_of_their_touches_give_it_twice_the_time():
    assert acting(moves=0, speed=0.5).passed_s == 20
    assert acting(moves=100, speed=0.5, rests=False).passed_s == 60


def test_on_a_slow_machine_one_that_comes_to_rest_is_waited_for():
    assert acting(moves=100, share=0.5).passed_s == 110
    assert acting(moves=100, share=0.75).passed_s == 80


def test_one_that_never_rests_gets_as_long_as_those_before_it():
    assert acting(moves=200, share=0.5, rests=False, longest_s=109).passed_s == 109
    assert acting(moves=3, share=0.5, rests=False, longest_s=109).passed_s == 109
    assert acting(moves=3, share=0.5, rests=False, longest_s=15).passed_s == 20


def test_what_others_use_and_what_guests_lack_is_not_counted_twice():
    assert acting(moves=0, share=0.5, speed=0.5).passed_s == 20
    assert acting(moves=0, share=0.5, speed=0.4).passed_s == 25


@pytest.mark.parametrize(("moves", "rounds_per_s", "ends_s"), [(0, 2.0, 10), (0, 0.25, 16), (8, 0.25, 28)])
def test_rest_takes_some_rounds_without_a_move(moves: int, rounds_per_s: float, ends_s: int):
    # Third row: the last move is seen in the third round, which ends at 12 s; four more end at 28 s.
    assert acting(moves=moves, rounds_per_s=rounds_per_s).passed_s == ends_s


def test_one_too_slow_for_a_few_rounds_is_not_judged():
    with pytest.raises(TooSlowError, match="had not come to rest after 180 s"):
        acting(moves=0, share=0.25, rounds_per_s=0.01).notes("vmplace")


def test_a_machine_that_is_all_others_does_not_keep_it_for_ever():
    assert acting(moves=100, share=0.01).passed_s == 180


def test_copies_count_as_moves():
    seen = Acting(TIMING, (7, 5000), FEW)
    seen.look(6.0, 1.0, (7, 4096))
    assert not seen.is_at_rest and seen.moved_until_s == 6.0


def test_a_few_pages_now_and_then_are_rest():
    seen = Acting(TIMING, (0, 0), FEW)
    for second in range(1, 11):
        seen.look(1.0, 1.0, (10 * second, 0))
    assert seen.is_at_rest


def test_one_that_never_rests_is_reported_on_a_free_machine_and_not_judged_on_a_busy_one():
    assert acting(moves=3).notes("vmplace") == ()
    assert "not come to rest" in acting(moves=100).notes("vmplace")[0]
    with pytest.raises(TooSlowError, match="were 36 s of a machine"):
        acting(moves=1000, share=0.2).notes("vmplace")


def test_guests_that_it_slows_down_itself_neither_buy_it_time_nor_hide_it():
    harmful = acting(moves=1000, made=0.6)
    assert harmful.passed_s == AWAITED * TIMING.most_s
    rest, guests = harmful.notes("vmplace")
    assert "not come to rest" in rest and "made 60% of its touches" in guests


def test_guests_that_lacked_time_before_it_acted_are_the_machines_doing():
    with pytest.raises(TooSlowError, match="had not come to rest"):
        acting(moves=1000, speed=0.6, made=0.6).notes("vmplace")


def test_slow_guests_are_noted_of_one_that_never_rests_too():
    assert acting(moves=1000, rests=False, made=0.79).notes("kernel")
    assert acting(moves=1000, rests=False, made=0.8).notes("kernel") == ()
    assert acting(moves=1000, rests=False, made=0.5, share=0.5).notes("kernel") == ()


def test_each_limit_of_the_verdict_is_the_one_that_is_written_down():
    note = Path(__file__).parents[3] / "docs/design/demo-claims.md"
    rows = re.findall(r"^\| `(\w+)\.(\w+)` \| ([\d.]+) \|", note.read_text(), re.MULTILINE)
    modules = {one.__name__.split(".")[1]: one for one in LIMITED}
    assert {(module, name): float(value) for module, name, value in rows} == {
        (module, name): float(getattr(modules[module], name)) for module, name, _ in rows
    }
    assert set(modules) == {module for module, _, _ in rows}
    assert ("scenario_rest", "LONGEST") in {row[:2] for row in rows}
