"""Which guests run on the host: one list, from the processes and from libvirt.

A guest is a process that runs KVM.  libvirt, where it is there, adds name, UUID and vNUMA cells; else
the command line has to say.
"""

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vmplace import held
from vmplace.cpu_time import thread_cpu_ns
from vmplace.errors import GuestGoneError, UnsupportedHostError
from vmplace.held import HELD, HeldError
from vmplace.topology.description import GuestDescription
from vmplace.topology.domain_owner import RUN, is_of_domain, reported_pids
from vmplace.topology.domain_policy import QEMU, DomainPolicy, Numatune
from vmplace.topology.guest import GuestTopology, Identity
from vmplace.topology.guest_names import with_unique_names
from vmplace.topology.guest_reader import DEBUGFS, GuestReader
from vmplace.topology.guests_kvm import KvmProcess, KvmProcesses, Skipped, unread
from vmplace.topology.guests_libvirt import SILENCE, Libvirt, LibvirtAnswer
from vmplace.topology.procfs import PROC, read_command_line
from vmplace.topology.qemu_command_line import parse_qemu

LOOK_S = 5.0
"""CPU time that one look may take to read guests, except the one that it ends with.  The loop waits.

Before that, two searches for files of KVM may take half as long each, with the command lines that they read:
one of known guests and of what libvirt started, one of all other processes.
"""
BUSY = 4.0
"""On a busy host, a look may take this many times its CPU time by the clock."""
NOT_YET = "not read yet: reading the other processes takes long"


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
        self._run = run
        self._beat = beat
        self._cpu, self._clock = cpu, clock
        self._processes = KvmProcesses(proc, cpu=cpu, beat=beat)
        self._orders: dict[Identity, tuple[int, GuestDescription | None]] = {}
        self._reads = itertools.count(1)
        self._read: dict[Identity, tuple[int, GuestTopology]] = {}
        self._names: Mapping[Identity, str] = {}
        self._started: frozenset[int] = frozenset()
        self._verified: frozenset[int] = frozenset()
        self._reader = GuestReader(libvirt, proc=proc, debugfs=debugfs, run=run, exact=exact)

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
        self._reader.keep({process.identity for process in processes}, identities)
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
            guest = self._reader.read(process, ordered, answer, self._started)
        except HeldError:
            if identity not in self._read:
                raise
            # It keeps its last result, and nothing is done to it until it can be read.
            return self._read[identity][1]
        self._read[identity] = next(self._reads), guest
        return guest

    def spare(self) -> None:
        """Count of small guests, too, only what is there, from the next look on: memory is short."""
        self._reader.spare()

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
