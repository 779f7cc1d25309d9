"""Where is the memory of a guest at home whose vCPUs all run on one node?

1. Every RAM range that can move is tied to the vCPUs that use it: those of its vNUMA cell, else all.
2. If those run on one node, each touch comes from there, whatever the source sees.  So the range's memory
   belongs there: each access gets nearer, however many there are.  A node without memory, or one that the
   operator excludes, is replaced by the nearest allowed node.
3. If they run on several nodes, nothing is known of who touches what: the range stays.
4. What is elsewhere moves, hottest first, as far as nodes have room and the window's budget goes; guests
   share the budget evenly, and what one does not need goes to the others.  Guests of which nothing moves now
   (mode advise, a trial, a policy) are planned for with what the others leave: they take nothing from these.

Price against gain, where nothing counts accesses: a page that was seen touched is taken to be read through
once more at least, 64 lines from another node, which a remote node makes some 50 ns dearer each: 3 us, for a
move of 2 us.  Pages that nobody was seen to touch go last: nobody waits for them while they move, each goes
once, and the budget bounds what that takes.  Where it is counted what an instruction takes before and after,
that decides whether it stays so (trial.py).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from vmplace.model.pages import RangePages
from vmplace.model.units import Units
from vmplace.policy.known_nodes import UNKNOWN, node_change
from vmplace.policy.own_limits import NO_HUGE, RATE_USED, pages_left
from vmplace.policy.plan import GuestView, Mode, Move, PlacementPlan, Snapshot, Stay
from vmplace.policy.spread import (
    Counts,
    Placed,
    count_strata,
    excess_and_deficit,
    pick,
    weights_by_index,
)
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


@dataclass(frozen=True)
class SmallPages:
    """Of some pages those that are no huge ones."""

    pages: Placed

    def units(self) -> Iterator[Units]:
        """Yield what can move, in chunks."""
        return (units for units in self.pages.units() if not units.huge)

    def elsewhere(self, node: int) -> "SmallPages":
        """Return those that are not on the node of this index."""
        return SmallPages(self.pages.elsewhere(node))


def plan(snapshot: Snapshot, room: dict[int, float] | None = None) -> PlacementPlan:
    """Return the moves that bring the guests' memory home, within the snapshot's budget.

    ``room``: so many pages each node can take, None: all that it has room for.
    """
    return plan_for(snapshot, one_home, room)


def plan_for(snapshot: Snapshot, belongs: TargetOf, room: dict[int, float] | None = None) -> PlacementPlan:
    """Return the moves that bring each range to where ``belongs`` says, within the snapshot's budget."""
    room = room_pages(snapshot.host) if room is None else room
    moves: list[Move] = []
    stays: list[Stay] = []
    budget_bytes = snapshot.budget_bytes
    for is_turn in (True, False):
        wishes: list[Wish] = []
        for guest in (one for one in snapshot.guests if one.may_move is is_turn):
            for answer in iter_wishes(snapshot.host, guest, room, belongs):
                if isinstance(answer, Stay):
                    stays.append(answer)
                else:
                    wishes.append(answer)
        wants, lacking = within_rates(wishes, snapshot.guests)
        more = moves_of(wishes, wants, budget_bytes)
        if budget_bytes is not None:
            budget_bytes -= sum(int(move.npages.sum()) for move in more) * PAGE_BYTES
        moves += more
        stays += lacking
    return PlacementPlan(tuple(moves), tuple(stays))


def within_rates(wishes: list[Wish], guests: Iterable[GuestView]) -> tuple[list[int], list[Stay]]:
    """Return how many pages of each wish may move by the guests' own rates, and what stays by these."""
    left = {one.topology.name: pages_left(one.move_bytes) for one in guests}
    wants, stays = list[int](), list[Stay]()
    for wish in wishes:
        wants.append(int(min(wish.npages, left[wish.guest])))
        left[wish.guest] -= wants[-1]
        stays += _left(wish.guest, wish.npages - wants[-1], RATE_USED)
    return wants, stays


def moves_of(wishes: list[Wish], wants: list[int], budget_bytes: int | None) -> tuple[Move, ...]:
    """Return the moves that fulfil the wishes, of each so many pages, as far as the budget goes."""
    shares = fair_shares(wants, budget_bytes)
    moves = [_move(wish, share) for wish, share in zip(wishes, shares, strict=True) if share]
    return tuple(move for move in moves if len(move.hva))


