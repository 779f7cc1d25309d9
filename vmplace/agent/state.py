"""The state that the agent reports of itself and its guests: small, frozen types, ready for JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vmplace.actuation.result import MoveOutcome, ReplicaOutcome
from vmplace.model.memory_demand import MemoryUse
from vmplace.policy.held_back import UNDONE
from vmplace.policy.options import Weighing
from vmplace.policy.plan import Move, PlacementPlan, VcpuMove
from vmplace.policy.plan_changes import WRITTEN
from vmplace.topology.domain_policy import CloudNames
from vmplace.topology.guest import PAGE_BYTES


@dataclass(frozen=True)
class MoveSummary:
    """One move of a plan without its pages: bytes by the node they leave and by the node they go to."""

    guest: str
    moved_bytes: int
    from_bytes: Mapping[int, int]
    to_bytes: Mapping[int, int]
    reason: str


@dataclass(frozen=True)
class StaySummary:
    """What is left where it is, and why."""

    guest: str
    reason: str


@dataclass(frozen=True)
class VcpuSummary:
    """vCPUs that should be tied to node ``nid``, None: to none any more; they may run on ``from_nids`` now.

    ``weighing``: what that alone is expected to save and cost; None where nobody weighed it.
    """

    guest: str
    vcpu_ids: tuple[int, ...]
    from_nids: tuple[int, ...]
    nid: int | None
    reason: str
    weighing: Weighing | None = None


@dataclass(frozen=True)
class CopySummary:
    """Pages that nodes ``nids`` should each have a copy of; those that have them already count, too.

    ``saved_ns``: the latency that copies that are new are expected to save; None: not reckoned.
    """

    guest: str
    pages_bytes: int
    nids: tuple[int, ...]
    reason: str
    saved_ns: float | None = None


@dataclass(frozen=True)
class CollapseSummary:
    """Pages that should have no copies any more, if they have; or what all copies take, where all go."""

    guest: str
    pages_bytes: int
    reason: str


@dataclass(frozen=True)
class PlanSummary:
    """A plan without its pages: those may take more memory than the agent may use.

    ``weighings``: by guest, what the plan expects of what it does, and of what it does not.
    ``notes``: what keeps it from all guests.
    """

    moves: tuple[MoveSummary, ...] = ()
    stays: tuple[StaySummary, ...] = ()
    size_bytes: int = 0
    vcpu_moves: tuple[VcpuSummary, ...] = ()
    copies: tuple[CopySummary, ...] = ()
    collapses: tuple[CollapseSummary, ...] = ()
    weighings: Mapping[str, Weighing] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, guest: str) -> "PlanSummary":
        """Return the part that concerns one guest."""
        moves = tuple(move for move in self.moves if move.guest == guest)
        stays = tuple(stay for stay in self.stays if stay.guest == guest)
        vcpus = tuple(move for move in self.vcpu_moves if move.guest == guest)
        copies = tuple(copy for copy in self.copies if copy.guest == guest)
        collapses = tuple(drop for drop in self.collapses if drop.guest == guest)
        size_bytes = sum(move.moved_bytes for move in moves)
        known = {guest: self.weighings[guest]} if guest in self.weighings else {}
        return PlanSummary(moves, stays, size_bytes, vcpus, copies, collapses, known)

    def with_stays(self, stays: tuple[StaySummary, ...]) -> "PlanSummary":
        """Return the plan and what else keeps it from guests."""
        return replace(self, stays=(*stays, *self.stays))

    def reasons(self, guest: str) -> tuple[str, ...]:
        """Return why the guest's memory should move, get copies, lose them or stay, each reason once."""
        mine = self.of(guest)
        reported = [v.reason for v in mine.vcpu_moves] + [m.reason for m in mine.moves]
        reported += [f"copies: {copy.reason}" for copy in mine.copies]
        # Pages that are written are listed in each plan, copies or not; what is undone says so itself.
        drops = {drop.reason for drop in mine.collapses} - {WRITTEN, UNDONE}
        reported += [f"no copies: {reason}" for reason in sorted(drops)]
        return tuple(dict.fromkeys(reported + [s.reason for s in mine.stays]))


def summary(plan: PlacementPlan) -> PlanSummary:
    """Return the plan without its pages."""
    moves = tuple(_move_summary(move) for move in plan.moves)
    stays = tuple(StaySummary(stay.guest, stay.reason) for stay in plan.stays)
    vcpus = tuple(vcpu_summary(move) for move in plan.vcpu_moves)
    copies = tuple(
        CopySummary(one.guest, one.pages * PAGE_BYTES, one.nids, one.reason, one.saved_ns)
        for one in plan.replications
    )
    collapses = tuple(CollapseSummary(one.guest, one.size_bytes, one.reason) for one in plan.collapses)
    known = {one.guest: one for one in plan.weighings}
    return PlanSummary(moves, stays, plan.size_bytes, vcpus, copies, collapses, known)


def vcpu_summary(move: VcpuMove) -> VcpuSummary:
    """Return the move of vCPUs without their CPUs."""
    return VcpuSummary(move.guest, tuple(move.cpus), move.from_nids, move.nid, move.reason, move.weighing)


