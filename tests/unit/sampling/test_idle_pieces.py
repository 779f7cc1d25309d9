"""Source idle spends little on a guest whose pages take the kernel long; costs and clocks are declared."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.unit.agent.agent_world import guest
from vmplace.sampling import idle_pieces
from vmplace.sampling.idle_pieces import FACTOR, LEAST_S, LONGEST_BACKOFF_S, PIECE, DearGuestError, IdlePieces

USUAL_NS = 1000.0
HONEST = replace(guest("honest"), pid=os.getpid())
EVIL = replace(guest("evil"), pid=os.getpid(), start_time=2)


class World:
    """Frames below ``dear_from`` take USUAL_NS each, the others ``dear_ns``."""

    def __init__(self, bitmap: int) -> None:
        self.now_s, self.cpu_ns, self.calls, self.longest = 1e6, 0, 0, 0
        self.dear_from, self.dear_ns = 1 << 30, 0.0
        self.pieces = IdlePieces(bitmap, USUAL_NS, lambda: self.now_s, lambda: self.cpu_ns)

    def call(self, _fd: int, pfns: "np.ndarray[tuple[int], np.dtype[np.uint64]]", *_: object) -> None:
        dear = int(np.count_nonzero(pfns >= self.dear_from))
        self.cpu_ns += int(dear * self.dear_ns + (len(pfns) - dear) * USUAL_NS)
        self.calls, self.longest = self.calls + 1, max(self.longest, len(pfns))

    def window(self, first: int, npages: int) -> None:
        self.pieces.begin(EVIL)
        pfns = np.arange(first, first + npages, dtype=np.uint64)
        self.pieces.mark(EVIL, pfns)
        self.pieces.collect(EVIL, pfns, np.zeros(npages, np.uint8))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    (tmp_path / "bitmap").touch()
    fd = os.open(tmp_path / "bitmap", os.O_RDWR)
    made = World(fd)
    monkeypatch.setattr(idle_pieces, "native", SimpleNamespace(idle_mark=made.call, idle_collect=made.call))
    yield made
    os.close(fd)


def test_an_honest_guest_is_read_whole_however_large(world: World):
    for _ in range(3):
        world.window(0, 1 << 20)
    assert world.calls == 3 * 2 * (1 << 20) // PIECE and world.longest == PIECE


def test_no_word_of_the_bitmap_is_asked_for_twice(world: World, monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    mark = SimpleNamespace(idle_mark=lambda _fd, pfns: asked.extend(set((pfns // 64).tolist())))
    monkeypatch.setattr(idle_pieces, "native", mark)
    world.pieces.begin(EVIL)
    world.pieces.mark(EVIL, np.arange(31, 31 + 10 * PIECE, dtype=np.uint64))
    world.pieces.mark(EVIL, np.arange(1 << 20, (1 << 20) + PIECE + 1, dtype=np.uint64))
    assert len(asked) == len(set(asked)) == 46
    # Those that are absent have no frame.
    world.pieces.mark(EVIL, np.zeros(10 * PIECE, np.uint64))


def test_a_guest_whose_pages_are_dear_takes_little_more_than_the_least(world: World):
    """650,000 mappings of each page take 20 to 60 ms (docs/design/hostile-guests.md)."""
    world.dear_from, world.dear_ns = 0, 50e6
    with pytest.raises(DearGuestError, match="mapped too often"):
        world.window(0, 1 << 20)
    assert world.calls == 1 and world.cpu_ns <= LEAST_S * 1e9 + PIECE * 50e6


def test_pages_that_are_dear_behind_cheap_ones_take_little_more(world: World):
    world.dear_from, world.dear_ns = 1 << 19, 50e6
    with pytest.raises(DearGuestError):
        world.window(0, 1 << 20)
    assert world.cpu_ns <= max(LEAST_S * 1e9, FACTOR * USUAL_NS * (1 << 19)) + PIECE * 50e6


def test_a_guest_that_is_dear_is_left_alone_longer_each_time_and_costs_little_in_the_long_run(world: World):
    world.dear_from, world.dear_ns = 0, 10e6
    rests: list[float] = []
    while len(rests) < 14:
        with pytest.raises(DearGuestError):
            world.window(0, 1 << 20)
        began_s, calls = world.now_s, world.calls
        while True:
            try:
                world.pieces.begin(EVIL)
            except DearGuestError:
                world.now_s += 1.0
            else:
                break
        assert world.calls == calls
        rests.append(world.now_s - began_s)
    assert rests == sorted(rests) and rests[:3] == [4.0, 8.0, 16.0] and rests[-1] == LONGEST_BACKOFF_S
    assert world.cpu_ns / 1e9 < 0.01 * sum(rests)


def test_a_guest_that_was_read_for_hours_since_is_left_alone_shortly_again(world: World):
    def rest_s() -> float:
        world.dear_from, world.dear_ns = 0, 50e6
        with pytest.raises(DearGuestError):
            world.window(0, PIECE)
        began_s = world.now_s
        world.dear_from = 1 << 30
        while True:
            try:
                world.window(0, PIECE)
            except DearGuestError:
                world.now_s += 1.0
            else:
                return world.now_s - began_s

    assert [rest_s() for _ in range(4)] == [4.0, 8.0, 16.0, 32.0]
    world.now_s += 3 * LONGEST_BACKOFF_S
    assert rest_s() == 8.0


def test_others_are_read_while_a_guest_is_left_alone(world: World):
    world.dear_from, world.dear_ns = 0, 50e6
    with pytest.raises(DearGuestError):
        world.window(0, PIECE)
    world.dear_from = 1 << 30
    world.pieces.begin(HONEST)
    answers = np.zeros(PIECE, np.uint8)
    world.pieces.collect(HONEST, np.arange(PIECE, dtype=np.uint64), answers)
    with pytest.raises(DearGuestError):
        world.pieces.begin(EVIL)


def test_frames_that_lie_alone_in_their_words_may_take_as_long_as_all_of_the_word(world: World):
    """The kernel walks for the other frames of the word as well."""
    world.dear_from, world.dear_ns = 0, 60 * USUAL_NS
    world.pieces.begin(EVIL)
    world.pieces.mark(EVIL, np.arange(0, 64 << 20, 64, dtype=np.uint64)[: 1 << 16])
    world.pieces.begin(EVIL)
    with pytest.raises(DearGuestError):
        world.pieces.mark(EVIL, np.arange(1 << 19, dtype=np.uint64))
