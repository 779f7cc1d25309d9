"""Where would this guest's memory be at home?

1. Every RAM range that can move is tied to the vCPUs that use it: those of its vNUMA cell, else all.
2. If those run on one node, that node is the home of the whole range.  A node without memory, or one
   that the operator excludes, is replaced by the nearest allowed node.
3. If they run on several nodes, the range is interleaved over these, in proportion to the bandwidth that
   the worst of them gets from each (BWAP, IPDPS'20, section III, eq. 2 and 5; even where it is unknown).
   With a proximity below 1 other nodes get their share, too (section III-B; ``proximity.py``).
4. What is elsewhere moves, hottest first, as far as nodes have room and the window's budget goes; guests
   share the budget evenly, and what one does not need goes to the others.

Limits: who touched a page is not known on a stock kernel, so a page that one node of several uses alone
is interleaved like the others, and nothing is replicated.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from vmplace.model.traffic import vcpu_shares
from vmplace.policy.plan import GuestView, Mode, Move, PlacementPlan, Snapshot, Stay
from vmplace.policy.proximity import with_dwp
from vmplace.policy.spread import Counts, Placed, count_strata, excess_and_deficit, pick, weights_by_index
from vmplace.topology.bandwidth import bandwidth_weights
from vmplace.topology.guest import PAGE_BYTES, Movability, RamRange
from vmplace.topology.host import HostTopology

RESERVE_RATIO = 0.03
"""Share of a node's memory that is never filled: the host needs room to reclaim and to allocate."""


@dataclass(frozen=True)
class Target:
    """Where a range belongs: shares by nid that sum to 1, and why."""

    weights: dict[int, float]
    reason: str


TargetOf = Callable[[HostTopology, GuestView, RamRange, tuple[int, ...]], Target | None]
"""From host, guest, its range and the nodes that may hold memory (not empty): where the range belongs."""


@dataclass(frozen=True)
class Wish:
    """What one range wants: pages by (stratum, node index) that exceed and that lack."""

    guest: str
    pages: Placed
    nids: tuple[int, ...]
    reason: str
    counts: Counts
    excess: Counts
    deficit: Counts

    @property
    def npages(self) -> int:
        """Return how many pages it would take."""
        return round(float(self.excess.sum()))


def plan(snapshot: Snapshot) -> PlacementPlan:
    """Return the moves that bring the guests' memory home, within the snapshot's budget."""
    return plan_for(snapshot, target_of)


def plan_for(snapshot: Snapshot, belongs: TargetOf) -> PlacementPlan:
    """Return the moves that bring each range to where ``belongs`` says, within the snapshot's budget."""
    room = room_pages(snapshot.host)
    wishes: list[Wish] = []
    stays: list[Stay] = []
    for guest in snapshot.guests:
        for answer in iter_wishes(snapshot.host, guest, room, belongs):
            if isinstance(answer, Stay):
                stays.append(answer)
            else:
                wishes.append(answer)
    return PlacementPlan(moves_of(wishes, snapshot.budget_bytes), tuple(stays))


def moves_of(wishes: list[Wish], budget_bytes: int | None) -> tuple[Move, ...]:
    """Return the moves that fulfil the wishes as far as the budget goes."""
    shares = fair_shares([wish.npages for wish in wishes], budget_bytes)
    moves = [_move(wish, share) for wish, share in zip(wishes, shares, strict=True) if share]
    return tuple(move for move in moves if len(move.hva))


def target_of(host: HostTopology, guest: GuestView, ram: RamRange, allowed: tuple[int, ...]) -> Target | None:
    """Return where the range belongs; None if its vCPUs' nodes are not known, or it may not spread."""
    workers = _worker_nids(host, guest, ram)
    if not workers:
        return None
    who = "the vCPUs run" if ram.cell is None else f"the vCPUs of cell {ram.cell} run"
    nids = _nearest(host, workers, allowed)
    where = f"{who} on node{'s' if len(workers) > 1 else ''} {_listed(workers)}"
    if nids != workers:
        where += f"; node{'s' if len(nids) > 1 else ''} {_listed(nids)} nearest that may hold the memory"
    weights = _near_weights(host, workers, nids, allowed, guest.proximity)
    if len(weights) == 1:
        return Target(weights, where)
    if not guest.settings.interleaves:
        return None
    where += f": interleaved {':'.join(f'{100 * w:.0f}' for w in weights.values())}"
    if guest.proximity < 1.0:
        where += f" over nodes {_listed(tuple(weights))} (proximity {guest.proximity:.1f})"
    return Target(weights, where)


