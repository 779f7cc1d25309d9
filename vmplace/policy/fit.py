"""Does a guest of some size fit on one node, and what has to move elsewhere so that it does?

1. A node takes a guest for whose vCPUs it has free physical cores, and for whose memory it has room: what is
   free or holds file cache that nobody used lately, without a reserve (home.py).  vCPUs of other
   guests count in full, busy or not; one that may run on several nodes counts for each in part.
2. Where cores are free but room lacks, memory of other guests goes elsewhere: first what lies away from its
   own vCPUs and can go to them, then what was not touched lately, at last what was.
3. It goes where the guest may be, its vCPUs' nodes first, then the nearest, as far as these have free memory.
4. Of several nodes that one is chosen for which least that is in use must leave, then least in all.

Limits: vCPUs are not moved to free cores.  A binding of one vNUMA cell to nodes is only seen when pages move.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vmplace.model.traffic import vcpu_shares
from vmplace.policy.home import RESERVE_RATIO, allowed_nids, room_pages
from vmplace.policy.plan import GuestView, Mode
from vmplace.topology.guest import PAGE_BYTES, Movability
from vmplace.topology.host import HostTopology, Node


@dataclass(frozen=True)
class Flavour:
    """The size of a guest: as many vCPUs, and bytes of memory."""

    vcpus: int
    memory_bytes: int


@dataclass(frozen=True)
class Tenant:
    """A guest whose memory may leave: bytes by nid that were not touched lately (``cold``) and that were.

    ``worker_nids``: where its vCPUs may run.  ``allowed_nids``: where its memory may be.
    """

    guest: str
    cold: Mapping[int, int]
    hot: Mapping[int, int]
    worker_nids: tuple[int, ...]
    allowed_nids: tuple[int, ...]


@dataclass(frozen=True)
class Eviction:
    """Bytes of one guest that make room by going from one node to another; ``hot``: in use."""

    guest: str
    from_nid: int
    to_nid: int
    size_bytes: int
    hot: bool
    reason: str


@dataclass(frozen=True)
class NodeFit:
    """What one node has for the guest; ``lacks``: why it does not fit there now, empty if it does."""

    nid: int
    free_cores: float
    room_bytes: int
    lacks: tuple[str, ...]


@dataclass(frozen=True)
class Fit:
    """The answer: ``nids`` that it fits on now, the emptiest first, or ``evictions`` that make room.

    ``room_nid``: the node that evictions are for; None where nothing makes room.
    """

    flavour: Flavour
    nids: tuple[int, ...]
    nodes: tuple[NodeFit, ...]
    room_nid: int | None = None
    evictions: tuple[Eviction, ...] = ()


def fit(host: HostTopology, guests: Iterable[GuestView], tenants: Iterable[Tenant], flavour: Flavour) -> Fit:
    """Return where the flavour fits, or what makes room for it."""
    cores = free_cores(host, guests)
    nodes = tuple(_node_fit(node, cores[node.nid], flavour) for node in host.nodes)
    fitting = sorted((one for one in nodes if not one.lacks), key=lambda n: (-n.free_cores, -n.room_bytes))
    if fitting:
        return Fit(flavour, tuple(one.nid for one in fitting), nodes)
    tenants = tuple(tenants)
    enough = [one for one in nodes if one.free_cores >= flavour.vcpus]
    tried = [
        (one.nid, evictions(host, tenants, one.nid, flavour.memory_bytes - one.room_bytes)) for one in enough
    ]
    possible = [(nid, found) for nid, found in tried if found]
    if not possible:
        return Fit(flavour, (), nodes)
    nid, found = min(possible, key=lambda one: (_bytes(one[1], hot=True), _bytes(one[1])))
    return Fit(flavour, (), nodes, nid, found)


def free_cores(host: HostTopology, guests: Iterable[GuestView], *, really: bool = False) -> dict[int, float]:
    """Return each node's physical cores that no vCPU takes; ``really``: vCPUs count as they run."""
    taken = dict.fromkeys(host.nids, 0.0)
    for guest in guests:
        vcpus = guest.topology.vcpus
        running = guest.cpus if really and guest.cpus is not None else len(vcpus)
        for nid, share in vcpu_shares(host, vcpus).items():
            taken[nid] += share * running
    return {node.nid: max(0.0, _cores(host, node) - taken[node.nid]) for node in host.nodes}


def room_bytes(node: Node) -> int:
    """Return what a new guest finds on a node: unused file cache gives way, as numad counts it, too."""
    free = node.spare_bytes - RESERVE_RATIO * node.memory_bytes
    return max(0, int(free))


