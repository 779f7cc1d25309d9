"""Where does each page belong, if it is known which nodes read and write it?

1. Where all vCPUs of a guest run on one node there is nothing to learn: policy "home".
2. A page that one node alone uses (model/page_use.py, sampled_use.py; fused_use.py, where several sources
   work together) goes to that node.
3. A page that several nodes use and nobody writes is replicated, as far as the replica budget goes: each
   node reads its own copy then.  Code first, then by heat.  Huge pages are not (the kernel does not yet).
   Where writes are expected, copies go all at once: one by one, each first write would have to wait.
4. Other shared pages are interleaved over the nodes of the vCPUs by bandwidth, as policy "home" does.
5. Pages that nobody touched stay: they cost nobody anything.  Where accesses are but sampled, they are
   taken for shared ones.

A range whose source does not see nodes is left to policy "home".
Source: Carrefour (ASPLOS'13), section 3.2, per page instead of per application, with the D bit in place of
sampled read ratios.
Limits: a page counts by who touched it, not by how often.  What is replicated is asked for again now and
then; the kernel knows what it has, and backs off for pages that are written.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from vmplace.model.fused_use import copy_order, fused_use
from vmplace.model.page_use import Bools, PageUse
from vmplace.model.pages import RangePages
from vmplace.model.sampled_use import sampled_use
from vmplace.policy import policy_home as home
from vmplace.policy.plan import Collapse, GuestView, Mode, PlacementPlan, Replication, Snapshot, Stay
from vmplace.policy.spread import weights_by_index
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES, Movability

MIN_WINDOWS = 2
"""Who touched a page in one window alone is not yet known well enough to move it."""

UNEVEN_RATIO = 0.1
"""What is seen to be shared changes with every window; moving this much to and fro each time helps nobody."""

UNEVEN_STEP_RATIO = 0.02
"""Where the proximity is set: a step of it moves a tenth of what may lie on other nodes."""

Indexes = npt.NDArray[np.int64]


def plan(snapshot: Snapshot) -> PlacementPlan:
    """Return moves and replications within the snapshot's budgets."""
    room = home.room_pages(snapshot.host)
    wishes: list[home.Wish] = []
    stays: list[Stay] = []
    replications: list[Replication] = []
    collapses: list[Collapse] = []
    for guest in snapshot.guests:
        for answer in _iter_answers(snapshot, guest, room):
            if isinstance(answer, Stay):
                stays.append(answer)
            elif isinstance(answer, Replication):
                replications.append(answer)
            elif isinstance(answer, Collapse):
                collapses.append(answer)
            else:
                wishes.append(answer)
    moves = home.moves_of(wishes, snapshot.budget_bytes)
    return PlacementPlan(moves, tuple(stays), tuple(replications), tuple(collapses))


def _iter_answers(
    snapshot: Snapshot, guest: GuestView, room: dict[int, float]
) -> Iterator[home.Wish | Stay | Replication | Collapse]:
    if guest.pages is None or guest.settings.mode is Mode.MANUAL:
        yield from home.iter_wishes(snapshot.host, guest, room)
        return
    runs_on_one = len(_worker_nids(snapshot, guest)) == 1
    for pages in guest.pages.ranges:
        use = (sampled_use if pages.sampled else fused_use)(pages, len(guest.pages.nids))
        one = replace(guest, pages=replace(guest.pages, ranges=(pages,)))
        if use is None or pages.ram.movability is not Movability.MOVABLE or runs_on_one:
            yield from home.iter_wishes(snapshot.host, one, room)
        elif len(pages.history) < MIN_WINDOWS:
            yield Stay(guest.topology.name, "who touches its pages has been seen for one window only")
        else:
            yield from _range_answers(snapshot, one, pages, use, room)


