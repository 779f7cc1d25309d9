"""Move vCPUs: journal where a vCPU thread may run now, then pin it.

sched_setaffinity(2) narrows what the thread's cpuset allows, so libvirt's own pins and cgroups stay
as they are, and undo finds them so.
"""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vmplace.actuation.affinity import (
    KernelCpus,
    LibvirtConnection,
    ThreadCpus,
    read_thread_start,
    set_cpus_by_libvirt,
)
from vmplace.actuation.cpusets import read_cpuset_list
from vmplace.actuation.identity import PROC, read_identity
from vmplace.actuation.journal import Journal, Pin
from vmplace.errors import JournalError, VmplaceError
from vmplace.policy.plan import VcpuMove
from vmplace.topology.cpulist import parse_cpulist
from vmplace.topology.guest import GuestTopology, Vcpu
from vmplace.topology.sysfs import read_online_list, read_present_cpus
from vmplace.topology.vcpus import read_affinity

LOG = logging.getLogger(__name__)
SYSFS = Path("/sys")


class Pinner:
    """Pins vCPUs; ``libvirt`` is used for guests that libvirt runs, where it is connected."""

    def __init__(
        self,
        journal: Journal,
        *,
        libvirt: LibvirtConnection | None = None,
        proc: Path = PROC,
        sysfs: Path = SYSFS,
        threads: ThreadCpus | None = None,
    ) -> None:
        self._journal = journal
        self._threads = threads or KernelCpus()
        self._libvirt = libvirt
        self._proc, self._sysfs = proc, sysfs

    def pin(self, guest: GuestTopology, vcpu: Vcpu, cpus: Iterable[int]) -> bool:
        """Let ``vcpu`` run on ``cpus`` only; False if that was so already."""
        return self.pin_together(guest, {vcpu: cpus})

    def pin_together(
        self, guest: GuestTopology, wanted: Mapping[Vcpu, Iterable[int]], *, gives_back: bool = False
    ) -> bool:
        """Let vCPUs run on these CPUs only, all or none; False if that was so of all.

        ``gives_back``: they had these before vmplace tied them, so that needs no record.
        Raises what the first that failed raised; the others have the CPUs that they had just before.
        """
        pins = [self._pin(guest, vcpu, cpus, gives_back=gives_back) for vcpu, cpus in wanted.items()]
        pins = [pin for pin in pins if pin.cpus != pin.set_to]
        done, errors = self._carry_out(guest, pins, gives_back=gives_back)
        if errors:
            self._give_back(guest, done)
            raise errors[0]
        return bool(pins)

    def _give_back(self, guest: GuestTopology, done: Iterable[Pin]) -> None:
        """Let threads run where they did before they were pinned; not those that others have pinned since.

        Their records stay: they tell undo what a thread had just before, and it tries the others again.
        """
        for pin in done:
            with contextlib.suppress(Exception):
                if self._threads.read_cpus(pin.tid) == set(pin.set_to or ()):
                    self._set(guest, replace(pin, set_to=pin.cpus))

    def _pin(self, guest: GuestTopology, vcpu: Vcpu, cpus: Iterable[int], *, gives_back: bool) -> Pin:
        began = read_thread_start(guest.pid, vcpu.tid, self._proc)
        before = self._read_before(guest, vcpu)
        listed = read_cpuset_list(guest.pid, vcpu.tid, self._proc, self._sysfs)
        # What its cpuset leaves of them: undo must know what vmplace's doing looks like, even if this
        # process is killed before it has looked.
        left = set(cpus).intersection(cpus if listed is None else parse_cpulist(listed)) or set(cpus)
        if gives_back:
            # The kernel keeps what is not in its cpuset just now.
            left = set(cpus)
        if listed is None or self._is_by_libvirt(guest):
            # libvirt narrows the cpuset itself.
            listed = read_online_list(self._sysfs)
        return Pin(vcpu.vcpu_id, vcpu.tid, began, before, tuple(sorted(left)), listed or "")

    def _read_before(self, guest: GuestTopology, vcpu: Vcpu) -> tuple[int, ...]:
        """Return where a thread may run, CPUs that are offline too: sched_getaffinity(2) lacks these."""
        now = self._threads.read_cpus(vcpu.tid)
        try:
            allowed = read_affinity(guest.pid, vcpu.tid, self._proc)
        except VmplaceError:
            allowed = ()
        # An untied thread is also allowed CPUs that this machine cannot have.
        return tuple(sorted(now.union(read_present_cpus(self._sysfs).intersection(allowed))))

    def _carry_out(
        self, guest: GuestTopology, pins: list[Pin], *, gives_back: bool
    ) -> tuple[list[Pin], list[Exception]]:
        """Pin each thread; return those that were pinned, with what they got, and what the others raised."""
        done: list[Pin] = []
        errors: list[Exception] = []
        if not pins:
            return done, errors
        if not gives_back:
            # On disk together: a guest may have a thousand vCPUs, and each write takes milliseconds.
            self._record(guest, pins)
        for pin in pins:
            try:
                self._set(guest, pin)
                done.append(replace(pin, set_to=tuple(sorted(self._threads.read_cpus(pin.tid)))))
            except Exception as err:
                errors.append(err)
        if gives_back:
            if not errors:
                self._note_given_back(guest, pins)
            return done, errors
        # CPUs that are offline, or a cpuset that became smaller meanwhile.
        wanted = {pin.tid: pin.set_to for pin in pins}
        narrowed = [pin for pin in done if pin.set_to != wanted[pin.tid]]
        if narrowed:
            try:
                self._record(guest, narrowed)
            except Exception as err:
                errors.append(err)
        return done, errors

    def _note_given_back(self, guest: GuestTopology, pins: Iterable[Pin]) -> None:
        """Note that vCPUs float again; until then the next agent knows that they are to be given back."""
        try:
            self._record(guest, pins)
        except JournalError as err:
            LOG.warning('guest=%s reason="its vCPUs float again without a record: %s"', guest.name, err)

    def _record(self, guest: GuestTopology, pins: Iterable[Pin]) -> None:
        identity, by_libvirt = read_identity(guest, self._proc), self._is_by_libvirt(guest)
        self._journal.record_affinities(identity, pins, by_libvirt=by_libvirt)

    def _set(self, guest: GuestTopology, pin: Pin) -> None:
        cpus = pin.set_to or ()
        if self._libvirt is not None and self._is_by_libvirt(guest):
            set_cpus_by_libvirt(self._libvirt, guest.name, pin.vcpu_id, cpus)
        else:
            self._threads.set_cpus(pin.tid, cpus)

    def _is_by_libvirt(self, guest: GuestTopology) -> bool:
        return self._libvirt is not None and guest.origin == "libvirt"


