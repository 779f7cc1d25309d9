"""What may the joint plan know of a host and its guests?  The agent's snapshot, as the planner reads it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vmplace.model.counted_locality import as_local_as_counted
from vmplace.model.counted_nodes import as_counted, shares_of_some
from vmplace.model.described_memory import MIB, MLP, described_memory
from vmplace.model.evidence import Entries
from vmplace.model.host_memory import host_memory
from vmplace.model.memory_system import MemorySystem
from vmplace.model.metrics import Matrix
from vmplace.model.touched_pages import HUGE_PAGES
from vmplace.policy import home
from vmplace.policy.expected_accesses import (
    THINK_NS,
    Horizon,
    expected_accesses,
    known_s,
    parallelism_of,
    think_times,
    weight_of_touch,
    with_think,
)
from vmplace.policy.host_view import (
    ABSENT,
    REPLICATED,
    Bools,
    GuestEvidence,
    HostView,
    NodeIndexes,
    Room,
    row_sums,
    traffic,
)
from vmplace.policy.loads import load, loads_of
from vmplace.policy.own_limits import barred, copy_pages_left, may_not_copy, may_not_move, pages_left
from vmplace.policy.plan import GuestView, Snapshot
from vmplace.policy.plan_changes import is_shared
from vmplace.policy.plan_state import State
from vmplace.policy.vcpu_places import free_cores, may_tie, vcpu_nodes
from vmplace.topology.guest import PAGE_BYTES
from vmplace.topology.host import HostTopology

MOVE_NS, FLUSH_NS, COLLAPSE_NS = 2000.0, 5000.0, 8000.0
"""Of a vCPU per page; of all vCPUs per batch of 512; of a vCPU per page whose copies collapse."""
BOUND = 0.005
"""By how much a protected guest may get slower for the others' sake."""
FREE_MIB_PER_S = 1e6
"""Where no bandwidth is known, nodes are taken to serve whatever is asked: then distance alone counts."""
ONE_WINDOW = np.ones(1, np.int64).tobytes()
"""All that moves of pages are paid over, of any number of them."""


def host_view(
    snapshot: Snapshot, guests: list[GuestView], seen: dict[str, Entries], state: State, horizon: Horizon
) -> tuple[HostView, list[Matrix]]:
    """Return what the planner may know, these guests first, and each one's traffic."""
    rest = [one for one in snapshot.guests if one.topology.name not in seen]
    loads = loads_of(snapshot, guests, rest, state.crowding)
    evidence = (
        *(_evidence(snapshot, guest, seen, state, horizon) for guest in guests),
        *(_load(snapshot, guest, state, horizon) for guest in loads),
    )
    traffics = [traffic(one.heat, one.node) for one in evidence]
    system = memory_of(snapshot.host)
    think_ns = think_times(system, evidence, [*guests, *loads], traffics)
    evidence = tuple(
        with_think(one, think, state, snapshot.now_ns / 1e9)
        for one, think in zip(evidence, think_ns, strict=True)
    )
    cores = free_cores(snapshot.host, rest)
    return _view(snapshot, system, evidence, horizon, cores, _own_copies(evidence, seen)), traffics


def _own_copies(evidence: tuple[GuestEvidence, ...], seen: dict[str, Entries]) -> Matrix:
    """Return the 4 KiB pages [N] that are copies, of pages that lie elsewhere."""
    own = np.zeros(len(evidence[0].worker))
    for one in evidence:
        copied = np.flatnonzero(one.node == REPLICATED)
        if len(copied):
            sizes = one.sizes_of(copied)
            there = np.bincount(seen[one.name].node[copied], sizes, len(own))
            own += np.where(one.worker, sizes.sum() - there, 0.0)
    return own