def _range_answers(
    snapshot: Snapshot, guest: GuestView, pages: RangePages, use: PageUse, room: dict[int, float]
) -> Iterator[home.Wish | Stay | Replication | Collapse]:
    name, nids = guest.topology.name, _nids(guest)
    allowed = home.allowed_nids(snapshot.host, guest)
    if not allowed:
        yield Stay(name, "no node may hold its memory")
        return
    for index, nid in enumerate(nids):
        mine = use.owner == index
        if mine.any():
            to = home.nearest(snapshot.host, nid, allowed)
            target = home.Target({to: 1.0}, f"node {nid} alone touches them")
            yield from home.range_wishes(name, _only(pages, mine), nids, target, room)
    unwritten = _replicable(pages, use) if snapshot.replica_ratio else np.zeros_like(use.shared)
    if (copied := unwritten & use.in_use).any():
        yield from _replication(snapshot, guest, pages, copied, allowed)
    if snapshot.replica_ratio and (written := use.written & use.in_use & ~use.unsure).any():
        yield Collapse(name, *_runs(pages, np.flatnonzero(written)), "they are written")
    spread = home.target_of(snapshot.host, guest, pages.ram, allowed)
    # To move a page that may be copied a window later helps nobody.
    held = use.unsure if snapshot.replica_ratio else np.zeros_like(use.unsure)
    rest = use.shared & ~unwritten & ~held
    uneven = UNEVEN_RATIO if guest.settings.proximity == 1.0 else UNEVEN_STEP_RATIO
    if spread and _excess_ratio(pages, rest, nids, spread) > uneven:
        yield from home.range_wishes(name, _only(pages, rest), nids, spread, room)


def _excess_ratio(pages: RangePages, rest: Bools, nids: tuple[int, ...], target: home.Target) -> float:
    """Return which share of the pages is on nodes that have more of them than the target says."""
    places = pages.node_index[rest]
    counts = np.bincount(places[places >= 0], minlength=len(nids))
    total = int(counts.sum())
    excess = np.maximum(counts - weights_by_index(target.weights, nids) * total, 0)
    return float(excess.sum()) / total if total else 0.0


def _replication(
    snapshot: Snapshot, guest: GuestView, pages: RangePages, copied: Bools, allowed: tuple[int, ...]
) -> Iterator[Replication]:
    """Yield the wanted replicas: those worth most first, as far as the least free node's share goes."""
    nids = tuple(nid for nid in allowed if nid in _worker_nids(snapshot, guest))
    free = [node.free_bytes for node in snapshot.host.nodes if node.nid in nids]
    if len(nids) < 2:
        return
    limit = int(snapshot.replica_ratio * min(free)) // PAGE_BYTES
    if snapshot.budget_bytes is not None:
        limit = min(limit, snapshot.budget_bytes // PAGE_BYTES // (len(nids) - 1))
    chosen = np.flatnonzero(copied)
    if len(chosen) > limit:
        chosen = np.sort(copy_order(pages, len(_nids(guest)), chosen)[:limit])
    if len(chosen):
        reason = f"nodes {', '.join(map(str, nids))} only read them"
        yield Replication(guest.topology.name, *_runs(pages, chosen), nids, reason)


def _worker_nids(snapshot: Snapshot, guest: GuestView) -> tuple[int, ...]:
    return snapshot.host.nids_of_cpus(tuple({cpu for vcpu in guest.topology.vcpus for cpu in vcpu.cpus}))


def _replicable(pages: RangePages, use: PageUse) -> Bools:
    block = (np.arange(pages.ram.npages) * PAGE_BYTES + pages.ram.hva % HUGE_BYTES) // HUGE_BYTES
    small: Bools = pages.huge[block] == 0
    return use.shared & ~use.written & small & (pages.node_index >= 0)


def _only(pages: RangePages, wanted: Bools) -> RangePages:
    """Return the range as if only the wanted pages were there."""
    node_index = np.where(wanted, pages.node_index, np.int8(-1)).astype(np.int8)
    return replace(pages, node_index=node_index, history=())


def _nids(guest: GuestView) -> tuple[int, ...]:
    return guest.pages.nids if guest.pages else ()


def _runs(pages: RangePages, chosen: Indexes) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
    """Return the address and the length, in pages, of each run of ascending pages."""
    starts = np.flatnonzero(np.diff(chosen, prepend=-2) != 1)
    hva = np.uint64(pages.ram.hva) + chosen[starts].astype(np.uint64) * np.uint64(PAGE_BYTES)
    return hva, np.diff(starts, append=len(chosen)).astype(np.int32)
