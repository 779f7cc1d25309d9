"""Which pages does a recorded program touch, window by window?  The reader of NAME.npz traces.

The format is described in docs/simulate.md.  A trace is checked as a whole when it is read: a simulator
that stops after an hour over a bad index would be no help.
"""

import json
import math
import re
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from vmplace.errors import VmplaceError
from vmplace.outside import error_text, printable

Ints = npt.NDArray[np.integer[Any]]
NEAR_PAGES = (16, 512)
"""Aligned runs of so many pages tell of each other: 64 KiB, and 2 MiB."""
NEVER = 65535
"""The free_epoch of a page that is never unmapped."""

PAGE_ARRAYS = ("vpn", "first_touch_thread", "first_touch_epoch", "first_touch_rank", "free_epoch")
RECORD_ARRAYS = ("epoch", "page_idx", "thread", "loads", "stores", "llc_misses")
TOTAL_ARRAYS = ("totals_raw_loads", "totals_raw_stores")
SAMPLE_ARRAYS = ("smp_page_idx", "smp_thread", "smp_count")
WANTED = {*PAGE_ARRAYS, *RECORD_ARRAYS, *TOTAL_ARRAYS, "meta"}
MOST_TRACE_BYTES = 8 << 30
MOST_THREADS = 1024
MOST_ACCESSES = 1 << 52
"""In all: as many a double counts one by one.  The largest trace that is known has 2.7e10."""


class TraceError(VmplaceError):
    """A trace cannot be used: not in the format, damaged, or in contradiction to itself."""

    usual_hint = "make it anew from the program; the format is in docs/simulate.md"


@dataclass(frozen=True)
class Trace:
    """One recorded program; arrays by page (P), by record (N, ascending by window) and by window and thread.

    ``raw[W, T]``: accesses before any cache.  ``window_starts[W + 1]``: the first record of each window.
    ``first_worker``, ``workers``: the thread range that does the work.  ``near``: for
    each of NEAR_PAGES, the number of the run that each page lies in.  ``frame``: the number of each page's
    address among all; pages that follow each other at one address share it.  ``sampled[N]``: of each record's
    page and thread, the samples of all accesses, hits of caches included, in the whole run, spread evenly
    over the windows of that page and thread; zeros where the trace has none.  ``unit_pages``: of 4 KiB in
    each page (trace_units.py).
    """

    name: str
    threads: int
    first_worker: int
    workers: int
    first_touch_thread: Ints
    first_touch_window: Ints
    first_touch_rank: Ints
    free_window: Ints
    page: Ints
    thread: Ints
    loads: Ints
    stores: Ints
    dram: Ints
    raw: Ints
    window_starts: Ints
    near: tuple[Ints, ...]
    frame: Ints
    sampled: npt.NDArray[np.float64]
    unit_pages: int = 1

    @property
    def npages(self) -> int:
        """Return the number of pages that were ever touched."""
        return len(self.first_touch_thread)

    @property
    def windows(self) -> int:
        """Return the number of windows."""
        return len(self.raw)

    def records(self, window: int) -> slice:
        """Return where the records of ``window`` are."""
        return slice(int(self.window_starts[window]), int(self.window_starts[window + 1]))


def read_trace(path: Path) -> Trace:
    """Read and check a trace; raises TraceError with what is wrong with it."""
    if not path.is_file():
        raise TraceError(f"{path}: no such trace", hint="name an .npz file that exists")
    try:
        arrays = read_arrays(path)
    except Exception as err:
        # zipfile, numpy and the parser of array headers raise whatever comes to them.
        why = f"not a readable .npz file ({error_text(err)})"
        raise TraceError(f"{path}: {why}", hint="record or copy it again") from err
    try:
        return parse_trace(arrays, name=path.stem)
    except TraceError as err:
        raise TraceError(f"{path}: {err}", hint=err.hint) from err


