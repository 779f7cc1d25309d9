"""Where ought the memory of all guests lie, together?  The joint plan, from what the agent's sources see.

1. Evidence by entries (model/evidence.py) goes to the planner of host_plan.py: pages of all guests go where
   the host's accesses cost least time, moves and copies pay for themselves, the guard limits what is staked.
2. One thing needs no knowledge of pages: if all vCPUs of a guest run on one node, its memory belongs there
   (home.py).  So it is done where nobody counts accesses, and where samples alone, which miss most, tell of
   pages.  Other guests whose source sees no nodes are left alone: that a guest spans nodes is no reason to
   interleave it.
3. What the planner remembers is kept by entry from plan to plan, and follows pages whose block is told apart
   or together in another way.

Time: the planner's constants are of programs that run ``CLOCK_SCALE`` times as fast as real ones
(docs/simulate.md).  ``Horizon`` says how the agent's time and prices relate to them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vmplace.model.described_memory import MIB, MLP, described_memory
from vmplace.model.evidence import HORIZON_S, Entries, entries_of
from vmplace.model.host_memory import host_memory
from vmplace.model.memory_system import MemorySystem
from vmplace.model.pages import RangePages
from vmplace.model.touched_pages import HUGE_PAGES, TouchedPages, runs_of
from vmplace.policy import guard, home
from vmplace.policy.corner_mix import asked_of
from vmplace.policy.host_plan import HostPlanner
from vmplace.policy.host_view import (
    ABSENT,
    REPLICATED,
    Bools,
    GuestEvidence,
    HostView,
    Indexes,
    NodeIndexes,
    Room,
    row_sums,
    traffic,
)
from vmplace.policy.plan import (
    Collapse,
    GuestView,
    Mode,
    Move,
    PlacementPlan,
    Replication,
    Snapshot,
    Stay,
)
from vmplace.policy.steadiness import NOBODY, Steadiness
from vmplace.topology.guest import PAGE_BYTES
from vmplace.topology.host import HostTopology

T = TypeVar("T", bound=np.generic)
MOVE_NS, FLUSH_NS, COLLAPSE_NS = 2000.0, 5000.0, 8000.0
"""Of a vCPU per page; of all vCPUs per batch of 512; of a vCPU per page whose copies collapse."""
SOLE = 0.9
"""A node with this share of the accesses to a page has it to itself, for guests that are not distributed."""
BOUND = 0.005
"""By how much a protected guest may get slower for the others' sake."""
FREE_MIB_PER_S = 1e6
"""Where no bandwidth is known, nodes are taken to serve whatever is asked: then distance alone counts."""
LEAST_CPUS = 0.05
"""Of an idle guest: it has some work now and then."""
THINK_NS = 50.0
"""Between two accesses of a vCPU, where nothing counts them: about as long as it waits for one."""
MOST_COUNTS = 1 << 20
"""Small pages that are told apart, times nodes: 1 GiB on four nodes.  A plan takes some 250 B for each."""
COARSE = "of guest {}, {} blocks of 2 MiB are placed as a whole: more pages differ than a plan tells apart"
UNCOUNTED = "nothing counts accesses to memory of {}: what was seen of them counts as all, so little moves"


@dataclass(frozen=True)
class Horizon:
    """How the agent's time relates to the planner's.

    ``scale``: seconds of the agent for one of the planner's.  ``price``: what changes cost, in the planner's
    time, as a share of their price in real ns: 1 in a simulation whose programs are as short as the planner
    thinks; 1 / scale where programs run as long as the agent.
    """

    scale: float = 50.0
    price: float = 1 / 50.0


@dataclass(frozen=True)
class Known:
    """Where one guest's entries were at the last plan; ``copied``: which have copies, as far as is known."""

    pages: tuple[TouchedPages, ...]
    copied: Bools


@dataclass(frozen=True)
class State:
    """What is remembered between two plans."""

    known: dict[str, Known] = field(default_factory=dict)
    memories: dict[str, guard.Memory] = field(default_factory=dict)
    steady: dict[str, Steadiness] = field(default_factory=dict)
    planned_s: float = 0.0


class AutoPolicy:
    """The plan with its state, as the agent holds it."""

    def __init__(self, horizon: Horizon | None = None) -> None:
        self._horizon = horizon or Horizon()
        self.state = State()

    def __call__(self, snapshot: Snapshot) -> PlacementPlan:
        """Return the plan, and remember."""
        plan, self.state = plan_auto(snapshot, self.state, self._horizon)
        return plan