def tenants(host: HostTopology, guests: Iterable[GuestView]) -> tuple[Tenant, ...]:
    """Return the guests whose memory may leave a node for another guest's sake: automatic, not protected."""
    found = (_tenant(host, guest) for guest in guests if _may_leave(guest))
    return tuple(one for one in found if one.cold or one.hot)


def evictions(
    host: HostTopology, found: Iterable[Tenant], nid: int, needed_bytes: int
) -> tuple[Eviction, ...]:
    """Return what frees so much of node ``nid``, cheapest first; empty if nothing frees all of it."""
    found = tuple(found)
    room = {to: int(pages) * PAGE_BYTES for to, pages in room_pages(host).items()}
    held = {
        (one.guest, hot): (one.hot if hot else one.cold).get(nid, 0) for one in found for hot in (True, False)
    }
    left, chosen = -(-needed_bytes // PAGE_BYTES) * PAGE_BYTES, []
    for tenant, hot, near in _cheapest_first(found, nid):
        for to in _targets(host, tenant, nid, near=near):
            share = min(held[tenant.guest, hot], left, room.get(to, 0))
            if share <= 0:
                continue
            held[tenant.guest, hot] -= share
            room[to], left = room[to] - share, left - share
            chosen.append(Eviction(tenant.guest, nid, to, share, hot, _why(tenant, to, hot=hot)))
        if left <= 0:
            return tuple(chosen)
    return ()


def _cheapest_first(found: Iterable[Tenant], nid: int) -> list[tuple[Tenant, bool, bool]]:
    """Return whose memory leaves in which order: with whether it is hot, and must go to its vCPUs."""
    by_size = sorted(found, key=lambda one: -one.cold.get(nid, 0) - one.hot.get(nid, 0))
    away = [one for one in by_size if nid not in one.worker_nids]
    here = [one for one in by_size if nid in one.worker_nids]
    # Away from its vCPUs it is best off with them; whatever else goes, goes cold first.
    first = [(one, hot, True) for hot in (True, False) for one in away]
    return first + [(one, hot, False) for hot in (False, True) for one in (*away, *here)]


def _targets(host: HostTopology, tenant: Tenant, nid: int, *, near: bool) -> list[int]:
    def farness(to: int) -> tuple[int, int]:
        return min((host.distances.get((w, to), 255) for w in tenant.worker_nids), default=255), to

    allowed = [to for to in tenant.allowed_nids if to != nid and (not near or to in tenant.worker_nids)]
    return sorted(allowed, key=farness)


def _why(tenant: Tenant, to: int, *, hot: bool) -> str:
    if to in tenant.worker_nids:
        return "makes room, and is nearer to its vCPUs"
    return "makes room, though it is in use" if hot else "makes room: it was not touched lately"


def _node_fit(node: Node, cores: float, flavour: Flavour) -> NodeFit:
    room, lacks = room_bytes(node), []
    if cores < flavour.vcpus:
        lacks.append(f"{flavour.vcpus - cores:.4g} free cores")
    if room < flavour.memory_bytes or not node.memory_bytes:
        lacks.append(f"{-(-(flavour.memory_bytes - room) >> 20)} MiB" if node.memory_bytes else "memory")
    return NodeFit(node.nid, cores, room, tuple(lacks))


def _may_leave(guest: GuestView) -> bool:
    settings = guest.settings
    is_free = settings.mode is Mode.AUTO and settings.moves and settings.huge_pages
    return is_free and not settings.protected and guest.pages is not None


def _tenant(host: HostTopology, guest: GuestView) -> Tenant:
    cold: dict[int, int] = {}
    hot: dict[int, int] = {}
    pages = guest.pages
    for one in pages.ranges if pages else ():
        if pages is None or one.ram.movability is not Movability.MOVABLE:
            continue
        every, used = (one.by_node(len(pages.nids), hot_only=hot_only) for hot_only in (False, True))
        for nid, count, touched in zip(pages.nids, every.tolist(), used.tolist(), strict=True):
            cold[nid] = cold.get(nid, 0) + (count - touched) * PAGE_BYTES
            hot[nid] = hot.get(nid, 0) + touched * PAGE_BYTES
    workers = tuple(vcpu_shares(host, guest.topology.vcpus))
    return Tenant(guest.topology.name, cold, hot, workers, allowed_nids(host, guest))


def _cores(host: HostTopology, node: Node) -> int:
    return len({min(host.smt_siblings.get(cpu, (cpu,))) for cpu in node.cpus})


def _bytes(found: Iterable[Eviction], *, hot: bool = False) -> int:
    return sum(one.size_bytes for one in found if one.hot or not hot)
