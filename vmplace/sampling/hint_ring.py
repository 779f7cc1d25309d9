"""How do records of KVM's hint faults come here?  A ring that the placement fd maps, emptied in bulk."""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.topology.placement import Placement

# kvm-patches/kvm_placement.h
HEADER_BYTES, ENTRY_BYTES, COLUMNS = 4096, 32, 6
WRITE, EXEC, WALK = 1, 2, 4
MOST_SPANS = 256
NR_ENTRIES = 1 << 16
"""2 MiB: a minute's records at 1,000 a second."""
ROOM = 4096


@dataclass(frozen=True)
class Span:
    """Guest frames to sample: ``npages`` from ``gfn``."""

    gfn: int
    npages: int


@dataclass(frozen=True)
class Hints:
    """Accesses, an entry each, in the order in which they happened, as far as one vCPU is concerned.

    ``gpas`` are exact.  ``times_ns``: CLOCK_MONOTONIC.  ``nids``: where the vCPU was, -1 = not known.
    ``walked``: it was the guest's page tables that were touched; ``fetched``: code was.
    ``levels``: 1: 4 KiB mapping, 2: 2 MiB.
    """

    gpas: npt.NDArray[np.uint64]
    times_ns: npt.NDArray[np.uint64]
    vcpus: npt.NDArray[np.int64]
    nids: npt.NDArray[np.int64]
    written: npt.NDArray[np.bool_]
    walked: npt.NDArray[np.bool_]
    fetched: npt.NDArray[np.bool_]
    levels: npt.NDArray[np.int64]


class HintRing:
    """Armed hint faults of one VM, and the ring that they are recorded in."""

    def __init__(
        self,
        placement: Placement,
        spans: Sequence[Span],
        budget_per_s: int,
        period_ms: int,
        nr_entries: int = NR_ENTRIES,
    ) -> None:
        """Arm; raises OSError (EBUSY: another placement fd of the VM has armed some)."""
        self._placement = placement
        self._table = np.zeros((COLUMNS, ROOM), np.uint64)
        pairs = np.array([(span.gfn, span.npages) for span in spans], np.uint64)
        placement.call(lambda fd: native.placement_hints(fd, pairs, budget_per_s, period_ms, nr_entries))
        try:
            self._ring = mmap.mmap(placement.fd, HEADER_BYTES + nr_entries * ENTRY_BYTES)
        except OSError:
            self._switch_off()
            raise
        self.lost = 0
        self.armed = 0

    def drain(self) -> Hints:
        """Return what was recorded since the last time; ``lost`` and ``armed`` count from the beginning."""
        parts, count = [np.zeros((COLUMNS, 0), np.uint64)], ROOM
        while count == ROOM:
            count, self.lost, self.armed = native.placement_drain(self._ring, self._table)
            parts.append(self._table[:, :count].copy())
        return hints_of(np.concatenate(parts, axis=1))

    def close(self) -> None:
        """Take hint faults off; raises OSError."""
        self._ring.close()
        self._switch_off()

    def _switch_off(self) -> None:
        self._placement.call(lambda fd: native.placement_hints(fd, np.zeros(0, np.uint64), 0, 0, 0))


def hints_of(table: npt.NDArray[np.uint64]) -> Hints:
    """Name the rows of a table of ``native.placement_drain``."""
    gpas, times_ns, vcpus, nids, flags, levels = table
    return Hints(
        gpas=gpas,
        times_ns=times_ns,
        vcpus=vcpus.astype(np.int64),
        nids=nids.view(np.int64),
        written=(flags & np.uint64(WRITE)) != 0,
        walked=(flags & np.uint64(WALK)) != 0,
        fetched=(flags & np.uint64(EXEC)) != 0,
        levels=levels.astype(np.int64),
    )
