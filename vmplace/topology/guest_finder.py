"""Which guests run on the host: one list, from the processes and from libvirt.

A guest is a process that runs KVM.  libvirt, where it is there, adds name, UUID and vNUMA cells; else
the command line has to say.
"""

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vmplace import held
from vmplace.cpu_time import thread_cpu_ns
from vmplace.errors import GuestGoneError, OutsideError, UnsupportedHostError
from vmplace.held import HELD, HeldError
from vmplace.outside import printable
from vmplace.topology.description import GuestDescription
from vmplace.topology.domain_owner import RUN, is_of_domain, reported_pids
from vmplace.topology.domain_policy import QEMU, DomainPolicy, Numatune
from vmplace.topology.guest import GuestTopology, Identity, RamRange, Vcpu
from vmplace.topology.guests_kvm import KvmProcess, KvmProcesses, Skipped, unread
from vmplace.topology.guests_libvirt import SILENCE, Libvirt, LibvirtAnswer
from vmplace.topology.monitor_layout import locate_exact
from vmplace.topology.movability import find_process_pin
from vmplace.topology.procfs import (
    PROC,
    Vma,
    read_comm,
    read_command_line,
    read_maps,
    read_smaps,
    read_start_time,
    read_status,
    read_thread_names,
    status_bytes,
    status_uid,
)
from vmplace.topology.qemu_command_line import parse_qemu
from vmplace.topology.ram import PlacedBlock, build_ranges, locate_ram, select_candidates
from vmplace.topology.resident import ResidentRam
from vmplace.topology.vcpus import find_vcpu_tids, read_affinity

LOOK_S = 5.0
"""CPU time that one look may take to read guests, except the one that it ends with.  The loop waits.

Before that, two searches for files of KVM may take half as long each, with the command lines that they read:
one of known guests and of what libvirt started, one of all other processes.
"""
BUSY = 4.0
"""On a busy host, a look may take this many times its CPU time by the clock."""
NOT_YET = "not read yet: reading the other processes takes long"
MOST_RANGES = 1024
"""Of a guest's RAM: QEMU has 256 slots for DIMMs, and vNUMA cells are some dozens."""
DEBUGFS = Path("/sys/kernel/debug")


@dataclass(frozen=True)
class GuestScan:
    """The guests, ascending by pid; what was left out and why; ``libvirt_problem`` if libvirt is away.

    ``policies``: what domains' XML says, by UUID, which no guest has but the process that libvirt started for
    it; ``awaited``: UUIDs of which libvirt has yet to tell;
    ``migrating``: UUIDs of those that leave or arrive.  ``bound``: the nodes that QEMU binds memory to, by
    process, of guests that libvirt does not describe.
    """

    guests: tuple[GuestTopology, ...]
    skipped: tuple[Skipped, ...] = ()
    libvirt_problem: str | None = None
    policies: Mapping[str, DomainPolicy] = field(default_factory=dict)
    awaited: frozenset[str] = frozenset()
    migrating: frozenset[str] = frozenset()
    bound: Mapping[Identity, Numatune] = field(default_factory=dict)