def _move_summary(move: Move) -> MoveSummary:
    from_bytes: dict[int, int] = {}
    to_bytes: dict[int, int] = {}
    for into, nids in ((from_bytes, move.from_nid), (to_bytes, move.to_nid)):
        for nid in sorted(set(nids.tolist())):
            into[nid] = int(move.npages[nids == nid].sum(dtype="int64")) * PAGE_BYTES
    return MoveSummary(move.guest, move.size_bytes, from_bytes, to_bytes, move.reason)


@dataclass(frozen=True)
class Decision:
    """What was wanted for one guest in one window and what became of it; ``outcome`` None = not tried.

    ``weighing``: what the plan expected then.  ``copies``: what became of pages that were to have some, None
    where there were none; ``dropped_bytes``: pages whose copies were dropped.  ``vcpus``: those that now
    run on one node.  ``expected_lar``: the share of local accesses that was promised, None where none was.
    """

    window: int
    unix_s: float
    planned_bytes: int
    reasons: tuple[str, ...]
    outcome: MoveOutcome | None = None
    weighing: Weighing | None = None
    copies: ReplicaOutcome | None = None
    dropped_bytes: int = 0
    vcpus: tuple[VcpuSummary, ...] = ()
    expected_lar: float | None = None

    @property
    def has_changed(self) -> bool:
        """Return whether something was tried that is more than to have the copies that are there."""
        has_copied = self.copies is not None and self.copies.replicated > 0
        return bool(self.outcome or has_copied or self.dropped_bytes or self.vcpus)


@dataclass(frozen=True)
class GuestStatus:
    """One guest as it was at the end of the last window.

    ``state`` is one of: new (no window yet), moving, settled (nothing to do), advised (a move is wanted,
    but the mode, the schedule or a pause forbids it), held (undone: left alone until resume), migrating,
    manual, failed.
    ``memory_use`` is of the last windows, None from a source that cannot tell.  ``replica_bytes``: what its
    copies on other nodes take beside ``memory_bytes``; ``collapsed_bytes``: pages whose copies were dropped
    so far.  ``refused_bytes``: what was to be moved or copied, and was not, by reason, so far.
    ``estimated_lar``: the share of local accesses as its pages imply, each touched one counted once, copies
    not at all.  ``counted_lar``: that share as the CPU counts it, in the last window in which it did, of the
    last 30 s; None where it is not known (docs/operate.md).
    ``expected_lar``: what the last plan that moved something promised, once all of it is done.
    ``cost_ratio``: cycles an instruction takes since its memory last moved, over those before; None where no
    counters tell.
    ``pressure_by_node``: what it takes of each node's memory bandwidth, 0 to 1 (model/pressure.py); None
    where accesses or bandwidths are not known.  ``dram_accesses_by_node``: accesses per second that each node
    serves, an estimate; None where accesses are not known.  ``names``: what Nova or Kubernetes call it.
    """

    mode: str
    state: str
    pid: int
    origin: str
    vcpu_nids: tuple[int, ...]
    memory_bytes: int
    pages_by_node: Mapping[int, int] | None
    hot_pages_by_node: Mapping[int, int] | None
    estimated_lar: float | None
    moved_bytes: int
    replica_bytes: int
    movability: Mapping[str, int]
    reasons: tuple[str, ...]
    problem: str | None = None
    memory_use: MemoryUse | None = None
    uuid: str | None = None
    collapsed_bytes: int = 0
    refused_bytes: Mapping[str, int] = field(default_factory=dict)
    expected_lar: float | None = None
    cost_ratio: float | None = None
    pressure_by_node: Mapping[int, float] | None = None
    dram_accesses_by_node: Mapping[int, float] | None = None
    names: CloudNames = field(default_factory=CloudNames)
    counted_lar: float | None = None


@dataclass(frozen=True)
class NodeStatus:
    """One NUMA node; ``free_bytes`` without room that is kept for a guest to come."""

    nid: int
    cpus: int
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class AgentStatus:
    """The whole host as the agent sees it; ``notes`` are things a person should know.

    ``harvest_seconds`` and ``plan_seconds``: what harvests and plans took of the clock, all together.
    ``budget_bytes_per_s``: what may be moved or copied.
    """

    version: str
    pid: int
    source: str
    policy: str
    paused: bool
    nids: tuple[int, ...] = ()
    windows: int = 0
    rest_ms: int = 0
    guests: Mapping[str, GuestStatus] = field(default_factory=dict)
    moved_bytes: int = 0
    longest_move_call_ms: float = 0.0
    longest_move_call_cpu_ms: float = 0.0
    mc_imbalance_estimate: float | None = None
    cpu_seconds: float = 0.0
    sampling_cpu_seconds: float = 0.0
    rss_bytes: int | None = None
    nodes: tuple[NodeStatus, ...] = ()
    harvest_seconds: float = 0.0
    plan_seconds: float = 0.0
    replicated_bytes: int = 0
    budget_bytes_per_s: int = 0
    notes: tuple[str, ...] = ()
