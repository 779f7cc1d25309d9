"""How often does each node touch each page, if a source reads bits several times a window?

1. A page's answer is the first reading of the window that showed its bit, for each node.
2. What an answer is worth in touches is learnt (touch_rates.py): over all ranges of the guest, by themselves
   among pages that were about as hot before.
3. The pace fades from window to window: it is a mean that remembers as long as the history of bits does.
4. A window that was read once tells no pace, and changes none.

A byte per page and node: the logarithm of touches a second, ``PER_OCTAVE`` steps to a factor of two.  So what
becomes of a pace depends on the byte and the answer alone, and is looked up in a small table.
Limits: those of touch_rates.py.  A huge page is touched as a whole: what was seen of it counts for each of
its pages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.model.touch_rates import KINDS, kinds, touches_by_answer
from vmplace.sampling.sample import Bits, Bytes, NodeBits

Floats = npt.NDArray[np.float64]
PER_OCTAVE, SLOWEST = 8, 2.0**-14
CODES = 256
CHUNK_PAGES = 1 << 20
A_SECOND_NS = 1e9


@dataclass(frozen=True)
class Pace:
    """How often nodes touch the pages of a range: ``codes`` by [node, page]; ``go_on`` changes them."""

    codes: Bytes

    def per_second(self, node: int) -> npt.NDArray[np.float32]:
        """Return the touches a second of each page by this node."""
        touches: npt.NDArray[np.float32] = PER_SECOND.astype(np.float32)[self.codes[node]]
        return touches


@dataclass(frozen=True)
class _Piece:
    """Some pages of one node: their codes, a view, and what each reading or one before it showed of them."""

    codes: Bytes
    shown: Bits


def begun_pace(npages: int, nodes: int) -> Pace:
    """Return the pace of pages that nobody was seen to touch."""
    return Pace(np.zeros((nodes, npages), np.uint8))


def go_on(known: Sequence[tuple[Pace, NodeBits]], window_ns: int, *, remembered: int) -> None:
    """Take a window of one guest in: its ranges' paces, in place, and what was seen of them.

    All bits were read at the same times, several times.  The pace is then as old, on average, as what was
    seen in the last ``remembered`` windows.
    """
    if not known:
        return
    times = np.array([*(one.after_ns for one in known[0][1].early), window_ns]) / A_SECOND_NS
    table = _table(_answers(known, len(times)), times, 2 / (remembered + 1))
    for pace, bits in known:
        for piece in _pieces(pace, bits):
            native.pace_step(piece.codes, piece.shown, table)


def _answers(known: Sequence[tuple[Pace, NodeBits]], readings: int) -> npt.NDArray[np.uint64]:
    """Return how many pages have each code and answer."""
    counts = np.zeros((CODES, readings + 1), np.uint64)
    for pace, bits in known:
        for piece in _pieces(pace, bits):
            native.pace_count(piece.codes, piece.shown, counts)
    return counts


def _table(counts: npt.NDArray[np.uint64], times: Floats, newest: float) -> Bytes:
    """Return the new code for each code and answer, if the window weighs ``newest``."""
    now = _learnt(counts, times) / times[-1]
    return _code((1 - newest) * PER_SECOND[:, None] + newest * now)


def _learnt(counts: npt.NDArray[np.uint64], times: Floats) -> Floats:
    """Return the touches to be expected, by code and answer."""
    there = counts.any(axis=1)
    kind_of_code = np.zeros(CODES, np.intp)
    kind_of_code[there] = kinds(PER_SECOND[there])
    by_kind = np.zeros((KINDS + 1, counts.shape[1]), np.uint64)
    np.add.at(by_kind, kind_of_code, counts)
    asked = by_kind[:, :-1].any(axis=1)
    touches = np.zeros(by_kind.shape)
    if asked.any():
        touches[asked] = touches_by_answer(by_kind[asked], times)
    return touches[kind_of_code]


def _pieces(pace: Pace, bits: NodeBits) -> Iterator[_Piece]:
    """Yield the pages in chunks, without chunks that have neither a touch nor a pace.

    A bit that was seen counts as seen, even if the kernel has taken it away since.
    """
    nodes, npages = pace.codes.shape
    for node in range(nodes):
        for start in range(0, npages, CHUNK_PAGES):
            codes = pace.codes[node, start : start + CHUNK_PAGES]
            words = slice(start // 64, -(-(start + len(codes)) // 64))
            rows = [one.accessed[node, words] for one in bits.early]
            shown = np.bitwise_or.accumulate([*rows, bits.accessed[node, words]], axis=0)
            if shown[-1].any() or codes.any():
                yield _Piece(codes, shown)


def _code(per_second: Floats) -> Bytes:
    """Return the bytes for so many touches a second: 0 is none, or too few to tell."""
    with np.errstate(divide="ignore"):
        steps = np.rint(PER_OCTAVE * np.log2(per_second / SLOWEST)) + 1
    code: Bytes = np.clip(steps, 0, CODES - 1).astype(np.uint8)
    return code


PER_SECOND = np.append(0.0, SLOWEST * 2.0 ** (np.arange(CODES - 1) / PER_OCTAVE))
"""Touches a second by code."""
