"""What is a guest made of: its process, vCPU threads, RAM layout, vNUMA cells."""

from dataclasses import dataclass
from enum import Enum

from vmplace.outside import printable

PAGE_BYTES = 4096
HUGE_BYTES = 2 << 20
MOST_VCPU_ID = (1 << 14) - 1
"""KVM_MAX_VCPU_IDS at its largest (arch/x86/include/asm/kvm_host.h)."""
Identity = tuple[int, int]
"""Of a process: its pid and start time, which no later one shares until reboot."""


class Movability(Enum):
    """May pages of a RAM range change their node, and if not, why not (docs/how-it-works.md)."""

    MOVABLE = "movable"
    SHARED = "shared memory"
    HUGETLB = "hugetlb"
    PINNED = "pinned"
    GUEST_MEMFD = "guest_memfd"


@dataclass(frozen=True)
class Vcpu:
    """One vCPU thread.  ``cpus`` is its present affinity, ascending; ``cell`` its vNUMA cell or None."""

    vcpu_id: int
    tid: int
    cpus: tuple[int, ...]
    cell: int | None = None


@dataclass(frozen=True)
class RamRange:
    """A run of guest RAM that is contiguous in hva, and in gfn where that is known.

    ``base_gfn`` is None where the layout cannot be learnt without the VMM's help.  ``npages`` counts
    4 KiB pages whatever the page size of the backing (``page_size_bytes``) is.
    """

    hva: int
    npages: int
    base_gfn: int | None
    page_size_bytes: int
    movability: Movability
    reason: str
    cell: int | None = None

    @property
    def size_bytes(self) -> int:
        """Return the length in bytes."""
        return self.npages * PAGE_BYTES


@dataclass(frozen=True)
class Cell:
    """One vNUMA cell: what the guest believes to be a node."""

    cell_id: int
    vcpu_ids: tuple[int, ...]
    memory_bytes: int


@dataclass(frozen=True)
class GuestTopology:
    """One guest.  ``start_time`` (clock ticks since boot, field 22 of /proc/PID/stat) tells a pid's reuse.

    ``origin`` is "libvirt" or "kvm" (a KVM process found without libvirt).  ``name`` is printable and short:
    whoever starts a guest chooses it, and it goes to logs, terminals and files.  ``uid`` is the real user of
    the process, None where that is not known.
    """

    name: str
    pid: int
    start_time: int
    origin: str
    vcpus: tuple[Vcpu, ...]
    ram: tuple[RamRange, ...]
    cells: tuple[Cell, ...] = ()
    uuid: str | None = None
    uid: int | None = None

    def __post_init__(self) -> None:
        """Make the name printable, wherever it came from."""
        object.__setattr__(self, "name", printable(self.name))

    @property
    def identity(self) -> Identity:
        """Return (pid, start time), which no later process shares until reboot."""
        return self.pid, self.start_time
