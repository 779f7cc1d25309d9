"""Cut a plan to the limits of each guest's policy, whichever policy of the agent made the plan.

The last line of defence: the joint plan knows these limits (policy/own_limits.py), so that it charges nothing
for what is cut here.

1. Nothing moves, or is copied, that the guest's techniques do not name; huge pages only where they may.
2. Memory stays on the nodes that are allowed, and the memory of each vNUMA cell on those that numatune, or
   QEMU's command line, binds it to.
3. No more bytes move than the guest's own rate has left, in the plan's order; copies have a limit.
4. While a guest's preferred nodes have room for all of it, they are the nodes that are allowed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from msgspec import structs

from vmplace.model.pages import GuestPages
from vmplace.policy.home import room_pages
from vmplace.policy.options import Weighing
from vmplace.policy.own_limits import NO_HUGE, NO_MOVES, RATE_USED
from vmplace.policy.plan import Collapse, GuestSettings, GuestView, Move, PlacementPlan, Replication, Stay
from vmplace.topology.domain_policy import Numatune
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES, GuestTopology
from vmplace.topology.host import HostTopology

CUT = "what is left of effect and price: the guest's policy leaves out part of this plan"
FEW_NODES = "its policy allows copies on fewer than two nodes of its vCPUs"
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class GuestLimits:
    """One guest's; ``move_bytes``: what may move now, None for no limit of its own."""

    topology: GuestTopology
    settings: GuestSettings
    pages: GuestPages | None = None
    numatune: Numatune = field(default_factory=Numatune)
    move_bytes: int | None = None


def preferred_views(
    views: Iterable[GuestView], host: HostTopology
) -> tuple[tuple[GuestView, ...], tuple[Stay, ...]]:
    """Return the views as ``preferring`` has them, and all stays."""
    both = [preferring(view, host) for view in views]
    return tuple(view for view, _ in both), tuple(stay for _, stays in both for stay in stays)


def preferring(view: GuestView, host: HostTopology) -> tuple[GuestView, tuple[Stay, ...]]:
    """Return the view with only the preferred nodes allowed, if they have room; else why they are not."""
    preferred = view.settings.preferred_nids
    if preferred is None or view.pages is None:
        return view, ()
    there = view.pages.pages_by_node()
    missing = sum(there.values()) - sum(there.get(nid, 0) for nid in preferred)
    room = room_pages(host)
    if missing <= sum(room.get(nid, 0.0) for nid in preferred):
        return replace(view, settings=replace(view.settings, allowed_nids=preferred)), ()
    nids, mib = ", ".join(map(str, preferred)), missing * PAGE_BYTES >> 20
    return view, (Stay(view.topology.name, f"preferred nodes {nids} have no room for {mib} MiB more"),)


def limited(plan: PlacementPlan, limits: Mapping[str, GuestLimits]) -> PlacementPlan:
    """Return what the guests' policies allow of a plan, with stays that say what was left out, and why."""
    left_out: dict[tuple[str, str], int] = {}
    allowances = {name: one.move_bytes for name, one in limits.items()}
    moves = []
    for move in plan.moves:
        kept = _limited_move(move, limits[move.guest], allowances, left_out)
        moves += [kept] if len(kept.hva) else []
    copies = [_limited_copies(one, limits[one.guest], left_out) for one in plan.replications]
    return replace(
        plan,
        moves=tuple(moves),
        replications=tuple(one for one in copies if len(one.hva) and len(one.nids) > 1),
        collapses=(*plan.collapses, *_useless(plan.replications, copies)),
        stays=(*plan.stays, *_stays(left_out)),
        weighings=_weighings(plan, {guest for guest, _ in left_out}),
    )


def _useless(wanted: Iterable[Replication], allowed: Iterable[Replication]) -> Iterator[Collapse]:
    """Yield the drops of copies that a policy has not allowed on two nodes since they were made."""
    for one, left in zip(wanted, allowed, strict=True):
        if len(one.nids) > 1 and len(left.nids) < 2 and len(left.hva):
            yield Collapse(one.guest, left.hva, left.npages, FEW_NODES)


def _weighings(plan: PlacementPlan, cut: set[str]) -> tuple[Weighing, ...]:
    """Return what was weighed; the plan's figures are of all of it, not of what is left."""
    return tuple(structs.replace(one, unknown=CUT) if one.guest in cut else one for one in plan.weighings)


def _stays(left_out: Mapping[tuple[str, str], int]) -> Iterable[Stay]:
    for (guest, why), size_bytes in left_out.items():
        yield Stay(guest, f"{size_bytes >> 20} MiB stay: {why}")