def _evidence(
    snapshot: Snapshot, guest: GuestView, seen: dict[str, Entries], state: State, horizon: Horizon
) -> GuestEvidence:
    """Return what the planner may know of one guest."""
    name, host = guest.topology.name, snapshot.host
    entries = seen[name]
    workers = _worker_nids(host, guest)
    copied = _copied(state, guest, entries, workers)
    node = np.where(copied & (entries.node >= 0), REPLICATED, entries.node).astype(np.int8)
    _leave_out_unknown(host, node)
    allowed = home.allowed_nids(host, guest)
    if not guest.settings.interleaves:
        near = {home.nearest(host, worker, allowed) for worker in workers}
        allowed = tuple(nid for nid in allowed if nid in near)
    worker = np.array([nid in workers for nid in host.nids])
    can_copy = snapshot.replica_ratio > 0
    huge = _huge(entries)
    fits = np.bool_(snapshot.huge_replicas) | ~huge
    copy_pages = copy_pages_left(guest, entries.sizes[node == REPLICATED], workers)
    stays, vcpu_node = _stays(guest, entries, huge, allowed), vcpu_nodes(host, guest.topology, entries.heat)
    if guest.lar is not None:
        _as_counted(entries, node, huge, guest.lar)
    _weigh_as_counted(guest, entries)
    weight = weight_of_touch(entries, guest, known_s(guest, snapshot.window_s), horizon)
    # In place: they are this plan's own, and most of what it takes.
    np.multiply(entries.heat, weight, out=entries.heat)
    np.multiply(entries.recent, weight, out=entries.recent)
    for heat in (entries.heat, entries.recent) if guest.settings.gathers else ():
        _only_from(worker, heat)
    return GuestEvidence(
        name=name,
        heat=entries.heat,
        written=entries.written | ~fits | may_not_copy(guest, entries, huge, workers, copied, copy_pages)
        if can_copy
        else np.ones(len(node), np.bool_),
        node=node,
        worker=worker,
        windows=np.ndarray(len(node), np.int64, ONE_WINDOW, strides=(0,)),
        read_ratio=None,
        parallelism=parallelism_of(guest),
        think_ns=THINK_NS,
        mlp=MLP,
        recent=entries.recent,
        slowdown_bound=BOUND if guest.settings.protected else None,
        sizes=entries.sizes,
        huge=huge,
        allowed=np.array([nid in allowed for nid in host.nids]),
        stays=stays,
        known_ns=guest.known_s * 1e9 / horizon.scale,
        calm_since_ns=_calm_since_ns(snapshot, name, state, horizon),
        vcpu_node=vcpu_node,
        may_tie=_may_tie(snapshot, guest, state),
        may_change=guest.may_change,
        is_counted=guest.dram_per_us is not None,
        move_pages=pages_left(guest.move_bytes),
        copy_pages=copy_pages,
        barred=barred(guest, entries, host.nids),
    )


def _as_counted(entries: Entries, node: NodeIndexes, huge: Bools, lar: float) -> None:
    """Let bits of huge pages agree with the counted LAR (in place); samples tell nodes apart anyhow."""
    if not huge.any() or all(one.counted for one in entries.pages):
        return
    by_bits = huge & np.concatenate([np.full(one.entries, not one.counted) for one in entries.pages])
    as_local_as_counted(entries.heat, node, by_bits, lar)
    as_local_as_counted(entries.recent, node, by_bits, lar)


def _weigh_as_counted(guest: GuestView, entries: Entries) -> None:
    """Let samples of nodes agree with counters (in place): bits tell themselves how often a node touches."""
    shares, pages = guest.node_shares, guest.pages
    if shares is None or pages is None or not all(one.sampled for one in entries.pages):
        return
    # Counted is what a node does anywhere, in memory that cannot move, too.
    known = {one.ram.hva for one in entries.pages}
    as_counted(entries.heat, shares_of_some(shares.whole, pages.ranges, known))
    if shares.newest is not None:
        newest = (replace(one, counted=one.counted[:1]) for one in pages.ranges)
        as_counted(entries.recent, shares_of_some(shares.newest, newest, known))


def _copied(state: State, guest: GuestView, entries: Entries, workers: Sequence[int]) -> Bools:
    """Return which entries have copies, as far as is known: those that were to have, unless none has.

    Those of a guest whose vCPUs, on ``workers``, came to one node are dropped, and those of one that may have
    none (unneeded_copies.py): its pages are to lie well without them.
    """
    name, may_not = guest.topology.name, len(workers) == 1 or not guest.settings.may_copy
    if name not in state.known or guest.copied_bytes == 0 or may_not:
        return np.zeros(len(entries.node), np.bool_)
    copied: Bools = state.known[name].copied & ~entries.written
    return copied


