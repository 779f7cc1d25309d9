"""move_pages(2) and /proc/PID/pagemap on this very machine."""

import errno
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from vmplace import native

CHILD = """
import ctypes, mmap, sys
ram = mmap.mmap(-1, 64 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(32):
    ram[page * 4096] = 1
print(ctypes.addressof(ctypes.c_char.from_buffer(ram)), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child() -> Iterator[tuple[int, int]]:
    """Give (pid, hva) of a process with 64 pages, the first 32 of them present."""
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout
        yield process.pid, int(process.stdout.readline())
        process.kill()


def pages(hva: int, count: int) -> npt.NDArray[np.uint64]:
    return np.arange(hva, hva + count * 4096, 4096, dtype=np.uint64)


def home_nid(pid: int, hva: int) -> int:
    """Tell a page's node from /proc/PID/numa_maps, which native does not read."""
    lines = Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"{hva:x} "))
    return next(int(field[1:].split("=")[0]) for field in line.split() if field.startswith("N"))


def test_each_page_moved_reports_the_node_it_is_on(child: tuple[int, int]) -> None:
    pid, hva = child
    status, nid = np.full(32, -999, np.int32), home_nid(pid, hva)
    assert native.move_pages(pid, pages(hva, 32), np.full(32, nid, np.int32), status) > 0
    assert set(status.tolist()) == {nid}


def test_a_page_never_touched_is_not_there(child: tuple[int, int]) -> None:
    pid, hva = child
    status = np.zeros(64, np.int32)
    native.page_nids(pid, pages(hva, 64), status)
    assert set(status[:32].tolist()) == {home_nid(pid, hva)}
    assert set(status[32:].tolist()) == {-errno.ENOENT}


def test_an_address_without_memory_is_shown_by_its_status(child: tuple[int, int]) -> None:
    status = np.full(1, -999, np.int32)
    native.page_nids(child[0], pages(4096, 1), status)
    assert status[0] in (-errno.EFAULT, -errno.ENOENT)


def test_a_dead_process_is_esrch() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    one = np.zeros(1, np.int32)
    with pytest.raises(ProcessLookupError):
        native.move_pages(process.pid, pages(4096, 1), one, one.copy())


def test_a_node_that_does_not_exist_is_enodev(child: tuple[int, int]) -> None:
    with pytest.raises(OSError, match="No such device") as refused:
        native.move_pages(child[0], pages(child[1], 1), np.full(1, 1000, np.int32), np.zeros(1, np.int32))
    assert refused.value.errno == errno.ENODEV


def test_a_page_of_two_processes_moves_only_with_all_owners() -> None:
    with mmap.mmap(-1, 4096) as shared:
        shared[0] = 1
        hva = np.frombuffer(shared, np.uint8).ctypes.data
        reader, writer = os.pipe()
        forked = os.fork()
        if not forked:
            os.write(writer, bytes([shared[0]]))
            time.sleep(300)
            os._exit(0)
        try:
            status, nid = np.full(1, -999, np.int32), home_nid(os.getpid(), hva)
            # It is mapped there, too, by then.
            assert os.read(reader, 1) == b"\x01"
            native.move_pages(os.getpid(), pages(hva, 1), np.full(1, nid, np.int32), status, True)
            assert status[0] == nid
        finally:
            os.kill(forked, 9)
            os.waitpid(forked, 0)
            os.close(reader)
            os.close(writer)


def test_pagemap_tells_which_pages_are_present(child: tuple[int, int]) -> None:
    pid, hva = child
    entries = np.zeros(64, np.uint64)
    fd = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)
    try:
        assert native.read_pagemap(fd, hva, entries) == 64
    finally:
        os.close(fd)
    assert (entries >> np.uint64(63)).tolist() == [1] * 32 + [0] * 32


