"""Sets of guest frames: a bit for each, so that what is known of 16 GiB takes 512 KiB and less than a ms."""

from collections.abc import Iterator, Mapping
from functools import reduce
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Gfns = npt.NDArray[np.uint64]
NONE: Gfns = np.zeros(0, np.uint64)
Bits = npt.NDArray[np.uint64]
SHIFT = 18
SPAN = 1 << SHIFT
"""Frames of a piece: a GiB, of which a set holds the bits if it has any of its frames."""
WORDS = SPAN // 64
FULL: Bits = np.full(WORDS, ~np.uint64(0))
STEP = 512
"""Words of which frames are listed at once."""
_COUNTS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


class FrameSet:
    """Some guest frames.  It is never changed: sets share the pieces that they have in common."""

    def __init__(self, pieces: Mapping[int, Bits] | None = None) -> None:
        """``pieces``: the bits by number, of those that have any."""
        self._pieces = pieces or {}

    @classmethod
    def of(cls, gfns: Gfns) -> "FrameSet":
        """Return the set of these frames."""
        gfns = np.sort(gfns, kind="stable")
        numbers = (gfns >> np.uint64(SHIFT)).astype(np.int64)
        starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        pieces = {}
        for start, end in pairwise([*starts, len(gfns)]):
            flags = np.zeros(SPAN, np.bool_)
            flags[gfns[start:end] & np.uint64(SPAN - 1)] = True
            pieces[int(numbers[start])] = _packed(flags)
        return cls(pieces)

    @classmethod
    def of_runs(cls, first: Gfns, end: Gfns) -> "FrameSet":
        """Return the set of all frames of these runs, by first frame and by the one after the last."""
        first, end = _apart(first, end)
        return cls({number: _run_bits(number, first, end) for number in _numbers(first, end)})

    def __len__(self) -> int:
        return sum(_count(bits) for bits in self._pieces.values())

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __or__(self, other: "FrameSet") -> "FrameSet":
        pieces = {**self._pieces, **other._pieces}
        for number in self._pieces.keys() & other._pieces.keys():
            mine, others = self._pieces[number], other._pieces[number]
            pieces[number] = mine if mine is others else mine | others
        return FrameSet(pieces)

    def __and__(self, other: "FrameSet") -> "FrameSet":
        pieces = {}
        for number in self._pieces.keys() & other._pieces.keys():
            mine, others = self._pieces[number], other._pieces[number]
            pieces[number] = mine if mine is others or others is FULL else mine & others
        return FrameSet(_not_empty(pieces))

    def __sub__(self, other: "FrameSet") -> "FrameSet":
        pieces = dict(self._pieces)
        for number in self._pieces.keys() & other._pieces.keys():
            pieces[number] = left = self._pieces[number] & ~other._pieces[number]
            if not left.any():
                del pieces[number]
        return FrameSet(pieces)

    def has(self, gfns: Gfns) -> npt.NDArray[np.bool_]:
        """Tell of each frame whether it is in the set."""
        numbers, found = gfns >> np.uint64(SHIFT), np.zeros(len(gfns), np.bool_)
        for number in dict.fromkeys(numbers.tolist()):
            if (bits := self._pieces.get(number)) is None:
                continue
            mine = np.flatnonzero(numbers == np.uint64(number))
            offset = gfns[mine] & np.uint64(SPAN - 1)
            word = bits[(offset >> np.uint64(6)).astype(np.intp)]
            found[mine] = (word >> (offset & np.uint64(63))) & np.uint64(1)
        return found

    def frames(self) -> Gfns:
        """Return all of them, ascending."""
        return np.concatenate([NONE, *self._listed(0)])

    def in_turn(self, first: int, most: int) -> Gfns:
        """Return up to ``most`` of them: from ``first`` on, and then those before it."""
        found = _up_to(self._listed(first), most)
        if len(found) == most or not first:
            return found
        before = _up_to(self._listed(0), most - len(found))
        return np.concatenate((found, before[before < np.uint64(first)]))

    def _listed(self, first: int) -> Iterator[Gfns]:
        """Yield the frames from ``first`` on, ascending, some at a time."""
        for number in sorted(self._pieces):
            base = number << SHIFT
            begin = max(first - base, 0)
            if begin >= SPAN:
                continue
            words = self._pieces[number][begin >> 6 :].copy()
            words[0] &= ~np.uint64((1 << (begin & 63)) - 1)
            used = np.flatnonzero(words)
            for at in range(0, len(used), STEP):
                some = used[at : at + STEP]
                flags = np.unpackbits(words[some].view(np.uint8), bitorder="little")
                bit = np.flatnonzero(flags)
                frame = ((some[bit >> 6] + (begin >> 6)) << 6) + (bit & 63)
                yield (frame + base).astype(np.uint64)


def united(*sets: FrameSet) -> FrameSet:
    """Return the frames of all these sets."""
    return reduce(FrameSet.__or__, sets, FrameSet())


def _up_to(parts: Iterator[Gfns], most: int) -> Gfns:
    """Return the first ``most`` of some lists."""
    found, count = [NONE], 0
    while count < most and (part := next(parts, None)) is not None:
        found.append(part[: most - count])
        count += len(found[-1])
    return np.concatenate(found)


def _apart(first: Gfns, end: Gfns) -> tuple[Gfns, Gfns]:
    """Return the same frames in ascending runs that do not touch each other."""
    if not (end > first).all():
        first, end = first[end > first], end[end > first]
    if not (first[1:] >= first[:-1]).all():
        order = np.argsort(first, kind="stable")
        first, end = first[order], end[order]
    end = np.maximum.accumulate(end)
    begins = np.append(True, first[1:] > end[:-1])[: len(first)]
    return first[begins], end[np.append(begins[1:], True)[: len(end)]]


def _numbers(first: Gfns, end: Gfns) -> list[int]:
    """Return the numbers of the pieces that these runs lie in; the runs ascend."""
    found, number, run = [], -1, 0
    while run < len(first):
        number = max(int(first[run]) >> SHIFT, number + 1)
        found.append(number)
        # The first that ends behind this piece.
        run = int(np.searchsorted(end, np.uint64((number + 1) << SHIFT), "right"))
    return found


def _run_bits(number: int, first: Gfns, end: Gfns) -> Bits:
    """Return the bits of one piece; the runs ascend, and do not touch each other."""
    base, stop = number << SHIFT, (number + 1) << SHIFT
    mine = slice(
        int(np.searchsorted(end, np.uint64(base), "right")), int(np.searchsorted(first, np.uint64(stop)))
    )
    begin = np.maximum(first[mine], np.uint64(base)) - np.uint64(base)
    after = np.minimum(end[mine], np.uint64(stop)) - np.uint64(base)
    if begin[0] == 0 and after[0] == SPAN:
        return FULL
    steps = np.zeros(SPAN + 1, np.int8)
    steps[begin], steps[after] = 1, -1
    return _packed(np.cumsum(steps[:-1], dtype=np.int8).view(np.bool_))


def _packed(flags: npt.NDArray[np.bool_]) -> Bits:
    return np.packbits(flags, bitorder="little").view(np.uint64)


def _count(bits: Bits) -> int:
    return SPAN if bits is FULL else int(_COUNTS[bits.view(np.uint8)].sum(dtype=np.int64))


def _not_empty(pieces: Mapping[int, Bits]) -> dict[int, Bits]:
    return {number: bits for number, bits in pieces.items() if bits.any()}
