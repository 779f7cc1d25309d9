"""What did the lab's meter count: DRAM reads and writes by guest, CPU and memory node?

The meter is a plugin of the emulator (lab/meter/plugin.c).  It shows its counters to the emulated host
as an ivshmem PCI device, and outside of it as the file behind that; both hold the layout of
lab/meter/abi.h.  Where neither exists, the host is no emulated one, and that is said.
"""

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vmplace.errors import UnsupportedHostError, VmplaceError

Counts = npt.NDArray[np.int64]

GUEST_HOST = 0
"""Guest number of the host itself: kernel, agent, and what QEMU does on a guest's behalf."""

GUEST_UNKNOWN = 63
"""Guest number of all guests that did not (yet) say which they are."""

MAGIC = int.from_bytes(b"VMPMETER", "little")
ABI = 4
REGION_BYTES = 4 << 20
MAX_CPUS, MAX_NODES, MAX_GUESTS = 64, 16, 64

LEVEL = np.dtype([("bytes", "<u4"), ("ways", "<u4")])
MACHINE = np.dtype(
    [
        ("cpu_count", "<u4"),
        ("node_count", "<u4"),
        ("private_cache", LEVEL),
        ("shared_cache", LEVEL),
        ("nids", "<i4", MAX_NODES),
        ("cpu_nids", "<i4", MAX_CPUS),
    ]
)
HEADER = np.dtype(
    [
        ("magic", "<u8"),
        ("abi", "<u4"),
        ("sequence", "<u4"),
        ("cpus_offset", "<u4"),
        ("cpu_bytes", "<u4"),
        ("machine", MACHINE),
        ("enabled", "<u4"),
        ("exit_count", "<u4"),
        ("switches", "<u8"),
        ("mark", "<u8"),
        ("marks", "<u8"),
        ("exits", "<u8", 16),
        ("timed", "<u4"),
        ("pad", "<u4"),
    ]
)
DRAM = np.dtype([("reads", "<u8"), ("writes", "<u8")])
GUEST = np.dtype(
    [
        ("instructions", "<u8"),
        ("loads", "<u8"),
        ("stores", "<u8"),
        ("stall_ns", "<u8"),
        ("dram", DRAM, MAX_NODES),
        ("work", "<u8"),
        ("reserved", "<u8", 3),
        ("fetched", "<u8", MAX_NODES),
        ("kernel", DRAM, MAX_NODES),
    ]
)
CPU = np.dtype(
    [
        ("vmcb", "<u8"),
        ("guest", "<u4"),
        ("pad", "<u4"),
        ("unplaced", "<u8"),
        ("unseen", "<u8"),
        ("reserved", "<u8", 4),
        ("guests", GUEST, MAX_GUESTS),
    ]
)