def plan_auto(snapshot: Snapshot, state: State, horizon: Horizon) -> tuple[PlacementPlan, State]:
    """Return the plan for all guests, and the state after it; pure."""
    system = memory_of(snapshot.host)
    seen = {guest.topology.name: entries for guest, entries in _iter_entries(snapshot)}
    state = _carried_over(state, seen)
    guests = [guest for guest in snapshot.guests if guest.topology.name in seen]
    evidence = tuple(_evidence(snapshot, guest, seen, state, horizon) for guest in guests)
    evidence = _with_think(system, evidence, guests)
    if not guests:
        return _by_vcpus(snapshot, seen), State(planned_s=snapshot.now_ns / 1e9)
    planner = HostPlanner(dict(state.memories), steady=dict(state.steady))
    view = _view(snapshot, system, evidence, horizon)
    decision = planner.plan(view)
    answers = [
        _changes(snapshot, guest, seen[guest.topology.name], before, places, system)
        for guest, before, places in zip(guests, evidence, decision.pages, strict=True)
    ]
    plan = replace(_joined(answers, _by_vcpus(snapshot, seen)), notes=_coarse_notes(seen))
    known = {
        guest.topology.name: Known(seen[guest.topology.name].pages, places == REPLICATED)
        for guest, places in zip(guests, decision.pages, strict=True)
    }
    return plan, State(known, planner.memories, planner.steady, snapshot.now_ns / 1e9)


def _coarse_notes(seen: dict[str, Entries]) -> tuple[str, ...]:
    return tuple(COARSE.format(name, one.coarse) for name, one in sorted(seen.items()) if one.coarse)