def read_arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of an .npz file that a trace may have; raises whatever its parsers do.

    As np.load, but what an array's header claims is held against the bytes that are there before memory is
    taken for it, and no other array is read.
    """
    arrays, there = {}, MOST_TRACE_BYTES
    with zipfile.ZipFile(path) as archive:
        for name in sorted(WANTED) + list(SAMPLE_ARRAYS):
            if f"{name}.npy" not in archive.namelist():
                continue
            member = archive.getinfo(f"{name}.npy")
            there -= member.file_size
            if there < 0:
                raise TraceError(f"its arrays take more than {MOST_TRACE_BYTES >> 30} GiB")
            with archive.open(member) as file:
                arrays[name] = _read_array(file, member.file_size)
    return arrays


def _read_array(file: IO[bytes], size_bytes: int) -> Any:
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, is_fortran, dtype = header[np.lib.format.read_magic(file)](file)
    wanted = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or not 0 <= wanted <= size_bytes:
        raise TraceError(f"an array of {wanted} bytes of {dtype} in {size_bytes}")
    content = np.frombuffer(file.read(wanted), dtype)
    return content.reshape(shape, order="F" if is_fortran else "C")


def parse_trace(arrays: dict[str, Any], *, name: str) -> Trace:
    """Return the trace that ``arrays`` hold; raises TraceError."""
    missing = sorted(WANTED - set(arrays))
    if missing:
        raise TraceError(f"lacks the arrays {', '.join(missing)}")
    meta = _meta(arrays["meta"])
    _check_shapes(arrays)
    threads, windows = arrays["totals_raw_loads"].shape[::-1]
    whole = {one: _integers(arrays[one], one) for one in WANTED - {"meta"}}
    _check_indexes(whole, threads, windows)
    samples = _samples(arrays, len(whole["vpn"]), threads)
    _check_lives(whole)
    _check_addresses(whole)
    records = _ascending({one: whole[one] for one in RECORD_ARRAYS})
    first, last = _workers(meta, threads)
    return Trace(
        name=name,
        threads=threads,
        first_worker=first,
        workers=last - first + 1,
        first_touch_thread=whole["first_touch_thread"],
        first_touch_window=whole["first_touch_epoch"],
        first_touch_rank=whole["first_touch_rank"],
        free_window=whole["free_epoch"],
        page=records["page_idx"],
        thread=records["thread"],
        loads=records["loads"],
        stores=records["stores"],
        dram=records["llc_misses"],
        raw=whole["totals_raw_loads"].astype(np.int64) + whole["totals_raw_stores"].astype(np.int64),
        window_starts=np.searchsorted(records["epoch"], np.arange(windows + 1)),
        near=tuple(np.unique(whole["vpn"] // size, return_inverse=True)[1] for size in NEAR_PAGES),
        frame=np.unique(whole["vpn"], return_inverse=True)[1],
        sampled=_distributed(samples, records["page_idx"].astype(np.int64) * threads + records["thread"]),
    )


def _samples(arrays: dict[str, Any], npages: int, threads: int) -> npt.NDArray[np.float64]:
    """Return the samples [page * threads + thread] of the whole run; empty if the trace has none."""
    if not set(SAMPLE_ARRAYS) <= set(arrays):
        return np.zeros(0)
    page, thread, count = (_integers(arrays[name], name) for name in SAMPLE_ARRAYS)
    if len({one.shape for one in (page, thread, count)}) != 1 or page.ndim != 1:
        raise TraceError("the arrays smp_* differ in shape")
    if page.size and (page.max() >= npages or thread.max() >= threads):
        raise TraceError(f"smp_* names page {page.max()} of {npages} or thread {thread.max()} of {threads}")
    where = page.astype(np.int64) * threads + thread
    counts = np.bincount(where, weights=count, minlength=npages * threads)
    return counts.astype(np.float64)


def _distributed(samples: npt.NDArray[np.float64], where: Ints) -> npt.NDArray[np.float64]:
    """Return the samples of each record's place, divided by how many records are of that place."""
    if not samples.size:
        return np.zeros(len(where))
    distributed: npt.NDArray[np.float64] = samples[where] / np.bincount(where, minlength=len(samples))[where]
    return distributed


def _ascending(records: dict[str, Ints]) -> dict[str, Ints]:
    epoch = records["epoch"]
    if (epoch[:-1] <= epoch[1:]).all():
        return records
    order = np.argsort(epoch, kind="stable")
    return {name: array[order] for name, array in records.items()}


