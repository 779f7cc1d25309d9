"""Rows are given back as they were put in, and cost what their bytes differ."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmplace import native
from vmplace.sampling.block_rows import (
    BIT_ROW,
    BYTE_ROW,
    BlockRows,
    bits_set,
    rows_of_bits,
    rows_of_pages,
    used_and_uneven,
)
from vmplace.topology.guest import Movability, RamRange

KINDS = st.lists(st.sampled_from(("zeros", "ones", "last byte", "first byte", "random")), max_size=60)

SIX_KINDS = st.lists(
    st.sampled_from(("zeros", "ones", "last byte", "first byte", "random")), min_size=6, max_size=6
)


def rows_of(kinds: list[str], width: int) -> np.ndarray:
    rows = np.zeros((len(kinds), width), np.uint8)
    for row, kind in zip(rows, kinds, strict=True):
        row[:] = {"ones": 255, "zeros": 0}.get(kind, 7)
        row[-1] += kind == "last byte"
        row[0] += kind == "first byte"
        if kind == "random":
            row[:] = np.random.default_rng(len(kinds)).integers(0, 256, width)
    return rows


@given(KINDS, st.sampled_from((BIT_ROW, BYTE_ROW)), st.integers(0, 1 << 30))
def test_rows_are_what_was_put_in(kinds: list[str], width: int, seed: int) -> None:
    rows = rows_of(kinds, width)
    kept = BlockRows.of(rows)
    which = np.random.default_rng(seed).integers(0, max(len(rows), 1), 20 if kinds else 0)
    assert (kept.some(which) == rows[which]).all()
    assert kept.is_used.tolist() == rows.any(axis=1).tolist()
    assert len(kept.detail) == sum(kind not in ("zeros", "ones") for kind in kinds)


@given(st.lists(SIX_KINDS, min_size=1, max_size=4))
def test_rows_of_several_windows_are_used_or_uneven_in_any_of_them(windows: list[list[str]]) -> None:
    # Rows that nobody used are passed over eight at a time.
    each = np.stack([rows_of(["zeros"] * 9 + kinds + ["zeros"] * 12, BIT_ROW) for kinds in windows])
    used, uneven = used_and_uneven([BlockRows.of(rows) for rows in each])
    assert used.tolist() == each.any(axis=(0, 2)).tolist()
    assert uneven.tolist() == (each.any(axis=2) & (each != 255).any(axis=2)).any(axis=0).tolist()


@given(KINDS, st.integers(1, 9))
def test_rows_that_come_in_parts_are_kept_alike_and_those_left_out_are_zeros(
    kinds: list[str], size: int
) -> None:
    rows = rows_of(kinds, BIT_ROW)
    there = np.flatnonzero(np.arange(len(rows)) % 3)
    parts = ((there[at : at + size], rows[there[at : at + size]]) for at in range(0, len(there), size))
    kept = BlockRows.built(len(rows), BIT_ROW, parts)
    wanted = np.where((np.arange(len(rows)) % 3 > 0)[:, None], rows, 0)
    assert (kept.some(np.arange(len(rows))) == wanted).all()


@pytest.mark.parametrize("offset", [0, 64, 37, 511])
@pytest.mark.parametrize("npages", [1, 100, 512, 1500])
def test_pages_are_in_the_row_of_their_block(offset: int, npages: int) -> None:
    ram = RamRange((1 << 40) + offset * 4096, npages, None, 4096, Movability.MOVABLE, "")
    chance = np.random.default_rng(npages)
    touched = chance.integers(0, 2, (3, npages)).astype(np.uint8)
    padded = np.zeros((3, -(-npages // 64) * 64), np.uint8)
    padded[:, :npages] = touched
    bits = rows_of_bits(np.packbits(padded, axis=1, bitorder="little").view(np.uint64), ram)
    planes = np.unpackbits(bits, bitorder="little").reshape(3, -1)
    assert (planes[:, offset : offset + npages] == touched).all() and planes.sum() == touched.sum()
    places = rows_of_pages(touched[0].view(np.int8), ram, -1).reshape(-1)
    assert (places[offset : offset + npages] == touched[0]).all()
    assert (places == 255).sum() == len(places) - npages


@given(st.lists(SIX_KINDS, max_size=4), st.integers(1, BIT_ROW), st.integers(0, 1 << 30))
def test_bits_of_rows_are_added_up_by_the_bytes_that_are_looked_at(
    several: list[list[str]], step: int, seed: int
) -> None:
    each = [rows_of(kinds, BIT_ROW) for kinds in several]
    which = np.random.default_rng(seed).integers(0, 6, 20)
    wanted = np.zeros(20, np.int64) + sum(
        np.unpackbits(r[which][:, ::step], axis=1).sum(axis=1) for r in each
    )
    assert bits_set([BlockRows.of(rows) for rows in each], which, step).tolist() == wanted.tolist()


@given(KINDS, st.integers(0, 1 << 30))
def test_some_rows_are_used_or_mixed(kinds: list[str], seed: int) -> None:
    rows = rows_of(kinds, BIT_ROW)
    kept = BlockRows.of(rows)
    which = np.random.default_rng(seed).integers(0, max(len(rows), 1), 20 if kinds else 0)
    assert kept.is_any_mixed(which) == bool((rows[which] != rows[which][:, :1]).any())
    assert kept.used(which).tolist() == rows[which].any(axis=1).tolist()
    assert kept.any_used(which) == rows[which].any()


@given(st.lists(SIX_KINDS, max_size=8), st.sampled_from((-1, 0, 1)))
def test_marks_have_a_bit_for_each_window_of_a_page_or_block(windows: list[list[str]], plane: int) -> None:
    # Two planes of three blocks, of which the last is asked for page by page, and the first as a whole.
    all_rows = [rows_of(kinds, BIT_ROW) for kinds in windows]
    marks = np.empty(BYTE_ROW + 1, np.uint8)
    parts = tuple(BlockRows.of(rows).parts for rows in all_rows)
    found = native.windows_marks(parts, 3, plane, np.array([2], np.uint64), np.array([0], np.uint64), marks)
    wanted = np.zeros(BYTE_ROW + 1, np.uint8)
    for number, rows in enumerate(all_rows):
        planes = rows.reshape(2, 3, BIT_ROW)
        seen = planes[0] | planes[1] if plane < 0 else planes[plane]
        wanted[:BYTE_ROW] += np.unpackbits(seen[2], bitorder="little") << number
        wanted[BYTE_ROW] += seen[0].any() << number
    assert marks.tolist() == wanted.tolist() and found == wanted.any()


def test_rows_that_are_not_there_are_refused() -> None:
    kept = BlockRows.of(rows_of(["ones", "random"], BIT_ROW))
    for which in (np.array([2]), np.array([-1])):
        with pytest.raises(IndexError):
            kept.some(which)
    marks = np.empty(BYTE_ROW, np.uint8)
    with pytest.raises(IndexError):
        native.windows_marks((kept.parts,), 2, 0, np.array([2], np.uint64), np.zeros(0, np.uint64), marks)
    with pytest.raises(ValueError, match="planes of all blocks"):
        native.windows_marks((kept.parts,), 2, 1, np.array([0], np.uint64), np.zeros(0, np.uint64), marks)
    with pytest.raises(ValueError, match="at most 8"):
        native.windows_marks((kept.parts,) * 9, 2, 0, np.array([0], np.uint64), np.zeros(0, np.uint64), marks)


def test_rows_whose_count_of_others_is_wrong_are_refused() -> None:
    value, mixed, before, detail, width = BlockRows.of(rows_of(["random"] * 9, BIT_ROW)).parts
    with pytest.raises(IndexError):
        native.rows_some(
            (value, mixed, before + 9, detail, width), np.array([0], np.uint64), np.empty(BIT_ROW, np.uint8)
        )