@dataclass(frozen=True)
class MeterReading:
    """The counters at one moment, or what they grew by between two.

    ``reads`` and ``writes`` hold lines of 64 bytes by [guest, cpu, index in ``nids``]; ``instructions``,
    ``loads`` and ``stores`` (before the modelled caches) are by [guest, cpu].  ``kernel_reads`` and
    ``kernel_writes`` are those of them for which a guest's kernel was to blame, by its address.  ``unplaced``
    [cpu] are DRAM accesses outside all nodes' memory, ``unseen`` [cpu] accesses (before caches) whose address
    is not known.  Guests are numbered as they said themselves (magic.h).

    ``fetched`` [guest, cpu, index in ``nids``] are instructions by the node that their code lies on.

    While ``timed``, ``stall_ns`` [guest, cpu] is how long CPUs wait for DRAM, in emulated time, which is a
    model.  ``work`` [guest, cpu] is what guests say they have done, in units of their own.
    """

    nids: tuple[int, ...]
    cpu_nids: tuple[int, ...]
    enabled: bool
    timed: bool
    switches: int
    mark: int
    marks: int
    reads: Counts
    writes: Counts
    instructions: Counts
    loads: Counts
    stores: Counts
    unplaced: Counts
    unseen: Counts
    kernel_reads: Counts
    kernel_writes: Counts
    stall_ns: Counts
    work: Counts
    fetched: Counts

    @property
    def accesses(self) -> Counts:
        """Return DRAM reads and writes together, by [guest, cpu, index in ``nids``]."""
        return self.reads + self.writes

    @property
    def user_accesses(self) -> Counts:
        """Return what of ``accesses`` programs did: a kernel's ticks say nothing of what its guest is for."""
        return self.accesses - self.kernel_reads - self.kernel_writes

    @property
    def unattributed_share(self) -> float:
        """Return how much of what happened has no place or no owner: the largest of three shares.

        Accesses whose address is not known, of all; fetched or written lines outside all nodes' memory, and
        lines of guests that did not say who they are, of all.
        """
        lines = max(int(self.accesses.sum()), 1)
        made = max(int(self.loads.sum() + self.stores.sum()), 1)
        nobodys = int(self.accesses[GUEST_UNKNOWN].sum())
        return max(int(self.unseen.sum()) / made, int(self.unplaced.sum()) / lines, nobodys / lines)

    @property
    def seen_guests(self) -> tuple[int, ...]:
        """Return the guest numbers (without the host's) that something was counted for."""
        counted = np.flatnonzero(self.loads.sum(axis=1) + self.stores.sum(axis=1))
        return tuple(int(guest) for guest in counted if guest != GUEST_HOST)

    def since(self, earlier: "MeterReading") -> "MeterReading":
        """Return the growth since ``earlier``; flags are this reading's.

        Raises VmplaceError if the machine was restored from a snapshot in between.
        """
        if self.nids != earlier.nids or self.cpu_nids != earlier.cpu_nids:
            raise VmplaceError(
                "two readings of the meter are of different machines", hint="read it again, from one machine"
            )
        grown = {name: getattr(self, name) - getattr(earlier, name) for name in _COUNTERS}
        if self.switches < earlier.switches or any((grown[name] < 0).any() for name in _COUNTERS):
            raise VmplaceError(
                "the meter's counters went backwards",
                hint="the emulated host was restored from a snapshot: start over with a new reading",
            )
        flags = {name: getattr(self, name) for name in ("enabled", "timed", "switches", "mark", "marks")}
        return MeterReading(self.nids, self.cpu_nids, **flags, **grown)


@dataclass(frozen=True)
class GuestTotals:
    """What was counted of one guest on all CPUs, as in ``MeterReading``, at one moment.

    ``local_lines``: those of ``lines`` that the CPU's own node served.  ``lines_by_cpu`` and ``work_by_cpu``:
    ``lines`` and ``work`` of each CPU.
    """

    enabled: bool
    timed: bool
    switches: int
    lines: int
    local_lines: int
    instructions: int
    stall_ns: int
    work: int
    lines_by_cpu: tuple[int, ...] = ()
    work_by_cpu: tuple[int, ...] = ()


_COUNTERS = (
    "reads",
    "writes",
    "instructions",
    "loads",
    "stores",
    "unplaced",
    "unseen",
    "kernel_reads",
    "kernel_writes",
    "stall_ns",
    "work",
    "fetched",
)


def find_device(sysfs: Path = Path("/sys")) -> Path:
    """Return the file of the ivshmem device's memory; raises UnsupportedHostError if there is none."""
    for device in sorted((sysfs / "bus/pci/devices").glob("*")):
        identity = [(device / name).read_text().strip() for name in ("vendor", "device")]
        if identity == ["0x1af4", "0x1110"] and (device / "resource2").exists():
            return device / "resource2"
    raise UnsupportedHostError(
        "this host has no meter", hint="the meter is part of the emulated host: vmplace lab boot"
    )