def _stays(guest: GuestView, entries: Entries, huge: Bools, allowed: Sequence[int]) -> Bools | None:
    """Return which entries may not move, None: all may."""
    held = may_not_move(guest, entries, huge, allowed)
    if guest.settings.interleaves:
        return held
    shared = is_shared(entries.heat)
    return shared if held is None else shared | held


def _leave_out_unknown(host: HostTopology, node: NodeIndexes) -> None:
    """Count pages as absent on nodes without memory (in place): these came up since the host was read."""
    if len(host.memory_nids) < len(host.nodes):
        none = np.array([not one.memory_bytes for one in host.nodes])
        node[(node >= 0) & none[node]] = ABSENT


def _may_tie(snapshot: Snapshot, guest: GuestView, state: State) -> Bools | None:
    now_s = snapshot.now_ns / 1e9
    if guest.topology.identity in state.gathering.left_out(now_s):
        return None
    return may_tie(snapshot.host, guest, now_s)


def _only_from(worker: Bools, heat: Matrix) -> None:
    """Let all accesses come from nodes where vCPUs may run: those from elsewhere come from these by now."""
    if worker.all() or not worker.any():
        return
    gone = heat[:, ~worker]
    if gone.any():
        heat[:, ~worker] = 0.0
        heat[:, worker] += row_sums(gone)[:, None] / int(worker.sum())


def _calm_since_ns(snapshot: Snapshot, name: str, state: State, horizon: Horizon) -> float | None:
    """Return when the controller was last full to which the guest's memory belongs, unless it is now."""
    if name not in state.crowding.full_s:
        return None
    _, full_s = state.crowding.full_s[name]
    return None if full_s * 1e9 >= snapshot.now_ns else full_s * 1e9 / horizon.scale


def _load(snapshot: Snapshot, guest: GuestView, state: State, horizon: Horizon) -> GuestEvidence:
    """Return what the planner may know of a guest that it moves nothing of."""
    accesses = expected_accesses(guest, known_s(guest, snapshot.window_s), horizon)
    bound, stays = BOUND if guest.settings.protected else None, state.crowding.waits(guest)
    return load(snapshot, guest, accesses, parallelism_of(guest), bound, stays=stays)


def _worker_nids(host: HostTopology, guest: GuestView) -> tuple[int, ...]:
    return host.nids_of_cpus(tuple({cpu for vcpu in guest.topology.vcpus for cpu in vcpu.cpus}))


def _huge(entries: Entries) -> Bools:
    return np.concatenate([one.is_huge for one in entries.pages])


def _view(  # noqa: PLR0913 - a host, and what is known of it
    snapshot: Snapshot,
    system: MemorySystem,
    evidence: tuple[GuestEvidence, ...],
    horizon: Horizon,
    cores: Matrix,
    own: Matrix,
) -> HostView:
    """Return what the planner may know of the host; ``own``: copies [N] that are there."""
    host, room = snapshot.host, home.room_pages(snapshot.host)
    free, left = np.array([[one.free_bytes / PAGE_BYTES, room[one.nid]] for one in host.nodes]).T
    # Of what would be free without them: else each plan would take its share of what the last one left.
    copies = np.clip(snapshot.replica_ratio * (free + own) - own, 0.0, left)
    churn = np.inf if snapshot.budget_bytes is None else snapshot.budget_bytes / PAGE_BYTES
    return HostView(
        system,
        np.array([node.memory_bytes / PAGE_BYTES for node in host.nodes]),
        evidence,
        MOVE_NS * horizon.price,
        FLUSH_NS / HUGE_PAGES * horizon.price,
        snapshot.now_ns / horizon.scale,
        None,
        COLLAPSE_NS * horizon.price,
        Room(float(churn), left, copies),
        cores,
    )


def memory_of(host: HostTopology) -> MemorySystem:
    """Return the host's memory system; where no bandwidth is known, one in which only distance counts."""
    known = host_memory(host)
    if known is not None:
        return known
    distances = np.array([[host.distances[a, b] for b in host.nids] for a in host.nids], float)
    memory = np.array([node.memory_bytes for node in host.nodes], float)
    return described_memory(host.nids, distances, np.full(distances.shape, FREE_MIB_PER_S), memory / MIB)
