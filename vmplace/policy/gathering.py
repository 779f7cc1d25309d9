"""Whose vCPUs are tied to a node, or asked to be, and who is left out?

Times are in s of the agent's clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from vmplace.policy.gather_trial import GatherTrial
from vmplace.policy.gather_waits import WaitWatch
from vmplace.policy.plan import GuestView, Mode, Snapshot, VcpuMove
from vmplace.topology.guest import GuestTopology, Identity
from vmplace.topology.host import HostTopology

Cpus = Mapping[int, tuple[int, ...]]
LEAVING_S = 10.0
"""For so long memory waits for vCPUs that are to float again."""
SETTLE_S = 5.0
"""After how long the next layout is thought of, as long as there is something new."""


class Stage(Enum):
    """How far a tie is."""

    ASKED = "asked"
    TRIED = "tried"
    KEPT = "kept"
    LOOSE = "loose"


NOT_OURS, ITS_OWN = "it is gone, or another technique ties its vCPUs", "its vCPUs have other CPUs"
NOT_TIED = "its vCPUs could not be tied, or may not be just now"


@dataclass(frozen=True)
class Tie:
    """One guest's vCPUs: the CPUs of each before, and on the node; ``why`` they are to float again.

    ``since_s``: when its stage began, ``gone_s``: since when no vCPU is seen tied any more.
    ``is_refused``: the CPUs could not be given back for long; ``since_s`` is when that was tried last.
    ``granted``: whether the guard allows for memory that follows.  ``waits``: what waits for a CPU cost since
    the tie was kept.
    """

    move: VcpuMove
    before: Cpus
    asked_s: float
    since_s: float
    seen_s: float
    stage: Stage = Stage.ASKED
    trial: GatherTrial = field(default_factory=GatherTrial)
    why: str = ""
    granted: bool = False
    is_refused: bool = False
    gone_s: float | None = None
    waits: WaitWatch = field(default_factory=WaitWatch)

    @property
    def nid(self) -> int:
        """Return the node."""
        return -1 if self.move.nid is None else self.move.nid

    def is_due(self, now_s: float) -> bool:
        """Tell whether something is to be done now: what was refused for long is tried as a time begins."""
        if self.stage is Stage.LOOSE:
            return not self.is_refused or now_s == self.since_s
        return self.stage is Stage.ASKED

    def tied(self, guest: GuestTopology, host: HostTopology) -> frozenset[int]:
        """Return which vCPUs run where they were tied; CPUs that are offline are in nobody's affinity."""
        online = set(host.node(self.nid).cpus) if self.nid in host.nids else set()
        return frozenset(
            vcpu.vcpu_id
            for vcpu in guest.vcpus
            if (cpus := self.move.cpus.get(vcpu.vcpu_id))
            and (vcpu.cpus == cpus or set(vcpu.cpus) == online.intersection(cpus))
        )

    def loosened(self, guest: GuestTopology, host: HostTopology) -> VcpuMove:
        """Return the move that gives vCPUs that are still tied the CPUs that they had."""
        tied = sorted(self.tied(guest, host))
        now = tuple({cpu for vcpu in guest.vcpus if vcpu.vcpu_id in tied for cpu in vcpu.cpus})
        cpus = {vcpu_id: self.before[vcpu_id] for vcpu_id in tied}
        return VcpuMove(guest.name, cpus, host.nids_of_cpus(now), None, self.why)


@dataclass(frozen=True)
class Refusal:
    """Until when a guest is left out, and for how long the next time."""

    until_s: float
    wait_s: float


@dataclass(frozen=True)
class EarlierTie:
    """The CPUs of vCPUs before an earlier agent tied them, and since, as the journal has them."""

    before: Cpus
    since: Cpus


@dataclass(frozen=True)
class Gathering:
    """All ties of the host, and who is left out.

    ``candidates``: whose pages were known when a layout was thought of last, at ``tried_s``; the next one is
    due after ``settle_s``.  ``earlier``: ties of an earlier agent whose guests were not seen yet.
    """

    ties: Mapping[Identity, Tie] = field(default_factory=dict)
    refused: Mapping[Identity, Refusal] = field(default_factory=dict)
    candidates: frozenset[str] = frozenset()
    tried_s: float = 0.0
    settle_s: float = SETTLE_S
    earlier: Mapping[Identity, EarlierTie] = field(default_factory=dict)

    @property
    def next_s(self) -> float:
        """Return when the next layout is due."""
        return self.tried_s + self.settle_s

    @property
    def is_busy(self) -> bool:
        """Tell whether a tie is asked for or tried."""
        return any(one.stage in (Stage.ASKED, Stage.TRIED) for one in self.ties.values())

    def left_out(self, now_s: float) -> frozenset[Identity]:
        """Return whose vCPUs are not to be tied now."""
        return frozenset([*self.ties, *(who for who, one in self.refused.items() if now_s < one.until_s)])

    def asked(self, guests: Sequence[GuestView]) -> frozenset[str]:
        """Return which of ``guests`` have vCPUs that are about to go to a node: memory follows them there."""
        return frozenset(name for name, one in self._ties_of(guests) if one.stage is Stage.ASKED)

    def tried(self, guests: Sequence[GuestView]) -> frozenset[str]:
        """Return of which of ``guests`` memory follows vCPUs, while counters tell whether that helps."""
        return frozenset(name for name, one in self._ties_of(guests) if one.stage is Stage.TRIED)

    def leaving(self, guests: Sequence[GuestView], now_s: float) -> frozenset[str]:
        """Return which of ``guests`` have vCPUs that are about to float again: at once, unless refused."""
        free = [one for one in guests if one.may_change and one.settings.mode is not Mode.MANUAL]
        return frozenset(
            name
            for name, one in self._ties_of(free)
            if one.stage is Stage.LOOSE
            and not one.is_refused
            and one.gone_s is None
            and now_s - one.since_s < LEAVING_S
        )

    def _ties_of(self, guests: Sequence[GuestView]) -> list[tuple[str, Tie]]:
        """Return the ties of these processes by name: another one may have the name of one that ended."""
        known = ((one.topology.name, self.ties.get(one.topology.identity)) for one in guests)
        return [(name, one) for name, one in known if one is not None]

    def moves(self, snapshot: Snapshot) -> tuple[VcpuMove, ...]:
        """Return what is to be done, of guests that are there."""
        here = {guest.topology.identity: guest.topology for guest in snapshot.guests}
        moves = (
            one.move if one.stage is Stage.ASKED else one.loosened(here[identity], snapshot.host)
            for identity, one in sorted(self.ties.items())
            if identity in here and one.is_due(snapshot.now_ns / 1e9)
        )
        return tuple(move for move in moves if move.cpus)


def news(before: Gathering, now: Gathering) -> Iterator[str]:
    """Yield a line for the log of each tie that is at another stage than before."""
    for identity, tie in {**before.ties, **now.ties}.items():
        was, after = before.ties.get(identity), now.ties.get(identity)
        if after is None:
            how = NOT_TIED if tie.stage is Stage.ASKED else NOT_OURS
            how = how if tie.gone_s is None else ITS_OWN
            yield f'guest={tie.move.guest} gather={tie.stage.value}->none nid={tie.nid} reason="{how}"'
        elif was is None or was.stage is not after.stage:
            stages = f"{was.stage.value if was else 'none'}->{after.stage.value}"
            reason = after.why or after.move.reason
            yield f'guest={tie.move.guest} gather={stages} nid={tie.nid} reason="{reason}"'
