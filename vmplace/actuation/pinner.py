"""Move vCPUs: journal where a vCPU thread may run now, then pin it.

sched_setaffinity(2) narrows what the thread's cpuset allows, so libvirt's own pins and cgroups stay
as they are, and undo finds them so.
"""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vmplace.actuation.affinity import (
    LibvirtConnection,
    read_cpus,
    read_thread_start,
    set_cpus,
    set_cpus_by_libvirt,
)
from vmplace.actuation.identity import PROC, read_identity
from vmplace.actuation.journal import Journal
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
        wanted = set(cpus)
        thread_start = read_thread_start(guest.pid, vcpu.tid, self._proc)
        before = read_cpus(vcpu.tid)
        if before == wanted:
            return False
        by_libvirt = self._libvirt is not None and guest.origin == "libvirt"
        record = partial(
            self._journal.record_affinity,
            read_identity(guest, self._proc),
            vcpu_id=vcpu.vcpu_id,
            tid=vcpu.tid,
            thread_start_time=thread_start,
            by_libvirt=by_libvirt,
        )
        record(cpus=tuple(sorted(before)), set_to=tuple(sorted(wanted)))
        if self._libvirt is not None and by_libvirt:
            set_cpus_by_libvirt(self._libvirt, guest.name, vcpu.vcpu_id, wanted)
        else:
            set_cpus(vcpu.tid, wanted)
        became = read_cpus(vcpu.tid)
        if became != wanted:
            # A cpuset, or CPUs that are offline: undo must know what vmplace's doing looks like.
            record(cpus=tuple(sorted(wanted)), set_to=tuple(sorted(became)))
        return True


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
    mine = [vcpu for vcpu in guest.vcpus if vcpu.vcpu_id in move.cpus]
    try:
        for vcpu in mine:
            pinner.pin(guest, vcpu, move.cpus[vcpu.vcpu_id])
    except Exception:
        for vcpu in mine:
            with contextlib.suppress(Exception):
                pinner.pin(guest, vcpu, vcpu.cpus)
        raise
