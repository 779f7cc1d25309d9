"""What is one guest: which vCPUs has it, and where is its RAM?  Read of its process.

What libvirt says of a domain goes before the command line.  A process that claims to be a domain is read only
if libvirt started it as that.  Page tables are walked only when mappings changed.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from vmplace import held
from vmplace.errors import GuestGoneError, OutsideError, UnsupportedHostError
from vmplace.outside import printable
from vmplace.topology.description import GuestDescription
from vmplace.topology.domain_owner import RUN, is_of_domain
from vmplace.topology.guest import GuestTopology, Identity, RamRange, Vcpu
from vmplace.topology.guests_kvm import KvmProcess
from vmplace.topology.guests_libvirt import Libvirt, LibvirtAnswer
from vmplace.topology.monitor_layout import locate_exact
from vmplace.topology.movability import find_process_pin
from vmplace.topology.procfs import (
    PROC,
    Vma,
    read_comm,
    read_maps,
    read_smaps,
    read_start_time,
    read_status,
    read_thread_names,
    status_bytes,
    status_uid,
)
from vmplace.topology.ram import PlacedBlock, build_ranges, locate_ram, select_candidates
from vmplace.topology.resident import ResidentRam
from vmplace.topology.vcpus import find_vcpu_tids, read_affinity

MOST_RANGES = 1024
"""Of a guest's RAM: QEMU has 256 slots for DIMMs, and vNUMA cells are some dozens."""
DEBUGFS = Path("/sys/kernel/debug")


