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
CHASED_BYTES = 512 * MIB
"""Of each CPU where one of them chases: by itself more than a cache of some 100 MiB holds."""
FREE_SHARE = 4
"""At most this part of a node's free memory is used: its guests may need some meanwhile."""
LINE_BYTES = 64


@dataclass(frozen=True)
class Reader:
    """A CPU of a node; one that ``chases`` reads a line at a time, each after the one before."""

    cpu: int
    nid: int
    chases: bool = False


@dataclass(frozen=True)
class Readings:
    """What each of ``readers`` read of each of ``mem_nids``: bytes, and ns of CPU time that took [R, M]."""

    readers: tuple[Reader, ...]
    mem_nids: tuple[int, ...]
    read_bytes: npt.NDArray[np.uint64]
    spent_ns: npt.NDArray[np.uint64]

    def bytes_per_s(self) -> dict[tuple[int, int], int]:
        """Return by (CPU nid, memory nid) how fast the node's CPUs that do not chase read, together."""
        rates = np.where(self.spent_ns > 0, self.read_bytes * 1e9 / np.maximum(self.spent_ns, 1), 0.0)
        streams = [one for one, reader in enumerate(self.readers) if not reader.chases]
        found: dict[tuple[int, int], int] = {}
        for cpu_nid in dict.fromkeys(self.readers[one].nid for one in streams):
            mine = [one for one in streams if self.readers[one].nid == cpu_nid]
            for column, mem_nid in enumerate(self.mem_nids):
                found[cpu_nid, mem_nid] = int(rates[mine, column].sum())
        return found

    def line_ns(self) -> float:
        """Return what a line took of those that chase; raises VmplaceError if they read nothing."""
        chasing = [one for one, reader in enumerate(self.readers) if reader.chases]
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
    chases = np.array([one.chases for one in readers], np.int32)
    read_bytes, spent_ns = (np.zeros((len(readers), len(nids)), np.uint64) for _ in range(2))
    try:
        native.measure_streams(at, chases, of, each, duration_ms, read_bytes, spent_ns)
    except OSError as err:
        raise VmplaceError(
            f"cannot read nodes {nids} from CPUs {at.tolist()}: {err.strerror}",
            hint="run it as root, outside of cpusets, with free memory on every node",
        ) from err
    return Readings(tuple(readers), nids, read_bytes, spent_ns)


def _bytes_each(host: HostTopology, readers: Sequence[Reader], nids: tuple[int, ...]) -> int:
    free = min(node.free_bytes for node in host.nodes if node.nid in nids)
    most = CHASED_BYTES if any(one.chases for one in readers) else STREAM_BYTES
    each = min(most, free // FREE_SHARE // len(readers)) // MIB * MIB
    if not each:
        raise VmplaceError("too little free memory to measure with", hint="calibrate before guests start")
    return each
