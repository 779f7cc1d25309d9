"""Where ought the memory of all guests lie, together?  The joint plan, from what the agent's sources see.

1. Evidence by entries (model/evidence.py) goes to the planner of host_plan.py: pages of all guests go where
   the host's accesses cost least time, moves and copies pay for themselves, the guard limits what is staked.
2. One thing needs no knowledge of pages: if all vCPUs of a guest run on one node, its memory belongs there
   (home.py).  So it is done where nobody counts accesses, and where samples alone, which miss most, tell of
   pages, unless controllers are full (full_controllers.py).  Other guests whose source sees no nodes are left
   alone: that a guest spans nodes is no reason to interleave it.
3. What the planner remembers is kept by entry from plan to plan, and follows pages if their block
   becomes one entry, or several.

Time: the planner's constants are of programs that run ``CLOCK_SCALE`` times as fast as real ones
(docs/simulate.md).  ``Horizon`` says how the agent's time and prices relate to them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from vmplace.model.described_memory import MIB, MLP, described_memory
from vmplace.model.evidence import HORIZON_S, Entries, entries_of
from vmplace.model.host_memory import host_memory
from vmplace.model.memory_system import MemorySystem
from vmplace.model.metrics import Matrix
from vmplace.model.touched_pages import HUGE_PAGES
from vmplace.policy import home
from vmplace.policy.corner_mix import asked_of
from vmplace.policy.forecast import weighings
from vmplace.policy.full_controllers import Crowding
from vmplace.policy.host_plan import HostPlanner
from vmplace.policy.host_view import (
    REPLICATED,
    Bools,
    GuestEvidence,
    HostPlacement,
    HostView,
    Room,
    traffic,
)
from vmplace.policy.options import Weighing
from vmplace.policy.plan import (
    GuestView,
    Mode,
    PlacementPlan,
    Snapshot,
    Stay,
)
from vmplace.policy.plan_changes import allowed_places, changes_of, joined
from vmplace.policy.plan_state import Known, State, carried_over, remembered
from vmplace.topology.guest import PAGE_BYTES
from vmplace.topology.host import HostTopology

MOVE_NS, FLUSH_NS, COLLAPSE_NS = 2000.0, 5000.0, 8000.0
"""Of a vCPU per page; of all vCPUs per batch of 512; of a vCPU per page whose copies collapse."""
BOUND = 0.005
"""By how much a protected guest may get slower for the others' sake."""
FREE_MIB_PER_S = 1e6
"""Where no bandwidth is known, nodes are taken to serve whatever is asked: then distance alone counts."""
LEAST_CPUS = 0.05
"""Of an idle guest: it has some work now and then."""
THINK_NS = 50.0
"""Between two accesses of a vCPU, where nothing counts them: about as long as it waits for one."""
MOST_COUNTS = 1 << 20
"""Small pages planned one by one, times nodes: 1 GiB on four nodes.  A plan takes some 250 B for each."""
COARSE = "of guest {}, {} blocks of 2 MiB are placed as a whole: more pages differ than a plan tells apart"
BY_VCPUS = "gain and price: its vCPUs alone tell where its memory belongs, not its accesses"
WAITS = "gain and price: this window tells too little of its pages, so they stay as they were placed"
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
    before, crowding = state, state.crowding.now(snapshot, state.known)
    seen = {guest.topology.name: entries for guest, entries in _iter_entries(snapshot, crowding)}
    state = carried_over(state, seen)
    guests = [guest for guest in snapshot.guests if guest.topology.name in seen]
    evidence = tuple(_evidence(snapshot, guest, seen, state, horizon) for guest in guests)
    if not guests:
        state = State(planned_s=snapshot.now_ns / 1e9, crowding=crowding)
        return _without_evidence(snapshot, seen, crowding), remembered(state, before)
    traffics = [traffic(one.heat, one.node) for one in evidence]
    evidence = _with_think(system, evidence, guests, traffics)
    planner = HostPlanner(dict(state.memories), steady=dict(state.steady))
    view = _view(snapshot, system, evidence, horizon)
    decision = planner.plan(view)
    pages = [
        allowed_places(guest, seen[guest.topology.name], before, places)
        for guest, before, places in zip(guests, evidence, decision.pages, strict=True)
    ]
    decision = replace(decision, pages=pages)
    answers = [
        changes_of(snapshot, guest, seen[guest.topology.name], before, places, system)
        for guest, before, places in zip(guests, evidence, decision.pages, strict=True)
    ]
    plan = replace(
        joined(answers, rest := _without_evidence(snapshot, seen, crowding)),
        notes=_coarse_notes(seen),
        weighings=(*_weighings(view, traffics, decision, guests, snapshot, horizon), *rest.weighings),
    )
    known = {
        guest.topology.name: Known(seen[guest.topology.name].pages, places == REPLICATED)
        for guest, places in zip(guests, decision.pages, strict=True)
    }
    origins = [planner.memories[one.name].origin for one in evidence]
    crowding = crowding.after(snapshot, zip(guests, origins, decision.pages, strict=True))
    after = State(known, planner.memories, planner.steady, snapshot.now_ns / 1e9, crowding=crowding)
    return plan, remembered(after, before)