class GuestReader:
    """Reads guests, one by one, and keeps where their RAM was found.

    ``exact`` asks QEMU's monitor for the RAM layout, which taints libvirt domains.
    """

    def __init__(
        self,
        libvirt: Libvirt | None = None,
        *,
        proc: Path = PROC,
        debugfs: Path = DEBUGFS,
        run: Path = RUN,
        exact: bool = False,
    ) -> None:
        self._libvirt = libvirt
        self._proc = proc
        self._debugfs = debugfs
        self._run = run
        self._exact = exact
        self._layouts: dict[Identity, tuple[object, tuple[RamRange, ...]]] = {}
        self._resident = ResidentRam(proc)

    def spare(self) -> None:
        """Count of small guests, too, only what is there, from the next look on: memory is short."""
        self._resident.spare()

    def keep(self, processes: Collection[Identity], guests: Collection[Identity]) -> None:
        """Forget all other processes, and what is resident of those that are no ``guests``."""
        # Also of guests that are left alone: else their page tables would be walked again each time.
        self._layouts = {key: layout for key, layout in self._layouts.items() if key in processes}
        self._resident.keep(guests)

    def read(
        self,
        process: KvmProcess,
        ordered: GuestDescription | None,
        answer: LibvirtAnswer,
        started: Collection[int],
    ) -> GuestTopology:
        """Return the guest that a process runs.

        ``ordered``: what its command line asks for; ``answer``: what libvirt says of its domains;
        ``started``: the processes that libvirt started.  Raises GuestGoneError, UnsupportedHostError.
        """
        uuid = ordered.uuid if ordered is not None and ordered.uuid else ""
        domain = answer.descriptions.get(uuid)
        # A domain whose XML cannot be read still has a policy and a process.
        claimed = domain.name if domain is not None else answer.names.get(uuid)
        if claimed is not None and not is_of_domain(process.pid, claimed, run=self._run, proc=self._proc):
            # The domain's real process is not affected.  Nothing that this one claims is trusted.
            name = printable(claimed)
            raise UnsupportedHostError(
                f"it claims to be domain {name}, but libvirt did not start it as that domain: left alone"
            )
        is_known = self._libvirt is not None and answer.problem is None
        if claimed is None and is_known and process.pid in started:
            # A QEMU that its guest took over may change its command line: its domain's policy must hold.
            raise UnsupportedHostError(
                "libvirt started it, but not as the domain it claims to be: left alone"
            )
        description = domain or ordered or GuestDescription("")
        status = read_status(process.pid, self._proc)
        guest = GuestTopology(
            name=description.name or f"{read_comm(process.pid, self._proc)}-{process.pid}",
            pid=process.pid,
            start_time=process.start_time,
            origin="kvm" if domain is None else "libvirt",
            vcpus=self._read_vcpus(process, description),
            ram=self._read_ram(process, description, status, is_domain=domain is not None),
            cells=description.cells,
            uuid=description.uuid,
            uid=status_uid(status),
        )
        check_identity(guest, self._proc)
        return guest

    def _read_vcpus(self, process: KvmProcess, description: GuestDescription) -> tuple[Vcpu, ...]:
        threads = read_thread_names(process.pid, self._proc)
        tids = find_vcpu_tids(process.pid, process.descriptors, threads, self._proc, self._debugfs)
        # In one step: a guest may have thousands of threads.
        cpus = held.bounded(
            process.pid,
            lambda: {tid: read_affinity(process.pid, tid, self._proc) for tid in tids.values()},
        )
        return tuple(
            Vcpu(vcpu_id, tid, cpus[tid], description.cell_of_vcpu(vcpu_id)) for vcpu_id, tid in tids.items()
        )

    def _read_ram(
        self,
        process: KvmProcess,
        description: GuestDescription,
        status: Mapping[str, str],
        *,
        is_domain: bool,
    ) -> tuple[RamRange, ...]:
        whole = self._read_whole_ram(process, description, status, is_domain=is_domain)
        there = status_bytes(status, "VmRSS") + status_bytes(status, "HugetlbPages")
        return self._resident.ranges((process.pid, process.start_time), whole, there)

    def _read_whole_ram(
        self,
        process: KvmProcess,
        description: GuestDescription,
        status: Mapping[str, str],
        *,
        is_domain: bool,
    ) -> tuple[RamRange, ...]:
        # Not the mappings themselves: a process may have thousands, and this is kept for each guest.
        cheap = hash(tuple(select_candidates(read_maps(process.pid, self._proc))))
        # Everything that the ranges follow from; VmLck changes when a mapping is mlocked.
        key = (
            cheap,
            description,
            status.get("VmLck"),
            status.get("VmPin"),
            sorted(set(process.descriptors.values())),
        )
        identity = process.pid, process.start_time
        known = self._layouts.get(identity)
        if known is not None and known[0] == key:
            return _checked(known[1])
        vmas = read_smaps(process.pid, self._proc)
        placed = self._locate(select_candidates(vmas), description, is_domain=is_domain)
        ram_bytes = sum(block.size_bytes for block in placed)
        pin = find_process_pin(process.descriptors, status, vmas, ram_bytes)
        ranges = build_ranges(placed[: MOST_RANGES + 1], pin)
        self._layouts[identity] = key, ranges
        return _checked(ranges)

    def _locate(
        self, candidates: list[Vma], description: GuestDescription, *, is_domain: bool
    ) -> list[PlacedBlock]:
        placed: list[PlacedBlock] = []
        if self._exact and is_domain and self._libvirt is not None and description.uuid:
            placed = _ask_layout(self._libvirt, description.uuid, candidates, description)
        return placed or locate_ram(candidates, description)


def _checked(ranges: tuple[RamRange, ...]) -> tuple[RamRange, ...]:
    """Return the ranges of a guest's RAM; raises OutsideError for more than are kept for anybody."""
    if len(ranges) > MOST_RANGES:
        raise OutsideError(f"its RAM lies in more than {MOST_RANGES} pieces", hint="guests have some dozens")
    return ranges


def _ask_layout(
    libvirt: Libvirt, uuid: str, candidates: list[Vma], description: GuestDescription
) -> list[PlacedBlock]:
    """Return what the monitor says; empty while libvirt or QEMU does not answer."""
    try:
        blocks = libvirt.ask_monitor(uuid, "info ramblock")
        view = libvirt.ask_monitor(uuid, "info mtree -f")
    except UnsupportedHostError:
        return []
    return locate_exact(blocks, view, candidates, description)


def check_identity(guest: GuestTopology, proc: Path = PROC) -> None:
    """Raise GuestGoneError unless the guest's pid still is the process it was."""
    if read_start_time(guest.pid, proc) != guest.start_time:
        raise GuestGoneError(f"guest {guest.name} ended; its pid {guest.pid} is another process now")