def near_nids(
    host: HostTopology, guest: GuestView, ram: RamRange, allowed: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the nodes of ``allowed`` that are nearest to the vCPUs that use the range."""
    return _nearest(host, _worker_nids(host, guest, ram), allowed)


def _nearest(host: HostTopology, workers: tuple[int, ...], allowed: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({nearest(host, nid, allowed) for nid in workers}))


def _worker_nids(host: HostTopology, guest: GuestView, ram: RamRange) -> tuple[int, ...]:
    """Return the nodes of the vCPUs that use the range: those of its cell, else all."""
    mine = tuple(v for v in guest.topology.vcpus if ram.cell is None or v.cell == ram.cell)
    return tuple(vcpu_shares(host, mine))


def _near_weights(
    host: HostTopology, workers: tuple[int, ...], near: tuple[int, ...], allowed: tuple[int, ...], dwp: float
) -> dict[int, float]:
    """Return the shares of nodes for vCPUs on ``workers``: of those ``near`` alone where ``dwp`` is 1."""
    if dwp >= 1.0 and len(near) == 1:
        return {near[0]: 1.0}
    if dwp >= 1.0:
        return bandwidth_weights(host, workers, near)
    canonical = bandwidth_weights(host, workers, allowed)
    inside = np.array([nid in near for nid in canonical])
    scaled = with_dwp(np.array([*canonical.values()]), inside, dwp)
    return dict(zip(canonical, scaled.tolist(), strict=True))


def fair_shares(wants: list[int], budget_bytes: int | None) -> list[int]:
    """Return how many pages each may move: even shares, the rest of the modest going to the others."""
    if budget_bytes is None:
        return wants
    left, shares = budget_bytes // PAGE_BYTES, [0] * len(wants)
    for rank, index in enumerate(order := sorted(range(len(wants)), key=wants.__getitem__)):
        shares[index] = min(wants[index], left // (len(order) - rank))
        left -= shares[index]
    return shares


def room_pages(host: HostTopology) -> dict[int, float]:
    """Return how many pages each node can take before its reserve is touched."""
    return {n.nid: max(0.0, n.free_bytes - RESERVE_RATIO * n.memory_bytes) // PAGE_BYTES for n in host.nodes}


def iter_wishes(
    host: HostTopology, guest: GuestView, room: dict[int, float], belongs: TargetOf = target_of
) -> Iterator[Wish | Stay]:
    """Yield a wish for a range that is not where it belongs, a stay if it has to remain; takes the room."""
    name = guest.topology.name
    if guest.settings.mode is Mode.MANUAL:
        yield Stay(name, "the operator places this guest by hand (mode manual)")
        return
    if guest.pages is None:
        yield Stay(name, "nothing is known of its pages yet")
        return
    allowed = allowed_nids(host, guest)
    for pages in guest.pages.ranges:
        target = belongs(host, guest, pages.ram, allowed) if allowed else None
        if pages.ram.movability is not Movability.MOVABLE:
            yield Stay(name, f"{pages.ram.size_bytes >> 20} MiB stay: {pages.ram.reason}")
        elif target is None:
            yield Stay(name, _why_nowhere(guest, allowed))
        else:
            yield from range_wishes(name, pages, guest.pages.nids, target, room)


def _why_nowhere(guest: GuestView, allowed: tuple[int, ...]) -> str:
    if not allowed:
        return "no node may hold its memory"
    if not guest.settings.interleaves:
        return "several nodes share its memory, and its policy does not allow to interleave it"
    return "its vCPUs' nodes are not known"


def range_wishes(
    name: str, pages: Placed, nids: tuple[int, ...], target: Target, room: dict[int, float]
) -> Iterator[Wish | Stay]:
    """Yield what it takes to have the range as ``target`` says, as far as there is room; takes the room."""
    if len(target.weights) == 1 and (home := next(iter(target.weights))) in nids:
        # What is there already makes no difference.
        pages = pages.elsewhere(nids.index(home))
    counts = count_strata(pages, len(nids))
    if not counts.any():
        return
    weights, free = weights_by_index(target.weights, nids), weights_by_index(room, nids)
    wanted, deficit = excess_and_deficit(counts, weights, np.full(len(nids), np.inf))
    excess = wanted
    if (deficit.sum(axis=0) > free).any():
        excess, deficit = excess_and_deficit(counts, weights, free)
    for nid, pages_in in zip(nids, deficit.sum(axis=0).tolist(), strict=True):
        room[nid] = room.get(nid, 0.0) - pages_in
    if lacking := round(float(wanted.sum() - excess.sum())):
        yield Stay(
            name, f"{lacking * PAGE_BYTES >> 20} MiB stay: {target.reason}, but the room there is used up"
        )
    if excess.sum() >= 1:
        yield Wish(name, pages, nids, target.reason, counts, excess, deficit)


def _move(wish: Wish, share: int) -> Move:
    picked = pick(wish.pages, wish.counts, wish.excess, wish.deficit, share)
    nids = np.array(wish.nids, np.int16)
    hva = picked.hva.astype(np.uint64)
    return Move(wish.guest, hva, picked.npages, nids[picked.source], nids[picked.target], wish.reason)


def allowed_nids(host: HostTopology, guest: GuestView) -> tuple[int, ...]:
    """Return the nodes with memory that the operator allows the guest."""
    allowed = guest.settings.allowed_nids
    return tuple(nid for nid in host.memory_nids if allowed is None or nid in allowed)


def nearest(host: HostTopology, worker: int, allowed: tuple[int, ...]) -> int:
    """Return the allowed node that is nearest to ``worker``: itself if it is allowed."""
    return min(
        allowed, key=lambda nid: (host.distances.get((worker, nid), 10 if nid == worker else 255), nid)
    )


def _listed(nids: tuple[int, ...]) -> str:
    return ", ".join(str(nid) for nid in nids)