@dataclass(frozen=True)
class PinOutcome:
    """``pinned`` was carried out; ``refused`` guests have the CPUs they had, and ``failures`` tells why."""

    pinned: tuple[VcpuMove, ...] = ()
    refused: frozenset[str] = frozenset()
    failures: tuple[str, ...] = ()


def pin_all(pinner: Pinner, moves: Iterable[VcpuMove], guests: Mapping[str, GuestTopology]) -> PinOutcome:
    """Pin the vCPUs of each move, all or none; one guest's failure stops no other."""
    pinned, refused, failures = [], set(), []
    for move in moves:
        try:
            if _pin_together(pinner, guests[move.guest], move):
                pinned.append(move)
        except Exception as err:
            refused.add(move.guest)
            failures.append(f"guest {move.guest}: {err}")
    return PinOutcome(tuple(pinned), frozenset(refused), tuple(failures))


def _pin_together(pinner: Pinner, guest: GuestTopology, move: VcpuMove) -> bool:
    """Pin the vCPUs of a move, all or none; False if they run there already."""
    mine = {vcpu: move.cpus[vcpu.vcpu_id] for vcpu in guest.vcpus if vcpu.vcpu_id in move.cpus}
    return pinner.pin_together(guest, mine, gives_back=move.nid is None)
