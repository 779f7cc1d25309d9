"""Move vCPUs: journal where a vCPU thread may run now, then pin it.

sched_setaffinity(2) narrows what the thread's cpuset allows, so libvirt's own pins and cgroups stay
as they are, and undo finds them so.
"""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vmplace.actuation.affinity import (
    LibvirtConnection,
    read_cpus,
    read_thread_start,
    set_cpus,
    set_cpus_by_libvirt,
)
from vmplace.actuation.identity import PROC, read_identity
from vmplace.actuation.journal import Journal, Pin
from vmplace.policy.plan import VcpuMove
from vmplace.topology.guest import GuestTopology, Vcpu


class Pinner:
    """Pins vCPUs; ``libvirt`` is used for guests that libvirt runs, where it is connected."""

    def __init__(
        self, journal: Journal, *, libvirt: LibvirtConnection | None = None, proc: Path = PROC
    ) -> None:
        self._journal = journal
        self._libvirt = libvirt
        self._proc = proc

    def pin(self, guest: GuestTopology, vcpu: Vcpu, cpus: Iterable[int]) -> bool:
        """Let ``vcpu`` run on ``cpus`` only; False if that was so already."""
        return self.pin_together(guest, {vcpu: cpus})

    def pin_together(self, guest: GuestTopology, wanted: Mapping[Vcpu, Iterable[int]]) -> bool:
        """Let vCPUs run on these CPUs only; False if that was so of all.

        Once one fails the others are tried all the same; raises what the first of them raised.
        """
        return self._carry_out(guest, [self._pin(guest, vcpu, cpus) for vcpu, cpus in wanted.items()])

    def give_back(self, guest: GuestTopology, vcpus: Iterable[Vcpu]) -> None:
        """Let vCPUs run where they did when they were looked up, as far as that goes."""
        pins = []
        for vcpu in vcpus:
            with contextlib.suppress(Exception):
                pins.append(self._pin(guest, vcpu, vcpu.cpus))
        with contextlib.suppress(Exception):
            self._carry_out(guest, pins)

    def _pin(self, guest: GuestTopology, vcpu: Vcpu, cpus: Iterable[int]) -> Pin:
        began = read_thread_start(guest.pid, vcpu.tid, self._proc)
        before = tuple(sorted(read_cpus(vcpu.tid)))
        return Pin(vcpu.vcpu_id, vcpu.tid, began, before, tuple(sorted(set(cpus))))

    def _carry_out(self, guest: GuestTopology, pins: Iterable[Pin]) -> bool:
        pins = [pin for pin in pins if pin.cpus != pin.set_to]
        if not pins:
            return False
        # On disk together: a guest may have a thousand vCPUs, and each write takes milliseconds.
        self._record(guest, pins)
        errors, narrowed = [], []
        for pin in pins:
            try:
                self._set(guest, pin)
                became = tuple(sorted(read_cpus(pin.tid)))
            except Exception as err:
                errors.append(err)
                continue
            if became != pin.set_to:
                # A cpuset, or CPUs that are offline: undo must know what vmplace's doing looks like.
                narrowed.append(replace(pin, cpus=pin.set_to or (), set_to=became))
        if narrowed:
            self._record(guest, narrowed)
        if errors:
            raise errors[0]
        return True

    def _record(self, guest: GuestTopology, pins: Iterable[Pin]) -> None:
        identity = read_identity(guest, self._proc)
        self._journal.record_affinities(identity, pins, by_libvirt=self._is_by_libvirt(guest))

    def _set(self, guest: GuestTopology, pin: Pin) -> None:
        cpus = pin.set_to or ()
        if self._libvirt is not None and self._is_by_libvirt(guest):
            set_cpus_by_libvirt(self._libvirt, guest.name, pin.vcpu_id, cpus)
        else:
            set_cpus(pin.tid, cpus)

    def _is_by_libvirt(self, guest: GuestTopology) -> bool:
        return self._libvirt is not None and guest.origin == "libvirt"


@dataclass(frozen=True)
class PinOutcome:
    """``pinned`` was carried out; ``refused`` guests have the CPUs they had, and ``failures`` tells why."""

    pinned: tuple[VcpuMove, ...] = ()
    refused: frozenset[str] = frozenset()
    failures: tuple[str, ...] = ()

    @property
    def vcpus(self) -> int:
        """Return how many vCPUs were pinned."""
        return sum(len(move.cpus) for move in self.pinned)


def pin_all(pinner: Pinner, moves: Iterable[VcpuMove], guests: Mapping[str, GuestTopology]) -> PinOutcome:
    """Pin the vCPUs of each move, all or none; one guest's failure stops no other."""
    pinned, refused, failures = [], set(), []
    for move in moves:
        try:
            _pin_together(pinner, guests[move.guest], move)
        except Exception as err:
            refused.add(move.guest)
            failures.append(f"guest {move.guest}: {err}")
        else:
            pinned.append(move)
    return PinOutcome(tuple(pinned), frozenset(refused), tuple(failures))


def _pin_together(pinner: Pinner, guest: GuestTopology, move: VcpuMove) -> None:
    """Pin vCPUs that belong together; gives those that were pinned their CPUs back if one cannot be."""
    mine = {vcpu: move.cpus[vcpu.vcpu_id] for vcpu in guest.vcpus if vcpu.vcpu_id in move.cpus}
    try:
        pinner.pin_together(guest, mine)
    except Exception:
        pinner.give_back(guest, mine)
        raise
