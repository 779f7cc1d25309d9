"""May the pages of a mapping change their node?  If not, a reason that a person can read."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vmplace.outside import printable
from vmplace.topology.guest import Movability
from vmplace.topology.procfs import Vma, status_bytes

# Devices of these files reach guest memory by host-physical address, so its frames must stay.
# From the first character: anybody may have a file called x/dev/vfio/y.
DMA_DESCRIPTOR = re.compile(r"/dev/vfio/|/dev/iommu$|anon_inode:\[vfio-device\]|/dev/vhost-vdpa-|/dev/sev$")
GUEST_MEMFD_DESCRIPTOR = re.compile(r"kvm-gmem|guest_memfd")
# Kernel interfaces (io_uring, perf, RDMA control) pin a few pages of any process: these come back as
# busy, one by one.  From this share of guest RAM on, the pages of the guest itself are meant.
PINNED_SHARE = 1 / 16


@dataclass(frozen=True)
class Immovable:
    """Why no page of the guest may be moved, whatever mapping it is in."""

    movability: Movability
    reason: str


def find_process_pin(
    descriptors: Mapping[int, str], status: Mapping[str, str], vmas: Iterable[Vma], ram_bytes: int
) -> Immovable | None:
    """Return why the guest as a whole is immovable, or None.  ``status`` is /proc/PID/status."""
    for target in descriptors.values():
        if GUEST_MEMFD_DESCRIPTOR.search(target):
            return Immovable(Movability.GUEST_MEMFD, "guest_memfd: the kernel cannot move private memory")
    for target in descriptors.values():
        if DMA_DESCRIPTOR.match(target):
            return Immovable(Movability.PINNED, f"pinned for device access ({printable(target)} is open)")
    pinned = status_bytes(status, "VmPin") + max(0, status_bytes(status, "VmLck") - _mlocked_bytes(vmas))
    if pinned and pinned >= ram_bytes * PINNED_SHARE:
        return Immovable(Movability.PINNED, f"{pinned >> 20} MiB are pinned by the kernel for a device")
    return None


def pinning(descriptors: Mapping[int, str]) -> list[tuple[int, str]]:
    """Return the descriptors for which ``find_process_pin`` looks, what counts most first."""
    of_memfd = [item for item in descriptors.items() if GUEST_MEMFD_DESCRIPTOR.search(item[1])]
    return of_memfd + [item for item in descriptors.items() if DMA_DESCRIPTOR.match(item[1])]


def classify(vma: Vma) -> tuple[Movability, str]:
    """Return the class of one mapping's pages and the reason."""
    if "lo" in vma.flags:
        return Movability.PINNED, "mlocked: its owner wants these pages to stay"
    if "ht" in vma.flags:
        return (
            Movability.HUGETLB,
            f"hugetlb pages of {vma.page_size_bytes >> 10} KiB come from per-node pools",
        )
    if vma.is_shared:
        return (
            Movability.SHARED,
            f"shared memory ({printable(vma.path) or 'anonymous'}): others may map it, too",
        )
    if vma.path.startswith("/"):
        return (
            Movability.SHARED,
            f"private mapping of the file {printable(vma.path)}: its page cache is shared",
        )
    return Movability.MOVABLE, "anonymous private memory"


def _mlocked_bytes(vmas: Iterable[Vma]) -> int:
    # VFIO charges VmLck without any mlocked mapping, so the difference is what VFIO pinned.
    return sum(vma.size_bytes for vma in vmas if "lo" in vma.flags)