def _weighings(  # noqa: PLR0913 - a decision, and all it refers to
    view: HostView,
    traffics: list[Matrix],
    decision: HostPlacement,
    guests: list[GuestView],
    snapshot: Snapshot,
    horizon: Horizon,
) -> tuple[Weighing, ...]:
    """Return what was weighed, in real time."""
    ahead_s = [
        None if guest.dram_per_us is None else min(_known_s(guest, snapshot.window_s), HORIZON_S)
        for guest in guests
    ]
    return weighings(view, traffics, decision, 1 / horizon.price, ahead_s)


def _coarse_notes(seen: dict[str, Entries]) -> tuple[str, ...]:
    return tuple(COARSE.format(name, one.coarse) for name, one in sorted(seen.items()) if one.coarse)


def by_pages(plan: PlacementPlan) -> frozenset[str]:
    """Return the guests whose pages were weighed; of others, vCPUs alone tell where memory belongs."""
    return frozenset(one.guest for one in plan.weighings if one.unknown != BY_VCPUS)


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


def _iter_entries(snapshot: Snapshot, crowding: Crowding) -> Iterator[tuple[GuestView, Entries]]:
    """Yield the guests of which pages are known by node, and what is known."""
    most = MOST_COUNTS // max(len(snapshot.host.nids), 1)
    # The small guests first: what they leave is the others'.
    for rest, guest in enumerate(sorted(snapshot.guests, key=_npages)):
        pages = guest.pages
        if pages is None or guest.settings.mode is Mode.MANUAL or pages.nids != snapshot.host.nids:
            continue
        if not home.allowed_nids(snapshot.host, guest):
            continue
        if crowding.goes_by_vcpus(snapshot.host, guest):
            continue
        entries = entries_of(pages, snapshot.window_s, max(most, 0) // (len(snapshot.guests) - rest))
        if entries is not None:
            most -= entries.apart
            yield guest, entries


def _npages(guest: GuestView) -> int:
    return sum(one.npages for one in guest.topology.ram)


def _without_evidence(snapshot: Snapshot, seen: dict[str, Entries], crowding: Crowding) -> PlacementPlan:
    """Return what the others' vCPUs alone tell; who waits for evidence stays."""
    rest = tuple(guest for guest in snapshot.guests if guest.topology.name not in seen)
    waits = tuple(guest.topology.name for guest in rest if crowding.waits(snapshot.host, guest))
    rest = tuple(guest for guest in rest if guest.topology.name not in waits)
    names = (guest.topology.name for guest in rest if guest.settings.mode is not Mode.MANUAL)
    plan = home.plan(replace(snapshot, guests=rest))
    return replace(
        plan,
        stays=(*plan.stays, *(Stay(name, WAITS.removeprefix("gain and price: ")) for name in waits)),
        weighings=(
            *(Weighing(name, unknown=BY_VCPUS) for name in names),
            *(Weighing(name, unknown=WAITS) for name in waits),
        ),
    )


def _evidence(
    snapshot: Snapshot, guest: GuestView, seen: dict[str, Entries], state: State, horizon: Horizon
) -> GuestEvidence:
    """Return what the planner may know of one guest."""
    name, host = guest.topology.name, snapshot.host
    entries = seen[name]
    copied = state.known[name].copied & ~entries.written if name in state.known else np.False_
    node = np.where(copied & (entries.node >= 0), REPLICATED, entries.node).astype(np.int8)
    allowed = home.allowed_nids(host, guest)
    workers = _worker_nids(host, guest)
    worker = np.array([nid in workers for nid in host.nids])
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
        huge=_huge(entries),
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
    system: MemorySystem,
    evidence: tuple[GuestEvidence, ...],
    guests: list[GuestView],
    traffics: list[Matrix],
) -> tuple[GuestEvidence, ...]:
    """Return the evidence with the work between two accesses that explains the rates that were counted.

    A vCPU's time between two accesses is work and latency / mlp (memory_system.py).  Where nothing counts, a
    guest is taken to work half of its time.
    """
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