def _meta(array: Any) -> dict[str, Any]:
    if array.dtype.kind != "U":
        raise TraceError(f"meta holds {array.dtype}, not text")
    # numpy makes strings of numbers that are no characters, and Python breaks on these wherever they go.
    characters = np.frombuffer(array.tobytes(), np.dtype("u4").newbyteorder(array.dtype.byteorder))
    if characters.max(initial=0) > sys.maxunicode:
        raise TraceError("meta holds what is no text")
    try:
        meta = json.loads(str(array))
    except (ValueError, RecursionError) as err:
        raise TraceError(f"meta is not JSON ({error_text(err)})") from err
    if not isinstance(meta, dict):
        raise TraceError("meta is not a JSON object")
    return meta


def _integers(array: Any, name: str) -> Ints:
    if array.dtype.kind not in "ui":
        raise TraceError(f"{name} holds {array.dtype}, not integers")
    if array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise TraceError(f"{name} holds {array.max()}, more than 63 bits")
    if array.size and array.min() < 0:
        raise TraceError(f"{name} holds a negative number")
    whole: Ints = array
    return whole


def _check_shapes(arrays: dict[str, Any]) -> None:
    for group in (PAGE_ARRAYS, RECORD_ARRAYS):
        lengths = {name: arrays[name].shape for name in group}
        if len(set(lengths.values())) != 1 or len(lengths[group[0]]) != 1:
            raise TraceError(f"arrays that belong together differ in shape: {lengths}")
    loads, stores = (arrays[name].shape for name in TOTAL_ARRAYS)
    if loads != stores or len(loads) != 2 or 0 in loads:
        raise TraceError(f"totals_raw_* must be [window, thread] alike and not empty: {loads}, {stores}")
    if loads[1] > MOST_THREADS or loads[0] >= NEVER:
        raise TraceError(f"it has {loads[0]} windows of {loads[1]} threads")
    if not len(arrays["vpn"]) or not len(arrays["epoch"]):
        raise TraceError("it has no page, or no record of an access")


def _check_indexes(whole: dict[str, Ints], threads: int, windows: int) -> None:
    bounds = {
        "thread": threads,
        "first_touch_thread": threads,
        "epoch": windows,
        "first_touch_epoch": windows,
        "page_idx": len(whole["vpn"]),
    }
    for name, bound in bounds.items():
        if whole[name].size and whole[name].max() >= bound:
            raise TraceError(f"{name} holds {whole[name].max()}, but must stay below {bound}")
    for name in ("loads", "stores", "totals_raw_loads", "totals_raw_stores"):
        # In floating point, which does not wrap.
        if whole[name].sum(dtype=np.float64) > MOST_ACCESSES:
            raise TraceError(f"{name} counts more than 2^52 accesses")
    # In 64 bits: a sum of two uint32 may wrap.
    if (whole["loads"].astype(np.int64) + whole["stores"] < whole["llc_misses"]).any():
        raise TraceError("llc_misses counts more than loads and stores together")


def _check_lives(whole: dict[str, Ints]) -> None:
    """Raise TraceError for accesses to a page before its first touch or after it was unmapped.

    The simulator has no place for such a page: the accesses would be left out, and the run too fast.
    """
    first, free = whole["first_touch_epoch"], whole["free_epoch"]
    at, page = whole["epoch"], whole["page_idx"]
    for wrong, when in (
        (at < first[page], "before its first touch"),
        (at > free[page], "after it was unmapped"),
    ):
        if wrong.any():
            record = int(wrong.argmax())
            raise TraceError(f"page {page[record]} is accessed in window {at[record]}, {when}")


def _check_addresses(whole: dict[str, Ints]) -> None:
    """Raise TraceError for two pages at one address at the same time; one after the other is usual."""
    order = np.lexsort((whole["first_touch_epoch"], whole["vpn"]))
    vpn, first, free = (whole[name][order] for name in ("vpn", "first_touch_epoch", "free_epoch"))
    both = (vpn[1:] == vpn[:-1]) & (first[1:] < free[:-1])
    if both.any():
        at = order[int(both.argmax())]
        raise TraceError(f"page {at} is not unmapped before another page has its address")


def _workers(meta: dict[str, Any], threads: int) -> tuple[int, int]:
    """Return the first and last worker thread; all threads if the trace does not say."""
    said = str(meta.get("workers", f"0-{threads - 1}"))
    match = re.fullmatch("([0-9]{1,4})-([0-9]{1,4})", said)
    if match is None or not int(match[1]) <= int(match[2]) < threads:
        raise TraceError(f"workers is {printable(said)!r}, not FIRST-LAST below {threads} threads")
    return int(match[1]), int(match[2])
