"""On which node should vCPUs run that may run on several?

1. Asked is only where the operator said so (``GuestSettings.place_vcpus``), and only for vCPUs that are not
   tied to one node already.  The vCPUs of a vNUMA cell go together; without cells, those of the guest.
2. A node takes as many vCPUs as it has physical cores: a second thread on a core costs more than remote
   memory (kMAF, PACT'14, section 3.4).  On an overcommitted host it takes its share of all vCPUs.
3. The largest choose first, each the node that holds most of its memory, of those with room for its vCPUs
   and for the rest of its memory; with equal memory, the one with most room.
4. Who fits on no node stays as it is.  Who was placed is tied to a node, and so is never placed again.
5. Guests that may not be changed now choose last: nobody carries that out, so they take nothing from others.

Limits: idle vCPUs take as much room as busy ones; other threads of the VMM stay where they are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from vmplace.model.pages import GuestPages
from vmplace.policy.home import allowed_nids, room_pages
from vmplace.policy.plan import GuestView, Mode, Snapshot, VcpuMove
from vmplace.topology.guest import PAGE_BYTES, Movability, Vcpu
from vmplace.topology.host import HostTopology


@dataclass(frozen=True)
class Group:
    """vCPUs of one guest that belong together; ``pages`` by nid, of which only ``movable`` can follow."""

    guest: GuestView
    cell: int | None
    vcpus: tuple[Vcpu, ...]
    pages: dict[int, int]
    movable: bool


def plan_vcpus(snapshot: Snapshot) -> tuple[VcpuMove, ...]:
    """Return where floating vCPUs should be, the largest groups first, of guests that may be changed."""
    host = snapshot.host
    groups = sorted(_iter_groups(snapshot), key=lambda one: (not one.guest.may_change, -len(one.vcpus)))
    capacity, room = _capacity(snapshot), room_pages(host)
    load = _load(host, _others(snapshot, groups))
    moves = []
    for group in groups:
        nid = _chosen(host, group, load, capacity, room)
        if nid is None:
            load = _sum(load, _load(host, group.vcpus))
            continue
        load[nid] += len(group.vcpus)
        room[nid] -= _missing(group, nid)
        moves.append(_move(host, group, nid))
    return tuple(moves)


def with_vcpus(snapshot: Snapshot, moves: Iterable[VcpuMove]) -> Snapshot:
    """Return the snapshot as it is once the vCPUs run where they should."""
    wanted = {(move.guest, vcpu_id): cpus for move in moves for vcpu_id, cpus in move.cpus.items()}
    guests = []
    for guest in snapshot.guests:
        name = guest.topology.name
        vcpus = tuple(replace(v, cpus=wanted.get((name, v.vcpu_id), v.cpus)) for v in guest.topology.vcpus)
        guests.append(replace(guest, topology=replace(guest.topology, vcpus=vcpus)))
    return replace(snapshot, guests=tuple(guests))


def _iter_groups(snapshot: Snapshot) -> Iterator[Group]:
    """Yield the groups that may be placed."""
    for guest in snapshot.guests:
        settings = guest.settings
        if not settings.place_vcpus or settings.mode is Mode.MANUAL or guest.pages is None:
            continue
        for cell in dict.fromkeys(vcpu.cell for vcpu in guest.topology.vcpus):
            vcpus = tuple(vcpu for vcpu in guest.topology.vcpus if vcpu.cell == cell)
            if all(len(snapshot.host.nids_of_cpus(vcpu.cpus)) > 1 for vcpu in vcpus):
                pages, movable = _memory(guest.pages, cell)
                yield Group(guest, cell, vcpus, pages, movable and settings.moves)


def _memory(pages: GuestPages, cell: int | None) -> tuple[dict[int, int], bool]:
    """Return the cell's pages by nid, and whether all of them may move."""
    ranges = [one for one in pages.ranges if one.ram.cell == cell]
    counts = dict.fromkeys(pages.nids, 0)
    for one in ranges:
        for nid, count in zip(pages.nids, one.by_node(len(pages.nids)).tolist(), strict=True):
            counts[nid] += count
    return counts, all(one.ram.movability is Movability.MOVABLE for one in ranges)


def _load(host: HostTopology, vcpus: Iterable[Vcpu]) -> dict[int, float]:
    """Return the vCPUs by node; one that may run on several counts for each in part."""
    load = dict.fromkeys(host.nids, 0.0)
    for vcpu in vcpus:
        nids = host.nids_of_cpus(vcpu.cpus)
        for nid in nids:
            load[nid] += 1 / len(nids)
    return load


def _others(snapshot: Snapshot, groups: list[Group]) -> list[Vcpu]:
    """Return the vCPUs whose place is not asked for."""
    asked = {(group.guest.topology.name, vcpu.vcpu_id) for group in groups for vcpu in group.vcpus}
    guests = [guest.topology for guest in snapshot.guests]
    return [vcpu for one in guests for vcpu in one.vcpus if (one.name, vcpu.vcpu_id) not in asked]


def _sum(load: dict[int, float], more: dict[int, float]) -> dict[int, float]:
    return {nid: count + more[nid] for nid, count in load.items()}


def _capacity(snapshot: Snapshot) -> dict[int, float]:
    """Return how many vCPUs each node takes."""
    cores = {node.nid: cores_of(snapshot.host, node.cpus) for node in snapshot.host.nodes}
    vcpus = sum(len(guest.topology.vcpus) for guest in snapshot.guests)
    crowding = max(1.0, vcpus / max(sum(cores.values()), 1))
    return {nid: count * crowding for nid, count in cores.items()}


def cores_of(host: HostTopology, cpus: Iterable[int]) -> int:
    """Return of how many physical cores the CPUs are."""
    return len({min(host.smt_siblings.get(cpu, (cpu,))) for cpu in cpus})


def _chosen(
    host: HostTopology,
    group: Group,
    load: dict[int, float],
    capacity: dict[int, float],
    room: dict[int, float],
) -> int | None:
    """Return the group's node, or None if it fits nowhere."""

    def free(nid: int) -> float:
        return capacity[nid] - load[nid]

    fitting = [
        nid
        for nid in allowed_nids(host, group.guest)
        if all(cpus_on(host, vcpu, nid) for vcpu in group.vcpus)
        and len(group.vcpus) <= free(nid)
        and (_missing(group, nid) <= room[nid] if group.movable else not _missing(group, nid))
    ]
    return max(fitting, default=None, key=lambda nid: (group.pages.get(nid, 0), free(nid), -nid))


def _missing(group: Group, nid: int) -> int:
    """Return how many of the group's pages are not on ``nid``."""
    return sum(group.pages.values()) - group.pages.get(nid, 0)


def cpus_on(host: HostTopology, vcpu: Vcpu, nid: int) -> tuple[int, ...]:
    """Return those of a vCPU's CPUs that are of a node."""
    return tuple(sorted(set(vcpu.cpus).intersection(host.node(nid).cpus)))


def _move(host: HostTopology, group: Group, nid: int) -> VcpuMove:
    cpus = {vcpu.vcpu_id: cpus_on(host, vcpu, nid) for vcpu in group.vcpus}
    before = host.nids_of_cpus(tuple({cpu for vcpu in group.vcpus for cpu in vcpu.cpus}))
    there = group.pages.get(nid, 0) * PAGE_BYTES >> 20
    who = "the vCPUs fit" if group.cell is None else f"the vCPUs of cell {group.cell} fit"
    reason = f"{who} on the cores of node {nid}, which holds {there} MiB of their memory"
    return VcpuMove(group.guest.topology.name, cpus, before, nid, reason)
