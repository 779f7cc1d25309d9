"""Where ought the memory of all guests lie, together?  The joint plan, from what the agent's sources see.

1. Evidence by entries (model/evidence.py) goes to the planner of host_plan.py: pages of all guests go where
   the host's accesses cost least time, moves and copies pay for themselves, the guard limits what is staked.
2. One thing needs no knowledge of pages: if all vCPUs of a guest run on one node, its memory belongs there
   (home.py).  So it is done where nobody counts accesses, and where samples alone, which miss most, tell of
   pages, unless controllers are full (full_controllers.py), or its vCPUs are about to float again.  It gets
   the room and budget that the plan by pages leaves.  Other guests whose source sees no nodes are left
   alone: that a guest spans nodes is no reason to interleave it.
3. vCPUs that may run on several nodes are tied to one if that saves time with the memory that follows, and
   get the CPUs back that they had if it did not (gather_ties.py).
4. So many small pages are planned one by one (``MOST_COUNTS``), others by blocks.  Where many guests share in
   that, those on one node go by blocks: their pages differ in heat alone.
5. What the planner remembers is kept by entry from plan to plan, and follows pages if their block
   becomes one entry, or several.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from vmplace.model.evidence import Entries, entries_of
from vmplace.model.heat_horizon import HORIZON_S
from vmplace.model.metrics import Matrix
from vmplace.model.pages import GuestPages, RangePages
from vmplace.model.touched_pages import HUGE_PAGES
from vmplace.policy import guard, home
from vmplace.policy.expected_accesses import Horizon, known_s
from vmplace.policy.forecast import weighings
from vmplace.policy.full_controllers import Crowding
from vmplace.policy.gather_choice import chosen
from vmplace.policy.gather_ties import followed
from vmplace.policy.gathering import EarlierTie, Gathering, Stage, news
from vmplace.policy.host_plan import HostPlanner
from vmplace.policy.host_view import REPLICATED, HostPlacement, HostView, Room
from vmplace.policy.options import Weighing
from vmplace.policy.plan import GuestView, Mode, PlacementPlan, Snapshot, Stay
from vmplace.policy.plan_changes import allowed_places, changes_of, joined
from vmplace.policy.plan_state import PlannedEntries, State, carried_over, remembered
from vmplace.policy.planner_view import host_view
from vmplace.policy.vcpu_plan import following_ns
from vmplace.sampling.page_frames import block_offset
from vmplace.topology.guest import PAGE_BYTES, Identity
from vmplace.topology.host import HostTopology

__all__ = ["AutoPolicy", "Horizon", "by_pages", "plan_auto", "uncounted"]

LOG = logging.getLogger(__name__)
MOST_COUNTS = 1 << 20
"""Small pages planned one by one, times nodes: 1 GiB on four nodes.  A plan takes some 250 B for each."""
FEW_PAGES = 1 << 12
"""16 MiB of each guest: if a plan has no room for more, guests on one node are planned by blocks."""
COARSE = (
    "of guest {}, {} blocks of 2 MiB are placed as a whole: more pages differ here than a plan tells apart"
)
BY_VCPUS = "gain and price: its vCPUs alone tell where its memory belongs, not its accesses"
FOLLOWS = "gain and price: its memory follows its vCPUs, and counters tell whether that helps"
FLOATS = "its vCPUs get back the CPUs that they had, so its memory stays for now"
WAITS = "this window tells too little of its pages, so they stay as they were placed"
UNCOUNTED = "nothing counts accesses to memory of {}: what was seen of them counts as all, so little moves"


class AutoPolicy:
    """The plan with its state, as the agent holds it."""

    def __init__(
        self, horizon: Horizon | None = None, earlier: Mapping[Identity, EarlierTie] | None = None
    ) -> None:
        self._horizon = horizon or Horizon()
        self.state = State(gathering=Gathering(earlier=earlier or {}))

    def __call__(self, snapshot: Snapshot) -> PlacementPlan:
        """Return the plan, and remember."""
        before = self.state.gathering
        plan, self.state = plan_auto(snapshot, self.state, self._horizon)
        for line in news(before, self.state.gathering):
            LOG.info("%s", line)
        return plan


def plan_auto(snapshot: Snapshot, state: State, horizon: Horizon) -> tuple[PlacementPlan, State]:
    """Return the plan for all guests, and the state after it; pure."""
    before, crowding = state, state.crowding.now(snapshot)
    seen = {guest.topology.name: entries for guest, entries in _iter_entries(snapshot, crowding)}
    gathering = followed(state.gathering, snapshot)
    waiting = gathering
    after = State(planned_s=snapshot.now_ns / 1e9, crowding=crowding, gathering=gathering)
    if not seen:
        rest = _without_evidence(snapshot, seen, crowding, waiting)
        return replace(rest, vcpu_moves=gathering.moves(snapshot)), remembered(after, before)
    state = carried_over(replace(state, crowding=crowding, gathering=gathering), seen)
    guests = [guest for guest in snapshot.guests if guest.topology.name in seen]
    view, traffics = host_view(snapshot, guests, seen, state, horizon)
    memories, gathering = _granted(state.memories, gathering, view)
    gathering = chosen(gathering, snapshot, view, _lived_ns(memories, view), horizon.price)
    planner = HostPlanner(memories, steady=dict(state.steady), waiting=gathering.asked(snapshot.guests))
    decision = planner.plan(view)
    rest = _without_evidence(snapshot, seen, crowding, waiting, decision.room)
    places = {
        guest.topology.name: allowed_places(seen[guest.topology.name], evidence, pages)
        for guest, evidence, pages in zip(guests, view.guests, decision.pages, strict=False)
    }
    # What is left are loads: they stay as they are.
    decision = replace(decision, pages=[*places.values(), *decision.pages[len(guests) :]])
    answers = [
        changes_of(
            snapshot, guest, seen[name], evidence, places[name], view.system, decision.why.get(name, "")
        )
        for guest, evidence, name in zip(guests, view.guests, places, strict=False)
    ]
    weighed = _weighings(view, traffics, decision, guests, snapshot, horizon)
    plan = replace(
        joined(answers, rest),
        vcpu_moves=gathering.moves(snapshot),
        notes=_coarse_notes(seen),
        weighings=(*weighed, *rest.weighings),
    )
    # What is planned for a guest that may not change now, nobody does.
    done = [
        one if guest.may_change else guest.node
        for guest, one in zip(view.guests, places.values(), strict=False)
    ]
    after = replace(
        after,
        known={
            name: PlannedEntries(seen[name].pages, one == REPLICATED)
            for name, one in zip(places, done, strict=True)
        },
        memories={name: planner.memories[name] for name in places},
        steady={name: planner.steady[name] for name in places},
        gathering=gathering,
        think_ns={one.name: one.think_ns for one in view.guests if one.is_counted},
    )
    return plan, remembered(after, before)


def _granted(
    memories: Mapping[str, guard.Memory], gathering: Gathering, view: HostView
) -> tuple[dict[str, guard.Memory], Gathering]:
    """Return the memories with what is staked on memory that follows vCPUs, and on its way back.

    It is granted once, as soon as the vCPUs are seen on their node and anything of the memory.
    """
    here, memories, ties = {guest.name: guest for guest in view.guests}, dict(memories), dict(gathering.ties)
    for identity, one in gathering.ties.items():
        name = one.move.guest
        if one.stage in (Stage.TRIED, Stage.KEPT) and not one.granted and name in here and name in memories:
            staked_ns = 2 * following_ns(view, here[name])
            memories[name] = guard.resettled(memories[name], here[name], staked_ns)
            ties[identity] = replace(one, granted=True)
    return memories, replace(gathering, ties=ties)


def _lived_ns(memories: Mapping[str, guard.Memory], view: HostView) -> Matrix:
    """Return for how long each guest [G] was watched, 0 for one that is new."""
    born = [memories[one.name].born_ns if one.name in memories else view.now_ns for one in view.guests]
    return view.now_ns - np.array(born)


def _weighings(  # noqa: PLR0913 - a decision, and all it refers to
    view: HostView,
    traffics: list[Matrix],
    decision: HostPlacement,
    guests: list[GuestView],
    snapshot: Snapshot,
    horizon: Horizon,
) -> tuple[Weighing, ...]:
    """Return what was weighed of these guests, in real time."""
    ahead_s: list[float | None] = [None] * len(view.guests)
    for number, guest in enumerate(guests):
        if guest.dram_per_us is not None:
            ahead_s[number] = min(known_s(guest, snapshot.window_s), HORIZON_S)
    return weighings(view, traffics, decision, 1 / horizon.price, ahead_s)[: len(guests)]


def _coarse_notes(seen: dict[str, Entries]) -> tuple[str, ...]:
    return tuple(COARSE.format(name, one.coarse) for name, one in sorted(seen.items()) if one.coarse)


def by_pages(plan: PlacementPlan) -> frozenset[str]:
    """Return the guests that the plan itself watches: their pages were weighed, or wait, or vCPUs are tried.

    Of others, vCPUs alone tell where memory belongs, and a trial of theirs tells whether that was right.
    """
    return frozenset(one.guest for one in plan.weighings if one.unknown != BY_VCPUS)


def uncounted(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the note on guests whose accesses nobody counts, but for who makes them."""
    names = [g.topology.name for g in snapshot.guests if g.pages is not None and g.dram_per_us is None]
    return (UNCOUNTED.format(", ".join(names)),) if names else ()