def parse_region(region: bytes | mmap.mmap) -> MeterReading:
    """Return the reading that the bytes of a region hold; raises UnsupportedHostError if they hold none."""
    if len(region) < REGION_BYTES:
        raise UnsupportedHostError(
            f"{len(region)} bytes are too short for a meter's region", hint="boot with the lab's own QEMU"
        )
    header = np.frombuffer(region, HEADER, count=1)[0]
    if header["magic"] != MAGIC:
        raise UnsupportedHostError(
            "the shared memory of this host holds no meter", hint="start the emulator with the meter's plugin"
        )
    if header["abi"] != ABI:
        raise UnsupportedHostError(
            f"the meter speaks version {header['abi']} of its layout, this reader {ABI}",
            hint="build the lab and the vmplace package from one tree: vmplace lab build",
        )
    machine = header["machine"]
    cpus, nodes = int(machine["cpu_count"]), int(machine["node_count"])
    # Copied, because the counters go on while these are looked at; signed, so that differences are safe.
    rows = np.frombuffer(region, CPU, count=cpus, offset=int(header["cpus_offset"])).copy()
    dram = rows["guests"]["dram"][:, :, :nodes].swapaxes(0, 1)
    kernel = rows["guests"]["kernel"][:, :, :nodes].swapaxes(0, 1)
    guests = rows["guests"]
    return MeterReading(
        nids=tuple(machine["nids"][:nodes].tolist()),
        cpu_nids=tuple(machine["cpu_nids"][:cpus].tolist()),
        enabled=bool(header["enabled"]),
        timed=bool(header["timed"]),
        switches=int(header["switches"]),
        mark=int(header["mark"]),
        marks=int(header["marks"]),
        reads=dram["reads"].astype(np.int64),
        writes=dram["writes"].astype(np.int64),
        instructions=guests["instructions"].T.astype(np.int64),
        loads=guests["loads"].T.astype(np.int64),
        stores=guests["stores"].T.astype(np.int64),
        unplaced=rows["unplaced"].astype(np.int64),
        unseen=rows["unseen"].astype(np.int64),
        kernel_reads=kernel["reads"].astype(np.int64),
        kernel_writes=kernel["writes"].astype(np.int64),
        stall_ns=guests["stall_ns"].T.astype(np.int64),
        work=guests["work"].T.astype(np.int64),
        fetched=guests["fetched"][:, :, :nodes].swapaxes(0, 1).astype(np.int64),
    )


class MeterCounters:
    """Reads the meter's counters; a context manager that holds the region mapped."""

    def __init__(self, path: Path | None = None) -> None:
        """Map ``path``, or the device of this host; raises UnsupportedHostError without a meter."""
        self.path = path or find_device()
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UnsupportedHostError(f"cannot open the meter: {error}", hint="run as root") from error
        try:
            self._region = mmap.mmap(fd, REGION_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise UnsupportedHostError(
                f"cannot map {self.path}: {error}", hint="boot with the lab's own QEMU"
            ) from error
        finally:
            os.close(fd)
        self.read()

    def read(self) -> MeterReading:
        """Return the counters as they are now."""
        for _ in range(1000):
            before = self._sequence()
            reading = parse_region(self._region)
            if before % 2 == 0 and self._sequence() == before:
                return reading
        raise VmplaceError("the meter does not finish writing its header", hint="restart the emulated host")

    def totals(self, number: int) -> GuestTotals:
        """Return one guest's counters: a hundredth of the work of ``read``, which counts on emulated CPUs."""
        header = np.frombuffer(self._region, HEADER, count=1)[0]
        machine, start = header["machine"], int(header["cpus_offset"])
        cpus = int(machine["cpu_count"])
        rows = np.frombuffer(self._region, CPU, count=cpus, offset=start)["guests"][:, number]
        lines = rows["dram"]["reads"] + rows["dram"]["writes"]
        # Of nodes that there are not, nothing is counted.
        is_local = machine["cpu_nids"][:cpus, None] == machine["nids"]
        flags = bool(header["enabled"]), bool(header["timed"]), int(header["switches"])
        instructions, stall_ns, work = (
            int(rows[name].sum()) for name in ("instructions", "stall_ns", "work")
        )
        by_cpu = tuple(lines.sum(axis=1).tolist()), tuple(rows["work"].tolist())
        total, local = int(lines.sum()), int(lines[is_local].sum())
        return GuestTotals(*flags, total, local, instructions, stall_ns, work, *by_cpu)

    def _sequence(self) -> int:
        return int(np.frombuffer(self._region, HEADER, count=1)[0]["sequence"])

    def close(self) -> None:
        """Unmap the region."""
        self._region.close()

    def __enter__(self) -> "MeterCounters":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
