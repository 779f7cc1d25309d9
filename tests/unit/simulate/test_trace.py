from pathlib import Path

import numpy as np
import pytest

from tests.unit.simulate.small_trace import arrays_of, private_pages
from vmplace.simulate.trace import TraceError, parse_trace, read_trace


def test_a_trace_is_read_back_window_by_window(tmp_path: Path):
    arrays = arrays_of([(0, 1, 0, 5, 1), (2, 0, 1, 7, 0)], pages=2, threads=2, windows=3)
    np.savez(tmp_path / "small.npz", **arrays)
    trace = read_trace(tmp_path / "small.npz")
    assert (trace.name, trace.npages, trace.windows, trace.workers) == ("small", 2, 3, 2)
    assert [trace.dram[trace.records(w)].tolist() for w in range(3)] == [[6], [], [7]]


def test_records_may_come_in_any_order():
    arrays = arrays_of([(0, 0, 0, 1, 0), (1, 0, 0, 2, 0), (2, 0, 0, 3, 0)], pages=1, threads=1, windows=3)
    for name in ("epoch", "page_idx", "thread", "loads", "stores", "llc_misses"):
        arrays[name] = arrays[name][::-1]
    trace = parse_trace(arrays, name="reversed")
    assert [trace.loads[trace.records(w)].tolist() for w in range(3)] == [[1], [2], [3]]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("thread", 9, "thread holds 9, but must stay below 4"),
        ("page_idx", 400, "page_idx holds 400, but must stay below 400"),
        ("epoch", 6, "epoch holds 6"),
        ("llc_misses", 9999, "llc_misses counts more"),
    ],
)
def test_a_number_that_cannot_be_is_named(name: str, value: int, message: str):
    arrays = private_pages()
    arrays[name] = arrays[name].copy()
    arrays[name][-1] = value
    with pytest.raises(TraceError, match=message):
        parse_trace(arrays, name="bad")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loads": None}, "lacks the arrays loads"),
        ({"loads": np.zeros(3, np.uint32)}, "differ in shape"),
        ({"vpn": np.zeros(400)}, "not integers"),
        ({"meta": np.array("{")}, "meta is not JSON"),
        ({"meta": np.array('{"workers": "2-9"}')}, "workers is '2-9'"),
        ({"stores": np.full(2400, -1)}, "negative"),
        ({"first_touch_epoch": np.full(400, 3)}, "window 0, before its first touch"),
        ({"free_epoch": np.full(400, 4)}, "window 5, after it was unmapped"),
        ({"vpn": np.arange(400) % 399}, "page 0 is not unmapped before another page has its address"),
    ],
)
def test_an_array_that_cannot_be_is_named(changes: dict[str, np.ndarray | None], message: str):
    arrays = {name: array for name, array in {**private_pages(), **changes}.items() if array is not None}
    with pytest.raises(TraceError, match=message):
        parse_trace(arrays, name="bad")


def test_other_files_and_cut_ones_are_refused(tmp_path: Path):
    np.savez(tmp_path / "whole.npz", **private_pages())
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "text.npz").write_text("not a trace")
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    np.save(tmp_path / "array.npy", np.zeros(3))
    for name in ("text.npz", "cut.npz", "array.npy", "absent.npz"):
        with pytest.raises(TraceError, match=name):
            read_trace(tmp_path / name)


def test_samples_of_all_accesses_are_distributed_over_a_pages_windows():
    arrays = private_pages(windows=4, npages=8)
    arrays |= {
        "smp_page_idx": np.array([0, 5], np.uint32),
        "smp_thread": np.array([0, 1], np.uint8),
        "smp_count": np.array([40, 8], np.uint32),
    }
    trace = parse_trace(arrays, name="t")
    assert set(trace.sampled[trace.page == 0].tolist()) == {10.0}
    assert set(trace.sampled[trace.page == 5].tolist()) == {2.0}
    assert trace.sampled.sum() == 48


@pytest.mark.parametrize(("name", "value"), [("smp_page_idx", 8), ("smp_thread", 4)])
def test_samples_of_a_page_or_thread_that_is_not_there_are_refused(name: str, value: int):
    arrays = private_pages(windows=4, npages=8)
    arrays |= dict.fromkeys(("smp_page_idx", "smp_thread", "smp_count"), np.array([0]))
    with pytest.raises(TraceError, match="smp_"):
        parse_trace(arrays | {name: np.array([value])}, name="t")