def test_pagemap_of_a_process_that_ended_is_empty(child: tuple[int, int]) -> None:
    pid, hva = child
    fd = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)
    try:
        os.kill(pid, 9)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert native.read_pagemap(fd, hva, np.zeros(64, np.uint64)) == 0
    finally:
        os.close(fd)


def test_other_threads_run_while_pagemap_is_read() -> None:
    """The whole address space takes long to scan: a thread must get its turns meanwhile."""
    turns, stop = [], threading.Event()
    fd = os.open("/proc/self/pagemap", os.O_RDONLY)

    def count() -> None:
        while not stop.wait(0.001):
            turns.append(1)

    thread = threading.Thread(target=count)
    thread.start()
    entries = np.zeros(8 << 20, np.uint64)
    most, until = 0, time.monotonic() + 60
    # A thread that waits for a CPU meanwhile gets its turns in another read.
    while most <= 3 and time.monotonic() < until:
        before = len(turns)
        native.read_pagemap(fd, 1 << 32, entries)
        most = max(most, len(turns) - before)
    stop.set()
    thread.join()
    os.close(fd)
    assert most > 3


U8, I32, I64 = np.zeros(4, np.uint8), np.zeros(4, np.int32), np.zeros(4, np.int64)
U64, F64 = np.zeros(4, np.uint64), np.zeros(4)
READONLY = np.frombuffer(bytes(4), np.uint8)
ROW, EIGHT_TIMES = (U8[:1], U8[:1], I32[:1], U8[:0]), np.zeros(8, np.uint64)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "words"),
    [
        (native.rows_alike, (I32, U8), TypeError, "rows: need items of uint8"),
        (native.queue_length, (F64, 0.5, F64, F64[:3]), ValueError, "rho has 4 items, but slope has 3"),
        (native.rows_alike, (U8, READONLY), TypeError, "alike: need a writable"),
        (native.rows_alike, (U8, U8[::2]), TypeError, "alike: .*C-contiguous"),
        (native.rows_some, ((U8, U8, I32, U8, 2), U64, U8), ValueError, "rows: shapes that do not fit"),
        (native.rows_some, ((U8, U8, I32), U64, U8), TypeError, "rows"),
        (native.rows_some, ([], U64, U8), TypeError, "rows: need a tuple"),
        # Eight of the width are 2^64 bytes.
        (native.rows_some, ((*ROW, 1 << 61), EIGHT_TIMES, U8[:0]), ValueError, "rows: shapes that do"),
        (
            native.rows_bits,
            (((*ROW, 1 << 61),), EIGHT_TIMES, 1, np.zeros(8, np.int32)),
            ValueError,
            "rows: shap",
        ),
        (native.windows_marks, ((None,), 1, 0, U64[:0], U64[:0], U8[:0]), TypeError, "rows: need a tuple"),
        (native.rows_bits, (((U8, U8[:1], I32[:1], U8, 2),), U64, 0, I32), ValueError, "step: at least 1"),
        (native.rows_bits, ([], U64, 1, I32), TypeError, "tuple"),
        (native.rows_kinds, (((U8, U8[:1], I32[:1], U8[:0], 2),), U8[:3], U8[:3]), ValueError, "used has 3"),
        (native.rows_alike, (U8, U8[:3]), ValueError, "an item for each row"),
        (native.read_pagemap, (0, 123, pages(0, 1)), ValueError, "hva 123"),
        (native.read_pagemap, (0, -4096, pages(0, 1)), OverflowError, "negative"),
        (native.move_pages, (1, pages(0, 4), I64, I32), TypeError, "nids: need items of int32"),
        (native.move_pages, (1, pages(0, 4), I32, I32[:1]), ValueError, "status has 1"),
        (native.folio_heads, (0, pages(0, 2), pages(0, 1)), ValueError, "heads has 1"),
        (native.idle_mark, (-1, pages(64, 1)), OSError, "Bad file"),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    function: Callable[..., object], arguments: tuple[object, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        function(*arguments)
