"""What would the agent do, without doing it: for one look at a live host, or over a recording."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from vmplace.actuation.result import ActuationResult, Copies
from vmplace.agent.run_recorder import costs_of, digest, settings_of, snapshot_of, ties_of
from vmplace.errors import OutsideError, RecordingError
from vmplace.model.handover import Handover, parse_handover
from vmplace.model.metrics import TrafficMatrix, local_access_ratio, mc_imbalance
from vmplace.model.page_windows import absorbed, places_of
from vmplace.model.pages import GuestPages
from vmplace.model.prior_pages import prior_pages
from vmplace.model.traffic import estimated_traffic
from vmplace.policy.gathering import EarlierTie
from vmplace.policy.plan import GuestSettings, GuestView, Mode, Move, PlacementPlan, Snapshot
from vmplace.sampling.page_arrays import NodeIndexes
from vmplace.sampling.recording_frames import GuestFrame, PlanFrame, PlannedGuest, RunFrame
from vmplace.sampling.sample import RangeSample, SampleBatch
from vmplace.topology.guest import PAGE_BYTES, GuestTopology, Identity
from vmplace.topology.host import HostTopology

Event = HostTopology | GuestTopology | GuestFrame | SampleBatch | RunFrame | PlanFrame
Policy = Callable[[Snapshot], PlacementPlan]


class NoActuator:
    """Changes nothing and keeps no journal."""

    def apply(
        self, plan: PlacementPlan, guests: Mapping[str, GuestTopology], is_stopping: Callable[[], bool]
    ) -> ActuationResult:
        """Do nothing."""
        return ActuationResult()

    def release(self, guest: GuestTopology) -> None:
        """Nothing is held."""

    def copies(self) -> Mapping[str, Copies]:
        """Nothing has copies."""
        return {}

    def ties(self) -> Mapping[Identity, EarlierTie]:
        """Nothing is tied."""
        return {}

    def placed(self) -> Mapping[Identity, str]:
        """Nothing was moved."""
        return {}

    def own(self, is_managing: bool) -> tuple[str, ...]:
        """Take nothing."""
        return ()

    def undo(
        self,
        guest: GuestTopology | None,
        is_stopping: Callable[[], bool],
        held: Collection[Identity] = (),
    ) -> tuple[str, ...]:
        """Nothing was done."""
        return ()

    def leftover(self) -> str | None:
        """Look at no journal."""
        return None

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class RehearsedGuest:
    """One guest of a recording: estimated LAR of its first and last window, bytes that would have moved.

    ``moved_bytes_by_nid``: these by the node that they go to.  ``saved_ns``: the latency that moves are
    expected to save, of those for which it was reckoned; None if for none.  ``other_reasons``: those of the
    others.
    """

    windows: int
    lar_before: float | None
    lar_after: float | None
    moved_bytes: int
    reasons: tuple[str, ...]
    moved_bytes_by_nid: Mapping[int, int] = field(default_factory=dict)
    saved_ns: float | None = None
    other_reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rehearsal:
    """A policy run over a recording; ``after`` is with all its moves carried out.

    ``decisions``: how many the recording holds that were carried out, ``repeated``: how many of these the
    policy made once more, to the page.
    """

    windows: int
    guests: Mapping[str, RehearsedGuest]
    mc_imbalance_before: float | None
    mc_imbalance_after: float | None
    moved_bytes: int
    decisions: int = 0
    repeated: int = 0


@dataclass
class _Guest:
    topology: GuestTopology
    pages: GuestPages | None = None
    handover: Handover | None = None
    moved_to: dict[int, NodeIndexes] = field(default_factory=dict)
    moved_bytes: int = 0
    moved_bytes_by_nid: Counter[int] = field(default_factory=Counter)
    saved_ns: dict[str, float | None] = field(default_factory=dict)
    """By reason."""
    recorded: list[TrafficMatrix] = field(default_factory=list)
    placed: list[TrafficMatrix] = field(default_factory=list)

    def take(self, batch: SampleBatch, host: HostTopology) -> None:
        """Take a window in, with the pages where the policy has put them."""
        moved = replace(batch, ranges=tuple(self._where_put(sample) for sample in batch.ranges))
        before = self.pages
        if before is None and self.handover is not None:
            before = prior_pages(self.handover, host, self.topology, batch)
        self.pages = absorbed(before, moved)
        self.placed.append(estimated_traffic(host, self.topology, self.pages))
        # The same heat, the recorded nodes: what the host did itself is not the policy's merit.
        places = (places_of(sample) for sample in batch.ranges)
        still = replace(
            self.pages,
            ranges=tuple(replace(p, nodes=n) for p, n in zip(self.pages.ranges, places, strict=True)),
        )
        self.recorded.append(estimated_traffic(host, self.topology, still))

    def carry_out(self, move: Move, nids: tuple[int, ...]) -> None:
        """Note where a move's pages would be; pages on no node stay so."""
        index = {nid: i for i, nid in enumerate(nids)}
        wanted = np.array([index[nid] for nid in move.to_nid.tolist()], np.int8)
        for ram in self.topology.ram:
            mine = (move.hva >= ram.hva) & (move.hva < ram.hva + ram.size_bytes)
            if not mine.any():
                continue
            put = self.moved_to.setdefault(ram.hva, np.full(ram.npages, -1, np.int8))
            first = ((move.hva[mine] - np.uint64(ram.hva)) // np.uint64(PAGE_BYTES)).astype(np.int64)
            for at, count, nid in zip(first.tolist(), move.npages[mine].tolist(), wanted[mine], strict=True):
                put[at : at + count] = nid
        self.tell(move)

    def tell(self, move: Move) -> None:
        """Note what was decided."""
        self.moved_bytes += move.size_bytes
        for nid in np.unique(move.to_nid).tolist():
            self.moved_bytes_by_nid[nid] += (
                int(move.npages[move.to_nid == nid].sum(dtype=np.int64)) * PAGE_BYTES
            )
        saved = self.saved_ns.get(move.reason)
        self.saved_ns[move.reason] = saved if move.saved_ns is None else (saved or 0.0) + move.saved_ns

    def _where_put(self, sample: RangeSample) -> RangeSample:
        put = self.moved_to.get(sample.ram.hva)
        if put is None or len(put) != len(sample.node_index):
            return sample
        nodes = np.where((put >= 0) & (sample.node_index >= 0), put, sample.node_index)
        return replace(sample, node_index=nodes.astype(np.int8), nodes=None)


@dataclass
class _Run:
    """A recording as far as it was read."""

    policy: Policy
    settings: Callable[[str], GuestSettings]
    budget_bytes: int | None
    acted: bool = False
    host: HostTopology | None = None
    guests: dict[str, _Guest] = field(default_factory=dict)
    windows: int = 0
    decisions: int = 0
    repeated: int = 0

    def follow(self, window: list[Event]) -> None:
        """Take in a window, and decide."""
        decided: PlanFrame | None = None
        for event in window:
            if isinstance(event, HostTopology):
                self.host = event
            elif isinstance(event, GuestTopology):
                self._meet(event)
            elif isinstance(event, GuestFrame):
                self._begin(event)
            elif isinstance(event, RunFrame):
                self.acted = event.acted
            elif isinstance(event, PlanFrame):
                decided = event
            elif self.host is not None and event.guest in self.guests:
                self.guests[event.guest].take(event, self.host)
        if self.host is None:
            return
        self.windows += 1
        if decided is not None and self.acted:
            self._repeat(self.host, decided)
        else:
            self._decide(self.host, decided, window)

    def _meet(self, guest: GuestTopology) -> None:
        for name, one in tuple(self.guests.items()):
            if one.topology.identity == guest.identity and name != guest.name:
                # libvirt gave it another name; who had that one has yet to tell its own.
                other = self.guests.pop(guest.name, None)
                self.guests[guest.name] = self.guests.pop(name)
                self.guests |= {} if other is None else {name: other}
        known = self.guests.setdefault(guest.name, _Guest(guest))
        if known.topology.identity != guest.identity:
            # Another one of the same name.
            known.pages = None
        known.topology = guest

    def _begin(self, frame: GuestFrame) -> None:
        """Forget a guest's pages, as the agent did: who ended meanwhile, or was not found, is learnt anew."""
        try:
            handover = parse_handover(frame.handover) if frame.handover else None
        except OutsideError as err:
            raise RecordingError(str(err), hint="record again") from err
        self._meet(frame.guest)
        known = self.guests[frame.guest.name]
        known.pages, known.handover = None, handover

    def _repeat(self, host: HostTopology, decided: PlanFrame) -> None:
        """Decide as the agent did: what came of it is in the windows that follow."""
        try:
            self._let_go(decided)
            known = {name: (guest.topology, guest.pages) for name, guest in self.guests.items()}
            snapshot = snapshot_of(decided, host, known)
        except OutsideError as err:
            raise RecordingError(str(err), hint="record again") from err
        plan = self.policy(snapshot)
        self.decisions += 1
        self.repeated += digest(plan) == decided.digest
        for move in plan.moves:
            self.guests[move.guest].tell(move)

    def _let_go(self, decided: PlanFrame) -> None:
        """Forget the pages of guests in mode "manual", as the agent did: later they are learnt anew."""
        for one in decided.guests:
            if one.name in self.guests and settings_of(one).mode is Mode.MANUAL:
                self.guests[one.name].pages = None

    def _decide(self, host: HostTopology, decided: PlanFrame | None, window: list[Event]) -> None:
        """Decide, and carry it out on what is known of the pages."""
        batches = [event for event in window if isinstance(event, SampleBatch)]
        planned = {one.name: one for one in decided.guests} if decided else {}
        views = tuple(
            _view(guest, self.settings(name), planned.get(name)) for name, guest in self.guests.items()
        )
        latest = max((one.ended_ns for one in batches), default=0)
        length = max((one.ended_ns - one.started_ns for one in batches), default=10**9) / 1e9
        snapshot = Snapshot(
            host,
            views,
            self.budget_bytes,
            decided.replica_ratio if decided else 0.0,
            decided.huge_replicas if decided else False,
            decided.now_ns if decided else float(latest),
            decided.window_s if decided else max(length, 1e-3),
        )
        for move in self.policy(snapshot).moves:
            guest = self.guests[move.guest]
            if guest.pages is not None:
                guest.carry_out(move, guest.pages.nids)


def rehearse(
    events: Iterable[Event],
    policy: Policy,
    settings: Callable[[str], GuestSettings],
    budget_bytes: int | None = None,
) -> Rehearsal:
    """Run ``policy`` over a recording: a window is over with a decision, or when a guest is sampled again.

    Decisions that were carried out are repeated with what they were made with; ``settings`` and
    ``budget_bytes`` are for others.
    """
    run = _Run(policy, settings, budget_bytes)
    for window in _iter_windows(events):
        run.follow(window)
    guests = run.guests.values()
    memory_nids = run.host.memory_nids if run.host else ()
    return Rehearsal(
        run.windows,
        {name: _rehearsed_guest(guest) for name, guest in run.guests.items()},
        _imbalance((guest.recorded for guest in guests), 0, memory_nids),
        _imbalance((guest.placed for guest in guests), -1, memory_nids),
        sum(guest.moved_bytes for guest in guests),
        run.decisions,
        run.repeated,
    )


def earlier_ties(events: Iterable[Event]) -> tuple[Mapping[Identity, EarlierTie], Iterator[Event]]:
    """Return the ties of an earlier agent that a recorded run began with, and all events."""
    left, seen = iter(events), list[Event]()
    for event in left:
        seen.append(event)
        if not isinstance(event, HostTopology):
            break
    runs = [event for event in seen if isinstance(event, RunFrame)]
    return (ties_of(runs[0]) if runs else {}), chain(seen, left)


def _view(guest: _Guest, settings: GuestSettings, planned: PlannedGuest | None) -> GuestView:
    view = GuestView(guest.topology, guest.pages, settings)
    if planned is None:
        return view
    return replace(
        view,
        dram_per_us=planned.dram_per_us,
        cpus=planned.cpus,
        known_s=planned.known_s,
        costs=costs_of(planned),
        may_change=planned.may_change,
    )


def _iter_windows(events: Iterable[Event]) -> Iterator[list[Event]]:
    window: list[Event] = []
    sampled: set[str] = set()
    plans = False
    for event in events:
        # Where decisions are recorded, a guest may be sampled twice before the next one.
        plans = plans or isinstance(event, RunFrame)
        if isinstance(event, SampleBatch):
            if event.guest in sampled and not plans:
                yield window
                window, sampled = [], set()
            sampled.add(event.guest)
        window.append(event)
        if isinstance(event, PlanFrame):
            yield window
            window, sampled = [], set()
    if sampled and not plans:
        yield window


def _rehearsed_guest(guest: _Guest) -> RehearsedGuest:
    before = local_access_ratio(guest.recorded[0]) if guest.recorded else None
    after = local_access_ratio(guest.placed[-1]) if guest.placed else None
    saved = [one for one in guest.saved_ns.values() if one is not None]
    return RehearsedGuest(
        len(guest.placed),
        before,
        after,
        guest.moved_bytes,
        tuple(guest.saved_ns),
        dict(sorted(guest.moved_bytes_by_nid.items())),
        sum(saved) if saved else None,
        tuple(reason for reason, one in guest.saved_ns.items() if one is None),
    )


def _imbalance(
    traffics: Iterable[list[TrafficMatrix]], window: int, memory_nids: tuple[int, ...]
) -> float | None:
    chosen = [traffic[window] for traffic in traffics if traffic]
    if not chosen or any(traffic.nids != chosen[0].nids for traffic in chosen):
        return None
    total = chosen[0]
    for traffic in chosen[1:]:
        total = total + traffic
    return mc_imbalance(total, memory_nids)
