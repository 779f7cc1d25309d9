"""What would a policy have done with a recorded run, and did it decide as the agent did?"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from vmplace.agent.config_sections import Config
from vmplace.agent.rehearsed_guest import GuestReplay, RehearsedGuest
from vmplace.agent.run_recorder import digest, settings_of, snapshot_of, ties_of
from vmplace.errors import OutsideError, RecordingError
from vmplace.model.handover import parse_handover
from vmplace.model.metrics import TrafficMatrix, mc_imbalance
from vmplace.policy.gathering import EarlierTie
from vmplace.policy.plan import GuestSettings, Mode, PlacementPlan, Snapshot
from vmplace.sampling.recording_frames import GuestFrame, PlanFrame, RunFrame
from vmplace.sampling.sample import SampleBatch
from vmplace.topology.guest import GuestTopology, Identity
from vmplace.topology.host import HostTopology

Event = HostTopology | GuestTopology | GuestFrame | SampleBatch | RunFrame | PlanFrame
Policy = Callable[[Snapshot], PlacementPlan]


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
class _Run:
    """A recording as far as it was read."""

    policy: Policy
    settings: Callable[[str], GuestSettings]
    budget_bytes: int | None
    acted: bool = False
    host: HostTopology | None = None
    guests: dict[str, GuestReplay] = field(default_factory=dict)
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
        known = self.guests.setdefault(guest.name, GuestReplay(guest))
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
            guest.view(self.settings(name), planned.get(name)) for name, guest in self.guests.items()
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
        {name: guest.result() for name, guest in run.guests.items()},
        _imbalance((guest.recorded for guest in guests), 0, memory_nids),
        _imbalance((guest.placed for guest in guests), -1, memory_nids),
        sum(guest.moved_bytes for guest in guests),
        run.decisions,
        run.repeated,
    )


def budget_of(config: Config) -> int:
    """Return how many bytes may move in a window of a run that was only watched."""
    return config.budget.mb_per_s * config.window_ms * 1000


def earlier_ties(events: Iterable[Event]) -> tuple[Mapping[Identity, EarlierTie], Iterator[Event]]:
    """Return the ties of an earlier agent that a recorded run began with, and all events."""
    left, seen = iter(events), list[Event]()
    for event in left:
        seen.append(event)
        if not isinstance(event, HostTopology):
            break
    runs = [event for event in seen if isinstance(event, RunFrame)]
    return (ties_of(runs[0]) if runs else {}), chain(seen, left)


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
