"""How often does each node touch each page, if a source reads bits several times a window?

1. A page's answer is the first reading of the window that showed its bit, for each node.
2. What an answer is worth in touches is learnt (touch_rates.py): over all ranges of the guest, by themselves
   among pages that were about as hot before.
3. The rate fades from window to window: it is a mean that remembers as long as the history of bits does.
4. A window that was read once tells no rate, and changes none.

A byte for each node and page that it touches: the logarithm of touches a second, ``PER_OCTAVE`` steps to a
factor of two.  So what becomes of a rate depends on the byte and the answer alone, and comes from a table.
Limits: those of touch_rates.py.  A huge page is touched as a whole: what was seen of it counts for each of
its pages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.model.touch_rates import KINDS, kinds, touches_by_answer
from vmplace.sampling.block_rows import BYTE_ROW, BlockRows, chunks, rows_of_bits
from vmplace.sampling.page_arrays import Bits, Bytes, Indexes
from vmplace.sampling.page_frames import block_count
from vmplace.sampling.sample import NodeBits
from vmplace.topology.guest import RamRange

Floats = npt.NDArray[np.float64]
PER_OCTAVE, SLOWEST = 8, 2.0**-14
CODES = 256
CHUNK_ROWS = 1 << 11
A_SECOND_NS = 1e9


@dataclass(frozen=True)
class ObservedRange:
    """A range: the codes of its pages by node, a plane each, and what was seen of them in one window."""

    ram: RamRange
    codes: BlockRows
    seen: NodeBits


@dataclass(frozen=True)
class _Piece:
    """Some rows: which ones, the codes of their pages, and what each reading or one before it showed."""

    rows: Indexes
    codes: Bytes
    shown: Bits


def begun_touch_rates(ram: RamRange, nodes: int) -> BlockRows:
    """Return the codes of pages that nobody was seen to touch."""
    return BlockRows.built(nodes * block_count(ram), BYTE_ROW, ())


def gone_on(ranges: Sequence[ObservedRange], window_ns: int, *, remembered: int) -> list[BlockRows]:
    """Return the codes after a window of one guest, of each of its ranges.

    All bits were read at the same times, several times.  The rate is then as old, on average, as what was
    seen in the last ``remembered`` windows.
    """
    if not ranges:
        return []
    times = np.array([*(one.after_ns for one in ranges[0].seen.early), window_ns]) / A_SECOND_NS
    table = _table(_answers(ranges, len(times)), times, 2 / (remembered + 1))
    return [_stepped(one, table) for one in ranges]


def _answers(ranges: Sequence[ObservedRange], readings: int) -> npt.NDArray[np.uint64]:
    """Return how many pages have each code and answer."""
    counts = np.zeros((CODES, readings + 1), np.uint64)
    for one in ranges:
        for piece in _pieces(one):
            native.touch_rate_count(piece.codes, piece.shown, counts)
    return counts


def _stepped(one: ObservedRange, table: Bytes) -> BlockRows:
    def parts() -> Iterator[tuple[Indexes, Bytes]]:
        for piece in _pieces(one):
            native.touch_rate_step(piece.codes, piece.shown, table)
            yield piece.rows, piece.codes.reshape(-1, BYTE_ROW)

    return BlockRows.built(len(one.codes.value), BYTE_ROW, parts())


def _table(counts: npt.NDArray[np.uint64], times: Floats, newest: float) -> Bytes:
    """Return the new code for each code and answer, if the window weighs ``newest``."""
    now = _learnt(counts, times) / times[-1]
    return codes_of((1 - newest) * PER_SECOND[:, None] + newest * now)


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


def _pieces(one: ObservedRange) -> Iterator[_Piece]:
    """Yield the rows that have a touch or a rate, some at a time.

    A bit that was seen counts as seen, even if the kernel has taken it away since.
    """
    count = len(one.codes.value)
    readings = [rows_of_bits(bits, one.ram)[:count] for bits in _readings(one.seen)]
    used = np.flatnonzero(one.codes.is_used | np.any([rows.any(axis=1) for rows in readings], axis=0))
    for rows in chunks(used, CHUNK_ROWS):
        bits = [reading[rows].view(np.uint64).reshape(-1) for reading in readings]
        yield _Piece(rows, one.codes.some(rows).reshape(-1), np.bitwise_or.accumulate(bits, axis=0))


def _readings(seen: NodeBits) -> list[Bits]:
    return [*(one.accessed for one in seen.early), seen.accessed]


def codes_of(per_second: Floats) -> Bytes:
    """Return the bytes for so many touches a second: 0 is none, or too few to tell."""
    with np.errstate(divide="ignore"):
        steps = np.rint(PER_OCTAVE * np.log2(per_second / SLOWEST)) + 1
    code: Bytes = np.clip(steps, 0, CODES - 1).astype(np.uint8)
    return code


PER_SECOND = np.append(0.0, SLOWEST * 2.0 ** (np.arange(CODES - 1) / PER_OCTAVE))
"""Touches a second by code."""
