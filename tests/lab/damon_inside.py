"""Runs inside the emulated host: guests that source "damon" watches, one of which keeps readers waiting.

held    windows before, while and after that process keeps the lock of its mappings, also when a guest comes
        meanwhile, and when the source is closed and another one opened; prints what became of each guest
cost N  windows of so many guests; prints the CPU time of DAMON's threads and of the source

That process reads /proc/self/mem at a page of a disk which QEMU lets wait, and calls mmap(2).  It asks for
the disk to wait, and for it to go on, in a file; whoever runs this answers in another one.
"""

import ctypes
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import Pipe, Process, active_children
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from sampling_inside import NPAGES, memory, process_toucher, stay_busy  # type: ignore[import-not-found]

from vmplace import held
from vmplace.sampling.registry import SOURCES
from vmplace.sampling.source import Source, SourceSetup
from vmplace.topology.guest import GuestTopology, Movability, RamRange
from vmplace.topology.procfs import read_start_time
from vmplace.topology.sysfs import read_host

WINDOW_S = 3.0
KDAMONDS = Path("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds")
DISK, DISK_BYTES = "/dev/vdb", 192 << 20
ASKED, DONE, STATE = Path("/run/damon-asked"), Path("/run/damon-done"), Path("/run/damon-state")
Row = dict[str, int | str]


def guest(orders: Connection) -> None:
    """Tell the address, touch a quarter of the memory over and over, and hold the lock when asked to."""
    hva = memory(4)
    touch = process_toucher(hva)
    orders.send(hva)
    while True:
        touch(NPAGES // 4, NPAGES // 2)
        if orders.poll(0.01):
            hold(orders.recv())


def hold(page: int) -> None:
    """Have two threads keep the lock of the mappings until the disk goes on."""
    disk = mmap.mmap(os.open(DISK, os.O_RDONLY), DISK_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
    disk.madvise(mmap.MADV_RANDOM)
    first = np.frombuffer(disk, np.uint8).ctypes.data + page * 4096
    libc = ctypes.CDLL(None)
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

    def read() -> None:
        memory_file = os.open("/proc/self/mem", os.O_RDONLY)
        # The first read uses up what the disk may do at once.
        for at in (first, first + 64 * 4096):
            os.pread(memory_file, 1, at)

    threading.Thread(target=read, daemon=True).start()
    time.sleep(2)
    threading.Thread(target=libc.mmap, args=(None, 4096, 1, anonymous, -1, 0), daemon=True).start()


def started(name: str) -> tuple[Connection, GuestTopology]:
    orders, theirs = Pipe()
    child = Process(target=guest, args=(theirs,), daemon=True)
    child.start()
    hva, pid = orders.recv(), child.pid
    assert pid
    ram = RamRange(hva, NPAGES, None, 4096, Movability.MOVABLE, "test")
    return orders, GuestTopology(name, pid, read_start_time(pid), "kvm", (), (ram,), uid=1000)


def opened() -> Source:
    return SOURCES["damon"](SourceSetup(read_host(), state_dir=STATE))


def window(source: Source, guests: list[GuestTopology]) -> Row:
    """Return how many pages of each guest were touched in a window, or the name of the error."""
    row: Row = {}
    for one in guests:
        tried(row, one, partial(source.arm, one))
    stay_busy(WINDOW_S)
    for one in guests:
        if one.name not in row:
            tried(row, one, partial(touched_by, source, one))
    print(row, file=sys.stderr, flush=True)
    return row


def touched_by(source: Source, one: GuestTopology) -> int:
    """Return how many pages were touched in the window."""
    return int(source.harvest(one).ranges[0].accessed.sum())


def tried(row: Row, one: GuestTopology, step: Callable[[], int | None]) -> None:
    try:
        if (touched := step()) is not None:
            row[one.name] = touched
    except Exception as err:
        row[one.name] = type(err).__name__


def ask(word: str) -> None:
    """Have the disk wait or go on."""
    ASKED.write_text(word)
    until(lambda: DONE.exists() and DONE.read_text() == word)


def until(is_so: Callable[[], bool], most_s: float = 120) -> None:
    end = time.monotonic() + most_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


def is_held(one: GuestTopology) -> bool:
    """Tell whether a reader of the process waits; asked by another process, which is left behind."""
    asks = Process(target=lambda: Path(f"/proc/{one.pid}/cmdline").read_bytes(), daemon=True)
    asks.start()
    asks.join(1)
    waits = asks.is_alive()
    asks.kill()
    return waits


def hold_and_wait(orders: Connection, one: GuestTopology, page: int) -> None:
    ask("wait")
    orders.send(page)
    until(lambda: is_held(one))


def let_go(one: GuestTopology) -> None:
    ask("go on")
    until(lambda: not is_held(one) and not held.holds(one.pid))


def closed(source: Source) -> str:
    try:
        source.close()
    except Exception as err:
        return type(err).__name__
    return ""


def watch_held() -> None:
    """Print what the windows saw of each guest."""
    (orders, evil), (_, db1), (_, db2) = (started(name) for name in ("evil", "db1", "db2"))
    source = opened()
    reported: dict[str, list[Row] | str] = {}
    reported["before"] = [window(source, [evil, db1, db2]) for _ in range(3)]
    hold_and_wait(orders, evil, 30_000)
    reported["held"] = [window(source, [evil, db1, db2]) for _ in range(4)]
    _, db3 = started("db3")
    reported["new"] = [window(source, [evil, db1, db2, db3]) for _ in range(3)]
    let_go(evil)
    reported["after"] = [window(source, [evil, db1, db2, db3]) for _ in range(3)]
    hold_and_wait(orders, evil, 40_000)
    reported["close"] = closed(source)
    reported["kdamonds"] = KDAMONDS.read_text().strip()
    source = opened()
    reported["next"] = [window(source, [evil, db1, db2, db3]) for _ in range(3)]
    let_go(evil)
    reported["close at last"] = closed(source)
    reported["kdamonds at last"] = KDAMONDS.read_text().strip()
    print(json.dumps(reported))


def ran_ns() -> int:
    """Return how long DAMON's threads have run, all together."""
    return sum(int((path.parent / "schedstat").read_text().split()[0]) for path in iter_kdamonds())


def iter_kdamonds() -> Iterator[Path]:
    for path in Path("/proc").glob("[0-9]*/comm"):
        if path.read_text().startswith("kdamond."):
            yield path


def cost(count: int) -> None:
    """Print what windows cost, in ms of CPU time."""
    guests = [started(f"db{i}")[1] for i in range(count)]
    source = opened()
    for _ in range(3):
        window(source, guests)
    kdamonds, process, began = ran_ns(), time.process_time(), time.monotonic()
    rows = [window(source, guests) for _ in range(5)]
    took_s = time.monotonic() - began
    print(json.dumps({
        "guests": count,
        "threads": len(list(iter_kdamonds())),
        "kdamonds_ms_per_s": (ran_ns() - kdamonds) / 1e6 / took_s,
        "source_ms_per_window": (time.process_time() - process) * 1e3 / len(rows),
        "window_s": took_s / len(rows),
        "rows": rows,
    }))  # fmt: skip
    source.close()


if __name__ == "__main__":
    # All on one CPU, where each is switched out by the others: see window in sampling_inside.py.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if sys.argv[1] == "held":
        watch_held()
    else:
        cost(int(sys.argv[2]))
    sys.stdout.flush()
    for child in active_children():
        child.kill()
    # What waits for a process is not waited for.
    os._exit(0)
