"""Which part of a guest's RAM is resident?  What a guest may cost follows from that, not from what it mapped.

1. A guest with more than WHOLE_BYTES of which less than a quarter is resident is an exception: a process may
   map 32 TiB (MAP_NORESERVE) that it never touches, and an entry for each page of that would take the agent's
   memory, and minutes.  All other guests count whole, unless the agent is short of memory: anybody can start
   many of less than WHOLE_BYTES each, so from then on (``spare``) a guest of one piece alone counts whole.
2. PAGEMAP_SCAN (Linux 6.7, Documentation/admin-guide/mm/pagemap.rst) tells the present runs of pages; the
   kernel descends only where there are page tables.  Zero pages, which reading maps for nothing, are absent.
3. Runs are kept in pieces of 32 MiB and only grow, so that a guest that boots does not become another one
   with each page; of more than MOST_RUNS, those nearest to each other are joined.

Limits: before 6.7 the whole guest counts; what the agent cannot afford then, it leaves alone
(memory_budget.py).  A page that is touched for the first time counts from the next look on, RESCAN_S later
at the most.
"""

import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vmplace import held
from vmplace.errors import GuestGoneError
from vmplace.topology.guest import PAGE_BYTES, Identity, RamRange
from vmplace.topology.procfs import PROC

Pieces = npt.NDArray[np.int64]

WHOLE_BYTES = 1 << 30
LEAST_SHARE = 4
PIECE_BYTES = 32 << 20
MOST_RUNS = 256
RESCAN_S = 30.0
# linux/fs.h: _IOWR('f', 16, struct pm_scan_arg), struct page_region, PAGE_IS_*
PAGEMAP_SCAN = 0xC0606610
SCAN_ARGUMENT, REGION = (
    struct.Struct("<12Q"),
    np.dtype([("start", "<u8"), ("end", "<u8"), ("categories", "<u8")]),
)
IS_PRESENT, IS_ZERO_PAGE = 1 << 3, 1 << 5
WALK_END_AT = 4
MOST_REGIONS = 1024


@dataclass(frozen=True)
class _Known:
    """A guest's whole ranges, the pieces of each that are there, and when to look again."""

    whole: tuple[RamRange, ...]
    pieces: tuple[Pieces, ...]
    due: float


class ResidentRam:
    """The ranges of guests, cut down to what is there where that is little."""

    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._whole_bytes = WHOLE_BYTES
        self._known: dict[Identity, _Known] = {}

    def spare(self) -> None:
        """Cut down smaller guests, too, from now on: not back and forth, as a guest's ranges would change."""
        self._whole_bytes = PIECE_BYTES

    def ranges(
        self, identity: Identity, whole: tuple[RamRange, ...], resident_bytes: int
    ) -> tuple[RamRange, ...]:
        """Return what counts of ``whole`` for a process (pid, start time) with so many bytes resident.

        Raises GuestGoneError if the process ended.
        """
        mapped = sum(ram.size_bytes for ram in whole)
        if mapped <= max(self._whole_bytes, LEAST_SHARE * resident_bytes):
            return whole
        known = self._known.get(identity)
        if known is None or known.whole != whole or self._clock() >= known.due:
            known = self._seen(identity, whole, known if known and known.whole == whole else None)
            self._known[identity] = known
        return tuple(
            part for ram, there in zip(known.whole, known.pieces, strict=True) for part in parts(ram, there)
        )

    def keep(self, identities: Iterable[Identity]) -> None:
        """Forget all other guests."""
        alive = set(identities)
        self._known = {identity: known for identity, known in self._known.items() if identity in alive}

    def _seen(self, identity: Identity, whole: tuple[RamRange, ...], before: _Known | None) -> _Known:
        found = held.bounded(identity[0], lambda: _scanned(identity[0], whole, self._proc))
        if found is None:
            found = tuple(np.arange(-(-ram.size_bytes // PIECE_BYTES)) for ram in whole)
        elif before is not None:
            pairs = zip(before.pieces, found, strict=True)
            found = tuple(np.union1d(old, new) for old, new in pairs)
        return _Known(whole, found, self._clock() + RESCAN_S)


def parts(ram: RamRange, there: Pieces) -> Iterator[RamRange]:
    """Yield the runs of ``ram`` that hold its pieces ``there`` (ascending), at most MOST_RUNS."""
    for first, last in _runs(there):
        start, end = first * PIECE_BYTES, min((last + 1) * PIECE_BYTES, ram.size_bytes)
        base_gfn = None if ram.base_gfn is None else ram.base_gfn + start // PAGE_BYTES
        yield replace(ram, hva=ram.hva + start, npages=(end - start) // PAGE_BYTES, base_gfn=base_gfn)


def _runs(there: Pieces) -> list[tuple[int, int]]:
    gap = 1
    while True:
        runs = np.split(there, np.flatnonzero(np.diff(there) > gap) + 1) if len(there) else []
        if len(runs) <= MOST_RUNS:
            return [(int(run[0]), int(run[-1])) for run in runs]
        gap *= 2


def _scanned(pid: int, whole: tuple[RamRange, ...], proc: Path) -> tuple[Pieces, ...] | None:
    """Return the pieces of each range that are there, None on a kernel that does not tell."""
    try:
        pagemap = os.open(proc / f"{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError) as err:
        raise GuestGoneError(f"process {pid} ended") from err
    except OSError:
        return None
    try:
        return tuple(present_pieces(pagemap, ram.hva, ram.size_bytes) for ram in whole)
    except OSError as err:
        if err.errno in {errno.ENOTTY, errno.EINVAL}:
            return None
        raise GuestGoneError(f"process {pid} ended") from err
    finally:
        os.close(pagemap)


def present_pieces(pagemap: int, start: int, size_bytes: int) -> Pieces:
    """Return which pieces of PIECE_BYTES from ``start`` have a page, ascending; raises OSError.

    ENOTTY before Linux 6.7.
    """
    regions, end = np.zeros(MOST_REGIONS, REGION), start + size_bytes
    found: list[Pieces] = []
    at = start
    while at < end:
        count, walked = _scan(pagemap, at, end, regions)
        first = (regions["start"][:count].astype(np.int64) - start) // PIECE_BYTES
        last = (regions["end"][:count].astype(np.int64) - 1 - start) // PIECE_BYTES
        found += [np.unique(first), *(np.arange(a, b + 1) for a, b in zip(first, last, strict=True) if a < b)]
        # A piece with one page is there: what else is in it need not be known.
        at = start + -(-(walked - start) // PIECE_BYTES) * PIECE_BYTES
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _scan(pagemap: int, start: int, end: int, regions: npt.NDArray[np.void]) -> tuple[int, int]:
    """Fill in the first present runs in [start, end); return their number and where the kernel stopped."""
    argument = bytearray(
        SCAN_ARGUMENT.pack(
            SCAN_ARGUMENT.size, 0, start, end, 0, regions.ctypes.data, len(regions), 0,
            IS_ZERO_PAGE, IS_PRESENT | IS_ZERO_PAGE, 0, IS_PRESENT,
        )
    )  # fmt: skip
    count = fcntl.ioctl(pagemap, PAGEMAP_SCAN, argument)
    walked = SCAN_ARGUMENT.unpack(argument)[WALK_END_AT]
    return count, walked if walked > start else end
