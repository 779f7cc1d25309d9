"""A real process with declared memory and threads, in place of a guest."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vmplace.policy.plan import Move, PlacementPlan
from vmplace.topology.guest import GuestTopology, Movability, RamRange, Vcpu

_CODE = """
import ctypes, mmap, sys, threading
npages, touched = int(sys.argv[1]), int(sys.argv[2])
ram = mmap.mmap(-1, npages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
ram.madvise(mmap.MADV_NOHUGEPAGE)
for page in range(touched):
    ram[page * 4096] = 1
vcpu = threading.Thread(target=threading.Event().wait, daemon=True)
vcpu.start()
print(ctypes.addressof(ctypes.c_char.from_buffer(ram)), vcpu.native_id, flush=True)
for name in sys.stdin:
    ctypes.CDLL(None).prctl(15, bytes.fromhex(name), 0, 0, 0)  # PR_SET_NAME
    print(flush=True)
"""


@dataclass(frozen=True)
class Child:
    """The process and what it declared."""

    process: subprocess.Popen[str]
    guest: GuestTopology

    @property
    def hva(self) -> int:
        return self.guest.ram[0].hva

    def rename(self, name: bytes) -> None:
        """Have it give itself another name: up to 15 bytes, whichever it likes."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{name.hex()}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def kill(self) -> None:
        """End it, and collect it, so that its pid is gone."""
        self.process.kill()
        self.process.wait()


@contextmanager
def child_guest(npages: int, *, touched: int | None = None) -> Iterator[Child]:
    """Run a process with ``npages`` pages of RAM, the first ``touched`` of them present."""
    argv = [sys.executable, "-c", _CODE, str(npages), str(npages if touched is None else touched)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        hva, tid = map(int, process.stdout.readline().split())
        yield Child(process, guest_of(process.pid, hva, npages, tid))
    finally:
        process.kill()
        process.wait()


def guest_of(
    pid: int,
    hva: int,
    npages: int,
    tid: int = 0,
    *,
    name: str = "db1",
    movability: Movability = Movability.MOVABLE,
) -> GuestTopology:
    """Return the topology of a process with one RAM range; field 22 of its stat is the start time."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    start_time = int(stat[stat.rindex(")") :].split()[20])
    ram = RamRange(hva, npages, None, 4096, movability, "as declared")
    return GuestTopology(name, pid, start_time, "kvm", (Vcpu(0, tid, (0,)),), (ram,))


def plan_of(hva: int, npages: int, to_nid: int, *, guest: str = "db1", huge: bool = False) -> PlacementPlan:
    """Return a plan that moves a run of pages, or of huge pages, to one node."""
    step = 512 if huge else 1
    count = npages // step
    move = Move(
        guest,
        (hva + np.arange(count) * step * 4096).astype(np.uint64),
        np.full(count, step, np.uint16),
        np.zeros(count, np.int16),
        np.full(count, to_nid, np.int16),
        "test",
    )
    return PlacementPlan((move,))
