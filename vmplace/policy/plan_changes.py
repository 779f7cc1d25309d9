"""What does the joint plan's decision mean for the actuator: which moves, copies and drops, and why?"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from vmplace.model.described_memory import MIB
from vmplace.model.evidence import Entries
from vmplace.model.memory_system import MemorySystem
from vmplace.model.pages import RangePages
from vmplace.model.touched_pages import HUGE_PAGES, TouchedPages, runs_of
from vmplace.policy.held_back import UNDONE
from vmplace.policy.host_view import (
    REPLICATED,
    Bools,
    GuestEvidence,
    Indexes,
    NodeIndexes,
    costs,
    hottest_first,
    row_sums,
)
from vmplace.policy.own_limits import NO_MOVES
from vmplace.policy.plan import Collapse, GuestView, Move, PlacementPlan, Replication, Snapshot, Stay
from vmplace.topology.guest import PAGE_BYTES

SOLE = 0.9
"""A node with this share of the accesses to a page has it to itself, for guests that are not distributed."""

WRITTEN = "they are written"
"""Why pages are to have no copies, usually."""
Answer = tuple[tuple[Move, ...], tuple[Replication, ...], tuple[Collapse, ...], tuple[Stay, ...]]


def changes_of(  # noqa: PLR0913 - a decision, and all it refers to
    snapshot: Snapshot,
    guest: GuestView,
    entries: Entries,
    before: GuestEvidence,
    places: NodeIndexes,
    system: MemorySystem,
    why: str = "",
) -> Answer:
    """Return the changes of one guest's pages, hottest first; ``why``: what held_back.py tells of it."""
    name, nids = guest.topology.name, snapshot.host.nids
    known = {one.ram.hva: one for one in guest.pages.ranges} if guest.pages else {}
    moves, copies, drops = [], [], []
    for pages, (start, end) in zip(entries.pages, pairwise(entries.starts), strict=True):
        mine = slice(start, end)
        here, there, home_node = before.node[mine], places[mine], entries.node[mine]
        away = there[(there != home_node) & (there >= 0)]
        for target in np.unique(away).tolist() if len(away) else ():
            some = np.flatnonzero((there == target) & (home_node != target) & (home_node >= 0))
            one = known[pages.ram.hva]
            move = _move(name, nids, one, pages, some, home_node, target, before, start, system, why)
            moves.append(move)
        wanted = there == REPLICATED
        if wanted.any():
            copies.append(_copies(name, nids, pages, wanted, home_node, before, start, system))
        written = entries.written[mine] | ((here == REPLICATED) & (there != REPLICATED))
        if snapshot.replica_ratio and written.any():
            dropped = UNDONE if why == UNDONE else WRITTEN
            drops.append(Collapse(name, *runs_of(pages, written, pages.sizes), dropped))
    if moves or copies:
        return tuple(moves), tuple(copies), tuple(drops), ()
    stays = (why or "no move would pay for itself") if guest.settings.moves else NO_MOVES
    return (), (), tuple(drops), (Stay(name, stays),)


def allowed_places(entries: Entries, before: GuestEvidence, places: NodeIndexes) -> NodeIndexes:
    """Return the places, but for pages that may not move: a loss is made good for the others alone."""
    if before.stays is None:
        return places
    return np.where(before.stays & (places >= 0), entries.node, places).astype(np.int8)


def is_shared(heat: npt.NDArray[np.float64]) -> Bools:
    """Tell which entries no node has nearly to itself: these are distributed over nodes."""
    shared: Bools = heat.max(axis=1, initial=0.0) < SOLE * heat.sum(axis=1)
    return shared


def _move(  # noqa: PLR0913 - as above
    name: str,
    nids: tuple[int, ...],
    known: RangePages,
    pages: TouchedPages,
    some: Indexes,
    node: NodeIndexes,
    target: int,
    before: GuestEvidence,
    start: int,
    system: MemorySystem,
    why: str,
) -> Move:
    """Return the move of entries to one node; small pages of a block that are alike move one by one."""
    heat = before.heat.take(start + some, axis=0)
    some = some[hottest_first(row_sums(heat) / pages.sizes[some])]
    single = np.where(pages.is_huge[some], 1, pages.sizes[some])
    hva = np.repeat(pages.hva_of(some), single)
    first = np.cumsum(single) - single
    hva += (np.arange(len(hva)) - np.repeat(first, single)) * PAGE_BYTES
    npages, here = (
        np.repeat(np.where(pages.is_huge[some], HUGE_PAGES, 1), single),
        np.repeat(node[some], single),
    )
    is_coarse = np.zeros(pages.entries, np.bool_)
    is_coarse[pages.coarse] = True
    coarse = is_coarse[some]
    # Of these, pages may lie elsewhere than most of their block do.
    at = first[coarse][:, None] + np.arange(HUGE_PAGES)
    here[at] = known.nodes_of(pages.blocks[pages.block_of(some[coarse])])
    away = (here >= 0) & (here != target)
    saved = system.latency - system.latency[:, [target]]
    gain = float(costs(before.heat.take(start + some, axis=0), node[some], saved).sum())
    size = _sized(float(npages[away].sum()))
    effect = f"{'save' if gain >= 0 else 'add'} {abs(gain) / 1e6:.2f} ms of latency"
    where = f"which is nearer to its users or less busy: {size}, expected to {effect}"
    if why == UNDONE:
        where = f"where it was before: {size}; {UNDONE}"
    reason = f"to node {nids[target]}, {where}"
    return Move(
        name,
        hva[away].astype(np.uint64),
        npages[away].astype(np.uint16),
        np.array(nids, np.int16)[here[away]],
        np.full(int(away.sum()), nids[target], np.int16),
        reason,
        gain,
        undoes=why == UNDONE,
    )


def _copies(  # noqa: PLR0913 - as above
    name: str,
    nids: tuple[int, ...],
    pages: TouchedPages,
    wanted: Bools,
    node: NodeIndexes,
    before: GuestEvidence,
    start: int,
    system: MemorySystem,
) -> Replication:
    """Return the copies of the entries that are ``wanted``; ``node``: where they lie."""
    some = np.flatnonzero(wanted)
    near = tuple(nid for nid, at in zip(nids, before.worker.tolist(), strict=True) if at)
    sizes, heat = before.sizes_of(start + some), before.heat.take(start + some, axis=0)
    there = np.full(len(some), REPLICATED, np.int8)
    saved = costs(heat, before.node[start + some], system.latency) - costs(heat, there, system.latency)
    lies = np.bincount(node[some] + 1, sizes, len(nids) + 1)[1:]
    reported = f"nodes {', '.join(map(str, near))} only read them: {_sized(float(sizes.sum()))}"
    return Replication(
        name,
        *runs_of(pages, wanted, pages.sizes),
        near,
        reported,
        saved_ns=float(saved.sum()),
        from_pages=dict(zip(nids, lies.tolist(), strict=True)),
    )


def _sized(npages: float) -> str:
    """Return the size of so many pages in words: in KiB what is less than a MiB."""
    size = npages * PAGE_BYTES
    return f"{size / MIB:.1f} MiB" if size >= MIB else f"{size / 1024:.0f} KiB"


def joined(answers: list[Answer], rest: PlacementPlan) -> PlacementPlan:
    return PlacementPlan(
        (*(move for one in answers for move in one[0]), *rest.moves),
        (*(stay for one in answers for stay in one[3]), *rest.stays),
        tuple(copy for one in answers for copy in one[1]),
        tuple(drop for one in answers for drop in one[2]),
    )
