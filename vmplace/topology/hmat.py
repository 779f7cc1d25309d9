"""What firmware says of bandwidth and latency between nodes: ACPI HMAT, as sysfs shows it.

The kernel shows, per memory node, the figures of its best initiators only
(Documentation/admin-guide/mm/numaperf.rst): a pair that is absent is unknown, not slow.  ``access1``
ranks CPUs only; ``access0`` also devices, whose figures say nothing about CPUs.  Units are those of
Documentation/ABI/stable/sysfs-devices-node: MB/s and ns.
"""

from collections.abc import Iterator
from pathlib import Path

from vmplace.errors import OutsideError
from vmplace.outside import read_whole, whole

Pairs = dict[tuple[int, int], int]
MEGABYTE = 1_000_000


def read_hmat(cpu_nids: set[int], mem_nids: list[int], sysfs: Path = Path("/sys")) -> tuple[Pairs, Pairs]:
    """Return read bandwidth (bytes/s) and read latency (ns), each by (cpu nid, memory nid)."""
    bandwidths: Pairs = {}
    latencies: Pairs = {}
    for cpu_nid, mem_nid, directory in _iter_initiators(cpu_nids, mem_nids, sysfs):
        bandwidth = _read_figure(directory / "read_bandwidth")
        latency = _read_figure(directory / "read_latency")
        if bandwidth is not None:
            bandwidths.setdefault((cpu_nid, mem_nid), bandwidth * MEGABYTE)
        if latency is not None:
            latencies.setdefault((cpu_nid, mem_nid), latency)
    return bandwidths, latencies


def _iter_initiators(cpu_nids: set[int], mem_nids: list[int], sysfs: Path) -> Iterator[tuple[int, int, Path]]:
    for mem_nid in mem_nids:
        for access in ("access1", "access0"):
            directory = sysfs / f"devices/system/node/node{mem_nid}/{access}/initiators"
            for link in sorted(directory.glob("node[0-9]*")):
                cpu_nid = whole(link.name.removeprefix("node"))
                if cpu_nid in cpu_nids:
                    yield cpu_nid, mem_nid, directory


def _read_figure(path: Path) -> int | None:
    """Return the figure, or None where firmware gives none (absent file, or 0)."""
    try:
        return read_whole(path, 1 << 40) or None
    except (OSError, OutsideError):
        return None