def _limited_move(
    move: Move,
    limits: GuestLimits,
    allowances: dict[str, int | None],
    left_out: dict[tuple[str, str], int],
) -> Move:
    settings = limits.settings
    rules: tuple[tuple[str, Callable[[Move], Mask]], ...] = (
        (NO_MOVES, lambda one: np.full(len(one.hva), settings.moves)),
        (NO_HUGE, lambda one: settings.huge_pages | (one.npages == 1)),
        ("its policy does not allow these nodes", lambda one: _on_allowed(one, settings)),
        (limits.numatune.elsewhere, lambda one: _on_bound(one, limits)),
    )
    for why, allows in rules:
        move = _where(move, allows(move), why, left_out)
    allowance = allowances[move.guest]
    if allowance is not None:
        fits = np.cumsum(move.npages, dtype=np.int64) * PAGE_BYTES <= allowance
        move = _where(move, fits, RATE_USED, left_out)
        allowances[move.guest] = allowance - move.size_bytes
    return move


def _where(move: Move, keep: Mask, why: str, left_out: dict[tuple[str, str], int]) -> Move:
    if keep.all():
        return move
    kept = replace(
        move,
        hva=move.hva[keep],
        npages=move.npages[keep],
        from_nid=move.from_nid[keep],
        to_nid=move.to_nid[keep],
    )
    key = move.guest, why
    left_out[key] = left_out.get(key, 0) + move.size_bytes - kept.size_bytes
    return kept


def _on_allowed(move: Move, settings: GuestSettings) -> Mask:
    if settings.allowed_nids is None:
        return np.full(len(move.hva), True)
    return np.isin(move.to_nid, settings.allowed_nids)


def _on_bound(move: Move, limits: GuestLimits) -> Mask:
    """Tell which pages go where numatune has the memory of their cell."""
    fits = np.full(len(move.hva), True)
    for ram in limits.topology.ram if limits.numatune.nids else ():
        nids = limits.numatune.of_cell(ram.cell)
        if nids is not None:
            inside = (move.hva >= ram.hva) & (move.hva < ram.hva + ram.size_bytes)
            fits &= ~inside | np.isin(move.to_nid, nids)
    return fits


def _limited_copies(
    wanted: Replication, limits: GuestLimits, left_out: dict[tuple[str, str], int]
) -> Replication:
    settings, before = limits.settings, wanted.pages
    wanted = replace(wanted, limit_bytes=settings.replica_bytes)
    allowed = settings.allowed_nids
    if allowed is not None:
        wanted = replace(wanted, nids=tuple(nid for nid in wanted.nids if nid in allowed))
    wanted, why = _copies_within(wanted, limits), limits.numatune.elsewhere
    if not settings.may_copy:
        wanted, why = _no_copies(wanted), "its policy does not allow copies of it"
    elif not settings.huge_pages:
        wanted, why = _small_only(wanted, limits.pages), NO_HUGE
    if lacking := before - wanted.pages:
        key = wanted.guest, why
        left_out[key] = left_out.get(key, 0) + lacking * PAGE_BYTES
    return wanted


def _copies_within(wanted: Replication, limits: GuestLimits) -> Replication:
    """Return the runs that numatune lets have copies on all of the nodes; part of a cell is in no other."""
    fits = np.full(len(wanted.hva), True)
    end = wanted.hva + wanted.npages.astype(np.uint64) * np.uint64(PAGE_BYTES)
    for ram in limits.topology.ram if limits.numatune.nids else ():
        nids = limits.numatune.of_cell(ram.cell)
        if nids is not None and not set(wanted.nids) <= set(nids):
            fits &= (wanted.hva >= ram.hva + ram.size_bytes) | (end <= ram.hva)
    return wanted if fits.all() else replace(wanted, hva=wanted.hva[fits], npages=wanted.npages[fits])


def _no_copies(wanted: Replication) -> Replication:
    return replace(wanted, hva=wanted.hva[:0], npages=wanted.npages[:0])


def _small_only(wanted: Replication, pages: GuestPages | None) -> Replication:
    """Return the runs, cut at blocks of 2 MiB, of those blocks that are no huge pages."""
    first = (wanted.hva // np.uint64(HUGE_BYTES)).astype(np.int64)
    end = wanted.hva.astype(np.int64) + wanted.npages.astype(np.int64) * PAGE_BYTES
    count = (end - 1) // HUGE_BYTES - first + 1
    block = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
    begin = np.maximum(np.repeat(wanted.hva.astype(np.int64), count), block * HUGE_BYTES)
    stop = np.minimum(np.repeat(end, count), (block + 1) * HUGE_BYTES)
    small = ~np.isin(block, _huge_blocks(pages))
    npages = ((stop - begin) // PAGE_BYTES).astype(np.int32)
    return replace(wanted, hva=begin[small].astype(np.uint64), npages=npages[small])


def _huge_blocks(pages: GuestPages | None) -> npt.NDArray[np.int64]:
    """Return the numbers (address / 2 MiB) of the blocks that are huge pages."""
    found = [
        np.flatnonzero(one.huge).astype(np.int64) + one.ram.hva // HUGE_BYTES
        for one in (pages.ranges if pages else ())
    ]
    return np.concatenate([np.zeros(0, np.int64), *found])