def uncounted(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the note on guests whose accesses nobody counts, but for who makes them."""
    names = [g.topology.name for g in snapshot.guests if g.pages is not None and g.dram_per_us is None]
    return (UNCOUNTED.format(", ".join(names)),) if names else ()


def memory_of(host: HostTopology) -> MemorySystem:
    """Return the host's memory system; where no bandwidth is known, one in which only distance counts."""
    known = host_memory(host)
    if known is not None:
        return known
    distances = np.array([[host.distances[a, b] for b in host.nids] for a in host.nids], float)
    memory = np.array([node.memory_bytes for node in host.nodes], float)
    return described_memory(host.nids, distances, np.full(distances.shape, FREE_MIB_PER_S), memory / MIB)


def _iter_entries(snapshot: Snapshot) -> Iterator[tuple[GuestView, Entries]]:
    """Yield the guests of which pages are known by node, and what is known."""
    most = MOST_COUNTS // max(len(snapshot.host.nids), 1)
    # The small guests first: what they leave is the others'.
    for rest, guest in enumerate(sorted(snapshot.guests, key=_npages)):
        pages = guest.pages
        if pages is None or guest.settings.mode is Mode.MANUAL or pages.nids != snapshot.host.nids:
            continue
        if not home.allowed_nids(snapshot.host, guest) or needs_no_evidence(snapshot.host, guest):
            continue
        entries = entries_of(pages, snapshot.window_s, max(most, 0) // (len(snapshot.guests) - rest))
        if entries is not None:
            most -= entries.apart
            yield guest, entries


def _npages(guest: GuestView) -> int:
    return sum(one.npages for one in guest.topology.ram)


def plans_pages(host: HostTopology, guest: GuestView) -> bool:
    """Tell whether the guest's pages are planned one by one: who touches them is seen, and says something."""
    is_seen = guest.pages is not None and any(one.history for one in guest.pages.ranges)
    return is_seen and not needs_no_evidence(host, guest)


def needs_no_evidence(host: HostTopology, guest: GuestView) -> bool:
    """Tell whether the guest's vCPUs alone say where its memory belongs: on one node, with little known else.

    Little: nobody counts its accesses, or only samples tell of its pages, which miss most of them.
    """
    is_sampled = guest.pages is not None and any(one.sampled for one in guest.pages.ranges)
    return (guest.dram_per_us is None or is_sampled) and len(home.worker_nids(host, guest)) == 1


def _by_vcpus(snapshot: Snapshot, seen: dict[str, Entries]) -> PlacementPlan:
    """Return what the others' vCPUs alone tell."""
    rest = tuple(guest for guest in snapshot.guests if guest.topology.name not in seen)
    return home.plan(replace(snapshot, guests=rest))


def _evidence(
    snapshot: Snapshot, guest: GuestView, seen: dict[str, Entries], state: State, horizon: Horizon
) -> GuestEvidence:
    """Return what the planner may know of one guest."""
    name, host = guest.topology.name, snapshot.host
    entries = seen[name]
    copied = state.known[name].copied & ~entries.written if name in state.known else np.False_
    node = np.where(copied & (entries.node >= 0), REPLICATED, entries.node).astype(np.int8)
    allowed = home.allowed_nids(host, guest)
    worker = np.array([nid in _worker_nids(host, guest) for nid in host.nids])
    can_copy = snapshot.replica_ratio > 0
    fits = np.bool_(snapshot.huge_replicas) | ~_huge(entries)
    weight = _weight(entries, guest, _known_s(guest, snapshot.window_s), horizon)
    # In place: they are this plan's own, and most of what it takes.
    np.multiply(entries.heat, weight, out=entries.heat)
    np.multiply(entries.recent, weight, out=entries.recent)
    return GuestEvidence(
        name=name,
        heat=entries.heat,
        written=entries.written | ~fits if can_copy else np.ones(len(node), np.bool_),
        node=node,
        worker=worker,
        windows=np.broadcast_to(np.int64(1), len(node)),
        read_ratio=None,
        parallelism=_parallelism(guest),
        think_ns=THINK_NS,
        mlp=MLP,
        recent=entries.recent,
        slowdown_bound=BOUND if guest.settings.protected else None,
        sizes=entries.sizes,
        allowed=np.array([nid in allowed for nid in host.nids]),
        known_ns=guest.known_s * 1e9 / horizon.scale,
    )


def _known_s(guest: GuestView, window_s: float) -> float:
    """Return for how long the guest's pages have been watched, at least."""
    return max(guest.known_s, (guest.pages.windows if guest.pages else 0) * window_s)


def _weight(entries: Entries, guest: GuestView, known_s: float, horizon: Horizon) -> float:
    """Return what one of the evidence's touches counts for, beside prices that are ``horizon.price``."""
    if guest.dram_per_us is None:
        # A touch may stand for one access or for thousands: more than was seen is not staked on it.
        return horizon.price
    # What was seen is expected once more: of a guest that is known for a second, no more than a second's.
    expected = _per_ns(guest) * 1e9 * min(known_s, HORIZON_S) / horizon.scale
    seen = float(entries.heat.sum())
    return expected / seen if seen > 0 else 0.0


def _per_ns(guest: GuestView) -> float:
    """Return the guest's accesses to DRAM a ns: counted, or those of vCPUs that wait half of the time."""
    if guest.dram_per_us is not None:
        return guest.dram_per_us / 1000
    return _parallelism(guest) / (2 * THINK_NS)


def _parallelism(guest: GuestView) -> float:
    vcpus = max(len(guest.topology.vcpus), 1)
    return float(vcpus if guest.cpus is None else np.clip(guest.cpus, LEAST_CPUS, vcpus))


def _with_think(
    system: MemorySystem, evidence: tuple[GuestEvidence, ...], guests: list[GuestView]
) -> tuple[GuestEvidence, ...]:
    """Return the evidence with the work between two accesses that explains the rates that were counted.

    A vCPU's time between two accesses is work and latency / mlp (memory_system.py).  Where nothing counts, a
    guest is taken to work half of its time.
    """
    if not evidence:
        return ()
    traffics = [traffic(one.heat, one.node) for one in evidence]
    shares = np.stack([one / max(float(one.sum()), 1e-300) for one in traffics])
    reported = [guest.dram_per_us for guest in guests]
    rates = np.array([_per_ns(guest) for guest in guests])
    waits = system.visits @ system.waits(asked_of(system, rates, shares))
    latency = np.einsum("gkj,kj->g", shares, system.latency + waits)
    return tuple(
        one
        if counted is None
        else replace(one, think_ns=max(one.parallelism / max(rate, 1e-6) - wait / one.mlp, 0.1))
        for one, counted, rate, wait in zip(evidence, reported, rates.tolist(), latency.tolist(), strict=True)
    )


def _worker_nids(host: HostTopology, guest: GuestView) -> tuple[int, ...]:
    return host.nids_of_cpus(tuple({cpu for vcpu in guest.topology.vcpus for cpu in vcpu.cpus}))


def _huge(entries: Entries) -> Bools:
    return np.concatenate([one.is_huge for one in entries.pages])


def _view(
    snapshot: Snapshot, system: MemorySystem, evidence: tuple[GuestEvidence, ...], horizon: Horizon
) -> HostView:
    host = snapshot.host
    room, free = home.room_pages(host), {node.nid: node.free_bytes for node in host.nodes}
    copies = [snapshot.replica_ratio * free[nid] / PAGE_BYTES for nid in host.nids]
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
        Room(float(churn), np.array([room[nid] for nid in host.nids]), np.array(copies)),
    )


# What the planner remembers, from the entries of one plan to those of the next.


def _carried_over(state: State, seen: dict[str, Entries]) -> State:
    """Return the state with what is remembered of each guest by its entries of now."""
    known, memories, steady = {}, {}, {}
    for name, entries in seen.items():
        before = state.known.get(name)
        if before is None or name not in state.memories:
            continue
        if _are_same(entries.pages, before.pages):
            known[name], steady[name] = Known(entries.pages, before.copied), state.steady[name]
            memories[name] = _same_memory(state.memories[name])
            continue
        at = entries_before(entries.pages, before.pages)
        known[name] = Known(entries.pages, _taken(before.copied, at, False))
        memories[name] = _memory_of(state.memories[name], at)
        old = state.steady[name]
        steady[name] = Steadiness(
            _taken(old.user, at, NOBODY), _taken(old.since_ns, at, 0.0), _taken(old.unwritten_ns, at, 0.0)
        )
    return State(known, memories, steady, state.planned_s)


def _are_same(now: tuple[TouchedPages, ...], before: tuple[TouchedPages, ...]) -> bool:
    """Tell whether each entry is what it was: then nothing has to follow."""
    return len(now) == len(before) and all(
        (a.ram.hva, a.ram.npages) == (b.ram.hva, b.ram.npages)
        and np.array_equal(a.blocks, b.blocks)
        and np.array_equal(a.apart, b.apart)
        and np.array_equal(a.whole, b.whole)
        for a, b in zip(now, before, strict=True)
    )


def _same_memory(memory: guard.Memory) -> guard.Memory:
    """Return the memory of entries that are the same; moves that joined a trial get into its order."""
    if memory.trials:
        return _memory_of(memory, np.arange(len(memory.origin)))
    return replace(memory, promise=None)


def _memory_of(memory: guard.Memory, at: Indexes) -> guard.Memory:
    trials = tuple(_trial_of(trial, len(memory.origin), at) for trial in memory.trials)
    return replace(memory, origin=_taken(memory.origin, at, ABSENT), trials=trials, promise=None)


def _trial_of(trial: guard.PastMove, count: int, at: Indexes) -> guard.PastMove:
    places = np.full((2, count), ABSENT, np.int8)
    member = np.zeros(count, np.bool_)
    places[0, trial.pages], places[1, trial.pages], member[trial.pages] = trial.before, trial.after, True
    pages: Indexes = np.flatnonzero(_taken(member, at, False))
    return replace(trial, pages=pages, before=places[0][at[pages]], after=places[1][at[pages]])


def _taken(values: npt.NDArray[T], at: Indexes, default: object) -> npt.NDArray[T]:
    """Return ``values[at]``, and ``default`` where ``at`` is below zero."""
    taken = np.full(len(at), default, values.dtype)
    there = at >= 0
    taken[there] = values[at[there]]
    return taken


def entries_before(now: tuple[TouchedPages, ...], before: tuple[TouchedPages, ...]) -> Indexes:
    """Return which entry of ``before`` each entry of ``now`` was (part of), -1 for those that had none."""
    starts = np.cumsum([0, *(len(one.heat) for one in before)]).tolist()
    old = {one.ram.hva: (one, start) for one, start in zip(before, starts[:-1], strict=True)}
    found = []
    for one in now:
        known = old.get(one.ram.hva)
        if known is None or known[0].ram.npages != one.ram.npages:
            found.append(np.full(len(one.heat), -1, np.intp))
        else:
            at = _within(one, known[0])
            found.append(np.where(at >= 0, at + known[1], -1))
    return np.concatenate([np.zeros(0, np.intp), *found])


def _within(now: TouchedPages, before: TouchedPages) -> Indexes:
    blocks = 1 + int(max(now.blocks.max(initial=0), before.blocks.max(initial=0)))
    first, step = np.full(blocks, -1, np.intp), np.zeros(blocks, np.intp)
    apart, whole = before.blocks[before.apart], before.blocks[before.whole]
    first[apart], step[apart] = np.arange(len(apart)) * HUGE_PAGES, 1
    first[whole] = before.edge + np.arange(len(whole))
    block = np.concatenate([np.repeat(now.blocks[now.apart], HUGE_PAGES), now.blocks[now.whole]])
    inside = np.zeros(len(block), np.intp)
    inside[: now.edge] = np.tile(np.arange(HUGE_PAGES), len(now.apart))
    return np.where(first[block] >= 0, first[block] + step[block] * inside, -1)


# What the decision means for the actuator.

_Answer = tuple[tuple[Move, ...], tuple[Replication, ...], tuple[Collapse, ...], tuple[Stay, ...]]


def _changes(  # noqa: PLR0913 - a decision, and all it refers to
    snapshot: Snapshot,
    guest: GuestView,
    entries: Entries,
    before: GuestEvidence,
    places: NodeIndexes,
    system: MemorySystem,
) -> _Answer:
    """Return the changes of one guest's pages, hottest first."""
    name, nids = guest.topology.name, snapshot.host.nids
    known = {one.ram.hva: one for one in guest.pages.ranges} if guest.pages else {}
    moves, copies, drops = [], [], []
    for pages, start, end in zip(entries.pages, entries.starts, entries.starts[1:], strict=False):
        mine = slice(start, end)
        here, there, home_node = before.node[mine], places[mine], entries.node[mine]
        if not guest.settings.interleaves:
            there = np.where(_is_shared(before.heat[mine]) & (there >= 0), home_node, there)
        for target in np.unique(there[(there != home_node) & (there >= 0)]).tolist():
            some = np.flatnonzero((there == target) & (home_node != target) & (home_node >= 0))
            one = known[pages.ram.hva]
            moves.append(_move(name, nids, one, pages, some, home_node, target, before, start, system))
        wanted = there == REPLICATED
        if wanted.any():
            near = tuple(nid for nid, at in zip(nids, before.worker.tolist(), strict=True) if at)
            reported = (
                f"nodes {', '.join(map(str, near))} only read them: {_saved(before, start, wanted, system)}"
            )
            copies.append(Replication(name, *runs_of(pages, wanted, pages.sizes), near, reported))
        written = entries.written[mine] | ((here == REPLICATED) & (there != REPLICATED))
        if snapshot.replica_ratio and written.any():
            drops.append(Collapse(name, *runs_of(pages, written, pages.sizes), "they are written"))
    if moves or copies:
        return tuple(moves), tuple(copies), tuple(drops), ()
    return (), (), tuple(drops), (Stay(name, "no move would pay for itself: it rests well"),)


def _is_shared(heat: npt.NDArray[np.float64]) -> Bools:
    """Tell which entries no node has nearly to itself: to place these is to deal them out."""
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
) -> Move:
    """Return the move of entries to one node; small pages of a block that are alike move one by one."""
    heat = before.heat[start + some]
    some = some[np.argsort(-row_sums(heat) / pages.sizes[some], kind="stable")]
    single = np.where(pages.is_huge[some], 1, pages.sizes[some])
    hva = np.repeat(pages.hva_of(some), single)
    first = np.cumsum(single) - single
    hva += (np.arange(len(hva)) - np.repeat(first, single)) * PAGE_BYTES
    npages, here = (
        np.repeat(np.where(pages.is_huge[some], HUGE_PAGES, 1), single),
        np.repeat(node[some], single),
    )
    coarse = np.isin(some, pages.coarse)
    # Of these, pages may lie elsewhere than most of their block do.
    at = first[coarse][:, None] + np.arange(HUGE_PAGES)
    here[at] = known.nodes_of(pages.blocks[pages.block_of(some[coarse])])
    away = (here >= 0) & (here != target)
    gain = float(
        (before.heat[start + some] @ (system.latency[:, :] - system.latency[:, [target]]))[
            np.arange(len(some)), node[some]
        ].sum()
    )
    size_mib = float(npages[away].sum()) * PAGE_BYTES / MIB
    effect = f"{'save' if gain >= 0 else 'add'} {abs(gain) / 1e6:.2f} ms of latency"
    reason = (
        f"to node {nids[target]}, which is nearer to its users or less busy: "
        f"{size_mib:.1f} MiB, expected to {effect}"
    )
    return Move(
        name,
        hva[away].astype(np.uint64),
        npages[away].astype(np.uint16),
        np.array(nids, np.int16)[here[away]],
        np.full(int(away.sum()), nids[target], np.int16),
        reason,
        gain,
    )


def _saved(before: GuestEvidence, start: int, wanted: Bools, system: MemorySystem) -> str:
    some = start + np.flatnonzero(wanted)
    size_mib = float(before.sizes_of(some).sum()) * PAGE_BYTES / MIB
    return f"{size_mib:.1f} MiB"


def _joined(answers: list[_Answer], rest: PlacementPlan) -> PlacementPlan:
    return PlacementPlan(
        (*(move for one in answers for move in one[0]), *rest.moves),
        (*(stay for one in answers for stay in one[3]), *rest.stays),
        tuple(copy for one in answers for copy in one[1]),
        tuple(drop for one in answers for drop in one[2]),
    )
