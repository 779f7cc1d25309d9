"""A tree like DAMON's in sysfs, and processes that stand for its threads; the lab has the real ones."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from vmplace.sampling.damon_settings import settings_of
from vmplace.topology.damon import ADMIN, TRACE_POINT

KDAMONDS = 6
FORMAT = """name: damon_aggregated
ID: 767
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:unsigned long target_id;\toffset:8;\tsize:8;\tsigned:0;
\tfield:unsigned int nr_regions;\toffset:16;\tsize:4;\tsigned:0;
\tfield:unsigned long start;\toffset:24;\tsize:8;\tsigned:0;
\tfield:unsigned long end;\toffset:32;\tsize:8;\tsigned:0;
\tfield:unsigned int nr_accesses;\toffset:40;\tsize:4;\tsigned:0;
\tfield:unsigned int age;\toffset:44;\tsize:4;\tsigned:0;

print fmt: "target_id=%lu nr_regions=%u %lu-%lu: %u %u", REC->target_id, REC->nr_regions
"""
"""Of Linux 6.18.44."""
WAITS = """
import os, sys
print(flush=True)
opened = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[opened])
"""
"""In vfork(2) until somebody opens the FIFO that its child opens: in state D, as if it waited for a lock."""


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def put_damon(sysfs: Path, pids: Sequence[int | str] = (), *, kdamonds: int = 0) -> Path:
    """Make the files; ``pids`` are those that kdamonds have, or get as they are turned on."""
    root = sysfs / ADMIN
    put(sysfs / TRACE_POINT, FORMAT)
    put(root / "nr_kdamonds", str(kdamonds))
    for slot in range(KDAMONDS):
        context = root / f"{slot}/contexts/0"
        for path, value in settings_of(1, [(0, 4096)] * 2, 1000, 25_000, 250_000):
            put(context / path, str(value))
        put(context / "avail_operations", "vaddr\nfvaddr\npaddr\n")
        put(root / f"{slot}/contexts/nr_contexts", "0")
        put(root / f"{slot}/state", "on" if kdamonds and slot < len(pids) else "off")
        put(root / f"{slot}/pid", str(pids[slot]) if slot < len(pids) else "-1")
    return root


@contextmanager
def sleeping() -> Iterator["subprocess.Popen[bytes]"]:
    """Give a process that stands for a kdamond that waits for time."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def waiting(fifo: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Give a process that stands for a kdamond that waits for a lock, until ``let_go``."""
    os.mkfifo(fifo)
    with subprocess.Popen([sys.executable, "-c", WAITS, fifo], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            while state_of(process.pid) != "D":
                time.sleep(0.01)
            yield process
        finally:
            let_go(fifo)
            process.kill()


def let_go(fifo: Path) -> None:
    """End the waiting."""
    with suppress(OSError):
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