def _iter_entries(snapshot: Snapshot, crowding: Crowding) -> Iterator[tuple[GuestView, Entries]]:
    """Yield the guests of which pages are known by node, and what is known."""
    most = MOST_COUNTS // max(len(snapshot.host.nids), 1)
    # The small guests first: what they leave is the others'.
    in_turn = enumerate(sorted(snapshot.guests, key=_npages))
    shown = [(rest, guest, _pages_of(snapshot, crowding, guest)) for rest, guest in in_turn]
    are_many = most < FEW_PAGES * sum(pages is not None for *_, pages in shown)
    for rest, guest, pages in shown:
        if pages is None:
            continue
        share = max(most, 0) // (len(snapshot.guests) - rest)
        by_blocks = are_many and _is_of_one_node(snapshot.host, guest)
        entries = entries_of(pages, snapshot.window_s, 0 if by_blocks else share)
        if entries is not None:
            # What a guest on one node does without is no other's: many guests' plans are to be cheap.
            most -= min(share, entries.apart + HUGE_PAGES * entries.coarse) if by_blocks else entries.apart
            yield guest, entries


def _pages_of(snapshot: Snapshot, crowding: Crowding, guest: GuestView) -> GuestPages | None:
    """Return the guest's pages, None if nobody asks for them."""
    pages = guest.pages
    if pages is None or guest.settings.mode is Mode.MANUAL or pages.nids != snapshot.host.nids:
        return None
    has_room = bool(home.allowed_nids(snapshot.host, guest))
    return pages if has_room and not crowding.goes_by_vcpus(snapshot.host, guest) else None