def one_home(host: HostTopology, guest: GuestView, ram: RamRange, allowed: tuple[int, ...]) -> Target | None:
    """Return the one node that the range belongs to; None if its vCPUs run on several, or nobody knows."""
    workers = worker_nids(host, guest, ram.cell)
    if len(workers) != 1:
        return None
    home = nearest(host, workers[0], allowed)
    who = "the vCPUs run" if ram.cell is None else f"the vCPUs of cell {ram.cell} run"
    where = f"{who} on node {workers[0]}"
    if home != workers[0]:
        where += f"; node {home} is the nearest that may hold the memory"
    return Target({home: 1.0}, where)


def worker_nids(host: HostTopology, guest: GuestView, cell: int | None = None) -> tuple[int, ...]:
    """Return the nodes on which the vCPUs may run that use memory of that vNUMA cell, None: all of them."""
    mine = {v.cpus for v in guest.topology.vcpus if cell is None or v.cell == cell}
    return tuple(sorted({nid for cpus in mine for nid in host.nids_of_cpus(cpus)}))


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
    host: HostTopology, guest: GuestView, room: dict[int, float], belongs: TargetOf = one_home
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
            yield Stay(name, _why_nowhere(host, guest, pages.ram, allowed))
        elif not (target := _within(guest, pages.ram, whole := target)).weights:
            yield from _left(name, _away(pages, guest.pages.nids, whole), guest.numatune.elsewhere)
        else:
            some = pages if guest.settings.huge_pages else SmallPages(pages)
            yield from range_wishes(name, some, guest.pages.nids, target, room)
            if not guest.settings.huge_pages:
                yield from _left(name, _away(pages, guest.pages.nids, target, huge_only=True), NO_HUGE)


def _within(guest: GuestView, ram: RamRange, target: Target) -> Target:
    """Return the target with the nodes alone that the range may be on."""
    bound = guest.numatune.of_cell(ram.cell)
    if bound is None:
        return target
    weights = {nid: weight for nid, weight in target.weights.items() if nid in bound}
    total = sum(weights.values())
    return replace(target, weights={nid: weight / total for nid, weight in weights.items()})


def _away(pages: RangePages, nids: tuple[int, ...], target: Target, *, huge_only: bool = False) -> float:
    """Return how many 4 KiB pages of the range, or of its huge pages, are not where it belongs."""
    counts = count_strata(pages, len(nids))
    counts = counts[1::2] if huge_only else counts
    return float(counts[:, [nid not in target.weights for nid in nids]].sum())


def _left(name: str, npages: float, why: str) -> Iterator[Stay]:
    if npages:
        yield Stay(name, f"{round(npages) * PAGE_BYTES >> 20} MiB stay: {why}")


def _why_nowhere(host: HostTopology, guest: GuestView, ram: RamRange, allowed: tuple[int, ...]) -> str:
    if not allowed:
        return "no node may hold its memory"
    if len(worker_nids(host, guest, ram.cell)) > 1:
        if change := node_change(host, guest):
            return UNKNOWN.format(change)
        return "its vCPUs run on several nodes, and nothing tells which of these touches a page"
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
    """Return the nodes with memory that the operator allows the guest, and that its cells are bound to."""
    allowed = guest.settings.allowed_nids
    movable = (ram for ram in guest.topology.ram if ram.movability is Movability.MOVABLE)
    bound = [guest.numatune.of_cell(ram.cell) for ram in movable] if guest.numatune.nids else []
    if bound and None not in bound:
        within = {nid for nids in bound for nid in nids or ()}
        allowed = tuple(nid for nid in within if allowed is None or nid in allowed)
    return tuple(nid for nid in host.memory_nids if allowed is None or nid in allowed)


def nearest(host: HostTopology, worker: int, allowed: tuple[int, ...]) -> int:
    """Return the allowed node that is nearest to ``worker``: itself if it is allowed."""
    return min(
        allowed, key=lambda nid: (host.distances.get((worker, nid), 10 if nid == worker else 255), nid)
    )