class GuestFinder:
    """Finds the guests again in every window; page tables are walked only when mappings changed.

    Guests of libvirt come first, then those that were read longest ago.  After LOOK_S the others are what
    they were in the look before.

    ``exact`` asks QEMU's monitor for the RAM layout, which taints libvirt domains.
    """

    def __init__(  # noqa: PLR0913 - seams but for the first
        self,
        libvirt: Libvirt | None = None,
        *,
        proc: Path = PROC,
        debugfs: Path = DEBUGFS,
        run: Path = RUN,
        exact: bool = False,
        beat: Callable[[], None] = lambda: None,
        cpu: Callable[[], float] = lambda: thread_cpu_ns() / 1e9,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``beat`` is called for each process that is looked at."""
        self._libvirt = libvirt
        self._proc = proc
        self._debugfs = debugfs
        self._run = run
        self._exact, self._beat = exact, beat
        self._cpu, self._clock = cpu, clock
        self._processes = KvmProcesses(proc, cpu=cpu, beat=beat)
        self._orders: dict[Identity, tuple[int, GuestDescription | None]] = {}
        self._reads = itertools.count(1)
        self._read: dict[Identity, tuple[int, GuestTopology]] = {}
        self._layouts: dict[Identity, tuple[object, tuple[RamRange, ...]]] = {}
        self._names: Mapping[Identity, str] = {}
        self._started: frozenset[int] = frozenset()
        self._verified: frozenset[int] = frozenset()
        self._resident = ResidentRam(proc)

    @property
    def asks_libvirt(self) -> bool:
        """Tell whether libvirt is asked for names and more."""
        return self._libvirt is not None

    def find(self) -> GuestScan:
        """Return all guests; one that ends or cannot be read meanwhile never spoils the others."""
        # With limits of their own: processes without KVM must not keep guests from being read.
        self._started = reported_pids(self._run)
        held.vouch(self._started | self._verified)
        processes, skipped = self._processes.find(lambda: self._limit(LOOK_S / 2), self._started)
        is_over = self._limit(LOOK_S)
        ordered = self._read_orders(processes, skipped, self._limit(LOOK_S / 2))
        processes = [process for process in processes if process.pid in ordered]
        uuids = frozenset(order.uuid for order in ordered.values() if order and order.uuid)
        answer = self._libvirt.read(uuids) if self._libvirt is not None else LibvirtAnswer()
        guests = []
        for process in self._in_turn(processes, ordered, answer):
            self._beat()
            try:
                guests.append(self._read_in_time(process, ordered[process.pid], answer, is_over))
            except GuestGoneError:
                continue
            except UnsupportedHostError as err:
                skipped.append(Skipped(process.pid, str(err)))
            except Exception as err:
                # A guest chooses its names, arguments and mappings: an error in them is that guest's alone.
                skipped.append(unread(process.pid, err))
        skipped += [Skipped(None, f"domain {name}: {reason}") for name, reason in answer.rejected.items()]
        skipped += _missing_vcpus(guests) + _missing_processes(guests, answer.descriptions)
        guests.sort(key=lambda guest: guest.pid)
        identities = {guest.identity for guest in guests}
        self._read = {key: read for key, read in self._read.items() if key in identities}
        # Also of guests that are left alone: else their page tables would be walked again each time.
        there = {process.identity for process in processes}
        self._layouts = {key: layout for key, layout in self._layouts.items() if key in there}
        self._resident.keep(identities)
        named = with_unique_names(guests, self._names)
        self._names = {guest.identity: guest.name for guest in named}
        awaited = {
            order.uuid
            for pid, order in ordered.items()
            if order
            and order.uuid
            and order.uuid not in answer.policies
            and self._is_awaited(pid, order, answer)
        }
        return GuestScan(
            named,
            tuple(skipped),
            answer.problem,
            answer.policies,
            frozenset(awaited),
            answer.migrating,
            _bound(named, ordered),
        )

    def _limit(self, cpu_s: float) -> Callable[[], bool]:
        """Return what tells whether so much CPU time is over, or as much time as a busy host takes for it."""
        until, wall_until = self._cpu() + cpu_s, self._clock() + BUSY * cpu_s
        return lambda: self._cpu() >= until or self._clock() >= wall_until

    def _read_orders(
        self, processes: Iterable[KvmProcess], skipped: list[Skipped], is_over: Callable[[], bool]
    ) -> dict[int, GuestDescription | None]:
        """Return what the command lines ask for, by pid; those that were read longest ago come first.

        Once it ``is_over``, and of a process that cannot be read now, they are what they were; one that was
        never read is skipped.
        """
        known = {process.identity: process for process in processes}
        held.keep({pid for pid, _ in known})
        self._orders = {key: order for key, order in self._orders.items() if key in known}
        ordered: dict[int, GuestDescription | None] = {}
        for identity in sorted(known, key=lambda key: (self._orders.get(key, (0, None))[0], key)):
            self._beat()
            unread_now = Skipped(identity[0], NOT_YET)
            try:
                if not is_over():
                    self._orders[identity] = next(self._reads), self._read_order(known[identity])
            except HeldError:
                unread_now = Skipped(identity[0], HELD)
                skipped.append(unread_now)
            except GuestGoneError:
                continue
            except Exception as err:
                # Memory or files may be short for a moment: a domain must not pass for another guest.
                unread_now = unread(identity[0], err)
            if identity in self._orders:
                ordered[identity[0]] = self._orders[identity][1]
            elif unread_now not in skipped:
                skipped.append(unread_now)
        return ordered

    def _in_turn(
        self,
        processes: Collection[KvmProcess],
        ordered: Mapping[int, GuestDescription | None],
        answer: LibvirtAnswer,
    ) -> list[KvmProcess]:
        domains: dict[str, list[KvmProcess]] = {}
        for process in processes:
            order = ordered[process.pid]
            name = answer.names.get(order.uuid) if order and order.uuid else None
            if name is not None and is_of_domain(process.pid, name, run=self._run, proc=self._proc):
                domains.setdefault(name, []).append(process)
        # By its control group, a child of QEMU may pass for the domain, too: it began later.
        self._verified = frozenset(
            min(found, key=lambda one: one.start_time).pid for found in domains.values()
        )
        held.vouch(self._started | self._verified)
        pids = {process.pid for found in domains.values() for process in found}

        def turn(process: KvmProcess) -> tuple[bool, int]:
            read_at, _ = self._read.get((process.pid, process.start_time), (0, None))
            return process.pid not in pids, read_at

        return sorted(processes, key=turn)

    def _read_in_time(
        self,
        process: KvmProcess,
        ordered: GuestDescription | None,
        answer: LibvirtAnswer,
        is_over: Callable[[], bool],
    ) -> GuestTopology:
        identity = process.pid, process.start_time
        if is_over():
            if identity not in self._read:
                raise UnsupportedHostError(NOT_YET)
            return self._read[identity][1]
        try:
            guest = self._read_guest(process, ordered, answer)
        except HeldError:
            if identity not in self._read:
                raise
            # It keeps its last result, and nothing is done to it until it can be read.
            return self._read[identity][1]
        self._read[identity] = next(self._reads), guest
        return guest

    def spare(self) -> None:
        """Count of small guests, too, only what is there, from the next look on: memory is short."""
        self._resident.spare()

    def holds(self, guest: GuestTopology) -> bool:
        """Tell whether a guest blocks the readers of its memory map now."""
        return held.probe(guest.pid)

    def ask_again(self) -> None:
        """Ask libvirt at the next ``find``: something changed."""
        if self._libvirt is not None:
            self._libvirt.ask_again()

    @property
    def has_news(self) -> bool:
        """Tell whether libvirt has answered since the last ``find``, which did not wait for it so long."""
        return self._libvirt is not None and self._libvirt.has_answered

    def _is_awaited(self, pid: int, order: GuestDescription, answer: LibvirtAnswer) -> bool:
        """Tell whether libvirt may have a policy for a guest that it does not report now."""
        if answer.problem is None:
            return False
        # A daemon that is down goes on having the domains that it started.
        return answer.problem == SILENCE or is_of_domain(pid, order.name, run=self._run, proc=self._proc)

    def _read_order(self, process: KvmProcess) -> GuestDescription | None:
        """Return what the command line asks for, None if it is not QEMU's; raises where it cannot be read."""
        words = read_command_line(process.pid, self._proc)
        try:
            return parse_qemu(words)
        except Exception:
            # Arguments that cannot be parsed describe nothing.
            return None

    def _read_guest(
        self,
        process: KvmProcess,
        ordered: GuestDescription | None,
        answer: LibvirtAnswer,
    ) -> GuestTopology:
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
        if claimed is None and is_known and process.pid in self._started:
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


def _missing_vcpus(guests: Iterable[GuestTopology]) -> list[Skipped]:
    return [
        Skipped(guest.pid, f"guest {guest.name}: its vCPU threads are not known yet")
        for guest in guests
        if not guest.vcpus
    ]


def _missing_processes(
    guests: Iterable[GuestTopology], domains: Mapping[str, GuestDescription]
) -> list[Skipped]:
    seen = {guest.uuid for guest in guests}
    return [
        Skipped(None, f"domain {domain.name}: no process that runs it with KVM is to be seen")
        for uuid, domain in domains.items()
        if uuid not in seen
    ]


def _bound(
    guests: Iterable[GuestTopology], ordered: Mapping[int, GuestDescription | None]
) -> dict[Identity, Numatune]:
    """Return which nodes QEMU was asked to bind memory to, as libvirt asks it for strict numatune."""
    others = [(guest.identity, ordered.get(guest.pid)) for guest in guests if guest.origin != "libvirt"]
    return {
        identity: Numatune(dict(order.bound), is_strict=True, by=QEMU)
        for identity, order in others
        if order is not None and order.bound
    }


def with_unique_names(
    guests: Iterable[GuestTopology], known: Mapping[Identity, str]
) -> tuple[GuestTopology, ...]:
    """Return the guests, each with a name of its own.

    Guests of libvirt have its name.  Another guest keeps its name in ``known``, even if it claims a different
    one later.  If several new guests claim one name, the oldest gets it; the others get their pid added.
    """
    guests = tuple(guests)
    taken = {guest.name for guest in guests if guest.origin == "libvirt"}
    names: dict[Identity, str] = {}
    others = [guest for guest in guests if guest.origin != "libvirt"]
    for guest in sorted(others, key=lambda one: (one.identity not in known, one.start_time, one.pid)):
        wanted = known.get(guest.identity, guest.name)
        name, count = wanted, 0
        while name in taken:
            name = f"{wanted[:40]}-{guest.pid}" + (f"-{count}" if count else "")
            count += 1
        taken.add(name)
        names[guest.identity] = name
    return tuple(replace(guest, name=names.get(guest.identity, guest.name)) for guest in guests)
