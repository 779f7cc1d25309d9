"""Let CPUs read memory of nodes, all at once, and tell how fast each was: calibration's one side effect."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.errors import VmplaceError
from vmplace.topology.host import HostTopology

MIB = 1 << 20
STREAM_BYTES = 64 * MIB
"""Of each CPU on each node: with a few CPUs more than any cache holds."""
MOST_CHASED_MIB = 4096
FREE_SHARE = 4
"""At most this part of a node's free memory is used: its guests may need some meanwhile."""
LINE_BYTES = 64


@dataclass(frozen=True)
class Reader:
    """A CPU of a node; with ``chased_mib`` it reads a line of so many MiB at a time, each after the last.

    ``of``: the one node whose memory it reads, None: all in turn.
    """

    cpu: int
    nid: int
    chased_mib: int = 0
    of: int | None = None


@dataclass(frozen=True)
class Readings:
    """What each of ``readers`` read of each of ``mem_nids``: bytes, and ns of CPU time that took [R, M]."""

    readers: tuple[Reader, ...]
    mem_nids: tuple[int, ...]
    read_bytes: npt.NDArray[np.uint64]
    spent_ns: npt.NDArray[np.uint64]
    duration_ms: int

    @property
    def cpu_share(self) -> float:
        """Return the share of the time for which the reader had its CPU that had it least."""
        return float(self.spent_ns.sum(axis=1).min()) / 1e6 / self.duration_ms

    def bytes_per_s(self) -> dict[tuple[int, int], int]:
        """Return by (CPU nid, memory nid) how fast the node's CPUs that do not chase read, together."""
        rates = np.where(self.spent_ns > 0, self.read_bytes * 1e9 / np.maximum(self.spent_ns, 1), 0.0)
        streams = [one for one, reader in enumerate(self.readers) if not reader.chased_mib]
        found: dict[tuple[int, int], int] = {}
        for cpu_nid in dict.fromkeys(self.readers[one].nid for one in streams):
            mine = [one for one in streams if self.readers[one].nid == cpu_nid]
            for column, mem_nid in enumerate(self.mem_nids):
                if any(self.readers[one].of in (None, mem_nid) for one in mine):
                    found[cpu_nid, mem_nid] = int(rates[mine, column].sum())
        return found

    def line_ns(self) -> float:
        """Return what a line took of those that chase; raises VmplaceError if they read nothing."""
        chasing = [one for one, reader in enumerate(self.readers) if reader.chased_mib]
        lines = int(self.read_bytes[chasing].sum()) / LINE_BYTES
        if not lines:
            raise VmplaceError(
                f"CPU {self.readers[chasing[0]].cpu} read nothing of node {self.mem_nids[0]}",
                hint="measure for longer, or on a less busy host: --duration-ms",
            )
        return int(self.spent_ns[chasing].sum()) / lines


def readings(
    host: HostTopology, readers: Sequence[Reader], mem_nids: Collection[int], duration_ms: int
) -> Readings:
    """Let all ``readers`` read memory of their own on all of ``mem_nids`` in turn, at once.

    Raises VmplaceError where there is too little free memory, or this process may not use CPUs or nodes.
    """
    nids = tuple(mem_nids)
    each = _bytes_each(host, readers, nids)
    at, of = np.array([one.cpu for one in readers], np.int32), np.array(nids, np.int32)
    chased = np.array([one.chased_mib for one in readers], np.int32)
    only = np.array([-1 if one.of is None else nids.index(one.of) for one in readers], np.int32)
    read_bytes, spent_ns = (np.zeros((len(readers), len(nids)), np.uint64) for _ in range(2))
    try:
        native.measure_streams(at, chased, only, of, each, duration_ms, read_bytes, spent_ns)
    except OSError as err:
        raise VmplaceError(
            f"cannot read nodes {nids} from CPUs {at.tolist()}: {err.strerror}",
            hint="run it as root, outside of cpusets, with free memory on every node",
        ) from err
    return Readings(tuple(readers), nids, read_bytes, spent_ns, duration_ms)


def _bytes_each(host: HostTopology, readers: Sequence[Reader], nids: tuple[int, ...]) -> int:
    chased = sum(one.chased_mib for one in readers) * MIB
    free = min(node.spare_bytes for node in host.nodes if node.nid in nids) // FREE_SHARE - chased
    streams = sum(not one.chased_mib for one in readers)
    each = min(STREAM_BYTES, free // max(streams, 1)) // MIB * MIB
    if each <= 0:
        raise VmplaceError("too little free memory to measure with", hint="calibrate before guests start")
    return each


def chased_mib(host: HostTopology, cache_bytes: int) -> int:
    """Return the MiB to chase in, the same for all measurements: four times the cache, 0 without room for it.

    A cache of a size that is not known is taken for one of 128 MiB.
    """
    wanted = 4 * (cache_bytes or 128 * MIB) // MIB
    size = 1 << max(wanted - 1, 1).bit_length()
    least = min((node.spare_bytes for node in host.nodes if node.memory_bytes), default=0)
    return size if size <= MOST_CHASED_MIB and 2 * size * MIB <= least // FREE_SHARE else 0
