"""What ought to become of each page of a range, if it is known which nodes read and write it?

1. A page that one node alone uses (model/use_by_bits.py, use_by_samples.py; use_fused.py, which also knows
   who uses a written page nearly alone) goes to that node.
2. A page that several nodes use and nobody writes is replicated, as far as the replica budget goes: each
   node reads its own copy then.  Code first, then by heat.  A huge page is copied as a whole or, if a write
   was seen anywhere in it, not at all; none is split for it.
   Where writes are expected, copies go all at once: one by one, each first write would have to wait.
3. Other shared pages are the rest: where they go is for the policies that use this (``spread_wishes``).
4. Pages that nobody touched stay: they cost nobody anything.  Where accesses are but sampled, they are
   taken for shared ones.

Source: Carrefour (ASPLOS'13), section 3.2, per page instead of per application, with the D bit in place of
sampled read ratios.
Limits: a page that is only read counts by who touched it, not by how often.  What is
replicated is asked for again now and then; the kernel knows what it has, and backs off for pages that are
written.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vmplace.model.touched_blocks import touched_pages
from vmplace.model.touched_pages import TouchedPages
from vmplace.model.use_by_samples import sampled_use
from vmplace.model.use_fused import copy_order, fused_use
from vmplace.policy import policy_home as home
from vmplace.policy.plan import Collapse, GuestView, Mode, PlacementPlan, Replication, Snapshot, Stay
from vmplace.policy.spread import weights_by_index
from vmplace.sampling.page_arrays import Bools, NodeIndexes
from vmplace.topology.guest import PAGE_BYTES, Movability

MIN_WINDOWS = 2
"""Who touched a page in one window alone is not yet known well enough to move it."""

UNEVEN_RATIO = 0.1
"""What is seen to be shared changes with every window; moving this much to and fro each time helps nobody."""

UNEVEN_STEP_RATIO = 0.02
"""Where the proximity is set: a step of it moves a tenth of what may lie on other nodes."""

T = TypeVar("T")
Sizes = npt.NDArray[np.int32]
Answer = home.Wish | Stay | Replication | Collapse


@dataclass(frozen=True)
class PageKinds:
    """One range of ``guest`` (which has no other ranges here), an item per entry of ``pages``.

    ``owner``: index of the node that the page is for alone, or -1.  ``copied``: it ought to have copies.
    ``written``: it must have none.  ``rest``: several nodes share it, and it lies in one place.
    """

    guest: GuestView
    pages: TouchedPages
    owner: NodeIndexes
    copied: Bools
    written: Bools
    rest: Bools

    @property
    def nids(self) -> tuple[int, ...]:
        """Return the nodes that indexes stand for."""
        return nids_of(self.guest)


def iter_kinds(snapshot: Snapshot, guest: GuestView, room: dict[int, float]) -> Iterator[PageKinds | Answer]:
    """Yield the kinds of each range whose users are known; answers for the others, which take the room.

    Where all vCPUs of a guest run on one node there is nothing to learn, and a range whose source does not
    see nodes tells nothing: both are policy "home"'s.
    """
    runs_on_one = len(worker_nids(snapshot, guest)) == 1
    if guest.pages is None or guest.settings.mode is Mode.MANUAL or runs_on_one:
        yield from home.iter_wishes(snapshot.host, guest, room)
        return
    for pages in guest.pages.ranges:
        learns = pages.ram.movability is Movability.MOVABLE
        touched = touched_pages(pages) if learns else None
        one = replace(guest, pages=replace(guest.pages, ranges=(pages,)))
        if touched is None:
            yield from home.iter_wishes(snapshot.host, one, room)
        elif pages.history < MIN_WINDOWS:
            yield Stay(guest.topology.name, "who touches its pages has been seen for one window only")
        elif not home.allowed_nids(snapshot.host, guest):
            yield Stay(guest.topology.name, "no node may hold its memory")
        else:
            yield _kinds(snapshot, one, touched)


def settled_answers(snapshot: Snapshot, kinds: PageKinds, room: dict[int, float]) -> Iterator[Answer]:
    """Yield what all kinds but the rest need; takes the room."""
    guest, name = kinds.guest, kinds.guest.topology.name
    allowed = home.allowed_nids(snapshot.host, guest)
    for index, nid in enumerate(kinds.nids):
        mine = kinds.owner == index
        if mine.any():
            to = home.nearest(snapshot.host, nid, allowed)
            target = home.Target({to: 1.0}, f"node {nid} alone touches them, or nearly alone")
            yield from home.range_wishes(name, kinds.pages.only(mine), kinds.nids, target, room)
    if kinds.copied.any():
        yield from _replication(snapshot, kinds, allowed)
    if kinds.written.any():
        yield Collapse(name, *runs_of(kinds.pages, kinds.written, kinds.pages.sizes), "they are written")


def spread_wishes(
    guest: GuestView, pages: TouchedPages, some: Bools, target: home.Target, room: dict[int, float]
) -> Iterator[home.Wish | Stay]:
    """Yield what brings ``some`` pages to the target, if they are uneven enough; takes the room."""
    uneven = UNEVEN_RATIO if guest.settings.proximity == 1.0 else UNEVEN_STEP_RATIO
    if _excess_ratio(pages, some, nids_of(guest), target) > uneven:
        yield from home.range_wishes(guest.topology.name, pages.only(some), nids_of(guest), target, room)


def plan_of(answers: Iterable[Answer], budget_bytes: int | None) -> PlacementPlan:
    """Return the plan that the answers make up, within the budget."""
    known = list(answers)
    moves = home.moves_of([*_of(known, home.Wish)], budget_bytes)
    return PlacementPlan(moves, _of(known, Stay), _of(known, Replication), _of(known, Collapse))


def worker_nids(snapshot: Snapshot, guest: GuestView) -> tuple[int, ...]:
    """Return the nodes that the guest's vCPUs may run on."""
    return snapshot.host.nids_of_cpus(tuple({cpu for vcpu in guest.topology.vcpus for cpu in vcpu.cpus}))