def _is_of_one_node(host: HostTopology, guest: GuestView) -> bool:
    """Tell whether one node uses all of the guest's memory, and each 2 MiB of it lie on one."""
    lies_apart = guest.pages is not None and any(map(_lies_apart, guest.pages.ranges))
    return not lies_apart and len(home.worker_nids(host, guest)) == 1


def _lies_apart(pages: RangePages) -> bool:
    """Tell whether a whole block of the range lies on several nodes; parts at its ends go by pages anyhow."""
    begin = block_offset(pages.ram)
    end = (begin + pages.ram.npages) % HUGE_PAGES
    return bool(pages.nodes.is_mixed[bool(begin) : pages.blocks - bool(end)].any())


def _npages(guest: GuestView) -> int:
    return sum(one.npages for one in guest.topology.ram)


def _budget_left(budget_bytes: int | None, churn: float, share: float) -> int | None:
    return None if budget_bytes is None else max(round(churn * PAGE_BYTES), round(budget_bytes * share))


def _without_evidence(
    snapshot: Snapshot,
    seen: dict[str, Entries],
    crowding: Crowding,
    gathering: Gathering,
    left: Room | None = None,
) -> PlacementPlan:
    """Return what the others' vCPUs alone tell; who waits, for evidence or for vCPUs to float, stays.

    ``left``: what the plan by pages leaves, None: all.  It comes first, as it moves what was seen to be used,
    and as its moves are the first to be carried out; what goes home goes on until nothing is left.  A share
    of the budget by guests is there for it at all times: moves that nobody can make may be planned for ever.
    """
    rest = tuple(guest for guest in snapshot.guests if guest.topology.name not in seen)
    tried, leaving = gathering.tried(rest), gathering.leaving(rest, snapshot.now_ns / 1e9)
    waits = {guest.topology.name: WAITS for guest in rest if crowding.waits(guest)}
    waits |= {guest.topology.name: FLOATS for guest in rest if guest.topology.name in leaving}
    rest = tuple(guest for guest in rest if guest.topology.name not in waits)
    names = (guest.topology.name for guest in rest if guest.settings.mode is not Mode.MANUAL)
    room = None
    if left is not None:
        room = dict(zip(snapshot.host.nids, np.maximum(left.free, 0.0).tolist(), strict=True))
        share = len(rest) / max(len(rest) + len(seen), 1)
        snapshot = replace(snapshot, budget_bytes=_budget_left(snapshot.budget_bytes, left.churn, share))
    plan = home.plan(replace(snapshot, guests=rest), room)
    return replace(
        plan,
        stays=(*plan.stays, *(Stay(name, why) for name, why in waits.items())),
        weighings=(
            *(Weighing(name, unknown=FOLLOWS if name in tried else BY_VCPUS) for name in names),
            *(Weighing(name, unknown=f"gain and price: {why}") for name, why in waits.items()),
        ),
    )
