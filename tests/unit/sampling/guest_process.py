"""A real process as guest, on this machine's real frames; only the idle bitmap is laid out in a file."""

import ctypes
import mmap
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vmplace.topology.guest import GuestTopology, Movability, RamRange

CHILD = """
import ctypes, mmap, sys
npages, page_size = int(sys.argv[1]), int(sys.argv[2])
ram = mmap.mmap(-1, (npages + 1024) * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
hva = -(-ctypes.addressof(ctypes.c_char.from_buffer(ram)) // (2 << 20)) * (2 << 20)
libc = ctypes.CDLL(None, use_errno=True)
libc.madvise(ctypes.c_void_p(hva), ctypes.c_size_t(npages * 4096), 14 if page_size > 4096 else 15)
print(hva, flush=True)
for line in sys.stdin:
    first, last = map(int, line.split()[:2])
    if "drop" in line:
        libc.madvise(ctypes.c_void_p(hva), ctypes.c_size_t(npages * 4096), 15)
        libc.madvise(ctypes.c_void_p(hva + first * 4096), ctypes.c_size_t((last - first) * 4096), 4)
        first = last
    for page in range(first, last):
        ctypes.c_char.from_address(hva + page * 4096).value = b"x"
    print("done", flush=True)
"""


@dataclass(frozen=True)
class GuestProcess:
    """A child that touches pages on command; ``topology`` is what vmplace would know of it."""

    process: subprocess.Popen[str]
    topology: GuestTopology

    def touch(self, first: int, last: int, what: str = "") -> None:
        """Write to pages [first, last), or "drop" them as a balloon does.

        khugepaged does not fill such a hole.
        """
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{first} {last} {what}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


def ram_range(hva: int, npages: int) -> RamRange:
    return RamRange(hva, npages, None, 4096, Movability.MOVABLE, "anonymous private memory")


COMPOUND_TAIL, ON_LRU = 1 << 16, 1 << 5


class Bitmap:
    """The idle bitmap as an ordinary file: a frame stays idle until the test says it was touched."""

    def __init__(self, path: Path) -> None:
        self._path = path
        frames = 1 << 26
        with path.open("wb") as file:
            file.truncate(frames // 8)

    def _words(self) -> np.memmap[tuple[int], np.dtype[np.uint8]]:
        return np.memmap(self._path, np.uint8, "r+")

    def settle(self, pfns: set[int]) -> None:
        """Clear the bits that the kernel does not set: those of tails, and off the LRU."""
        words = self._words()
        with Path("/proc/kpageflags").open("rb", buffering=0) as kpageflags:
            for pfn in pfns:
                kpageflags.seek(pfn * 8)
                flags = int.from_bytes(kpageflags.read(8), "little")
                if flags & COMPOUND_TAIL or not flags & ON_LRU:
                    words[pfn // 8] &= ~(1 << pfn % 8) & 0xFF

    def touch(self, pfn: int) -> None:
        """Clear the idle bit of a frame, as the kernel does when an accessed bit was set."""
        self._words()[pfn // 8] &= ~(1 << pfn % 8) & 0xFF

    def is_idle(self, pfn: int) -> bool:
        return bool(self._words()[pfn // 8] >> pfn % 8 & 1)


def frame_of(pid: int, hva: int) -> int:
    """Read one pagemap entry without the C core."""
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
        pagemap.seek(hva // mmap.PAGESIZE * 8)
        entry = ctypes.c_uint64.from_buffer_copy(pagemap.read(8)).value
    return entry & (1 << 55) - 1 if entry >> 63 else 0