def nids_of(guest: GuestView) -> tuple[int, ...]:
    """Return the nodes that node indexes of the guest's pages stand for."""
    return guest.pages.nids if guest.pages else ()


def _of(answers: list[Answer], kind: type[T]) -> tuple[T, ...]:
    return tuple(answer for answer in answers if isinstance(answer, kind))


def _kinds(snapshot: Snapshot, guest: GuestView, pages: TouchedPages) -> PageKinds:
    use = (sampled_use if pages.sampled else fused_use)(pages)
    if not snapshot.replica_ratio:
        nothing = np.zeros_like(use.shared)
        return PageKinds(guest, pages, use.owner, nothing, nothing, use.shared)
    fits = snapshot.huge_replicas | ~pages.is_huge
    unwritten = use.shared & ~use.written & fits & (pages.node_index >= 0)
    written = use.written & use.in_use & ~use.unsure & pages.exists
    # To move a page that may be copied a window later helps nobody.
    rest = use.shared & ~unwritten & ~use.unsure
    return PageKinds(guest, pages, use.owner, unwritten & use.in_use, written, rest)


def _excess_ratio(pages: TouchedPages, rest: Bools, nids: tuple[int, ...], target: home.Target) -> float:
    """Return which share of the pages is on nodes that have more of them than the target says."""
    counts = pages.only(rest).by_node()
    total = float(counts.sum())
    excess = np.maximum(counts - weights_by_index(target.weights, nids) * total, 0)
    return float(excess.sum()) / total if total else 0.0


def _replication(snapshot: Snapshot, kinds: PageKinds, allowed: tuple[int, ...]) -> Iterator[Replication]:
    """Yield the wanted replicas: those worth most first, as far as the least free node's share goes."""
    guest, pages = kinds.guest, kinds.pages
    nids = tuple(nid for nid in allowed if nid in worker_nids(snapshot, guest))
    free = [node.free_bytes for node in snapshot.host.nodes if node.nid in nids]
    if len(nids) < 2:
        return
    limit = int(snapshot.replica_ratio * min(free)) // PAGE_BYTES
    if snapshot.budget_bytes is not None:
        limit = min(limit, snapshot.budget_bytes // PAGE_BYTES // (len(nids) - 1))
    chosen, sizes = kinds.copied, pages.sizes
    if sizes[chosen].sum() > limit:
        sizes = _worth_most(pages, chosen, limit)
        chosen = sizes > 0
    if chosen.any():
        reason = f"nodes {', '.join(map(str, nids))} only read them"
        yield Replication(guest.topology.name, *runs_of(pages, chosen, sizes), nids, reason)


def _worth_most(pages: TouchedPages, copied: Bools, limit: int) -> Sizes:
    """Return how many pages of each entry make up the ``limit`` pages that are worth most."""
    order, sizes = copy_order(pages, np.flatnonzero(copied)), np.zeros_like(pages.sizes)
    each = pages.sizes[order]
    fits = np.clip(limit - (np.cumsum(each) - each), 0, each)
    # A huge page is copied as a whole, or not at all.
    sizes[order] = np.where(pages.is_huge[order] & (fits < each), 0, fits)
    return sizes


def runs_of(pages: TouchedPages, chosen: Bools, sizes: Sizes) -> tuple[npt.NDArray[np.uint64], Sizes]:
    """Return the address and the length, in pages, of each run of neighbouring pages; there must be some."""
    begins = chosen & ~np.append(False, chosen[:-1])
    # Blocks that follow each other here need not be neighbours.
    begins |= chosen & pages.begins_block
    first = np.flatnonzero(begins)
    length = np.add.reduceat(chosen, first, dtype=np.int32) * sizes[first]
    hva = pages.hva_of(first)
    order = np.argsort(hva)
    hva, length = hva[order], length[order]
    apart = np.flatnonzero(np.append(0, hva[:-1] + length[:-1] * np.int64(PAGE_BYTES)) != hva)
    return hva[apart].astype(np.uint64), np.add.reduceat(length, apart)
