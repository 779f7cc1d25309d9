"""What was decided about a guest, and what became of it: remembered for ``vmplace show``, and logged."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from vmplace.actuation.result import ActuationResult, MoveOutcome, ReplicaOutcome
from vmplace.agent.report import moves_line
from vmplace.agent.roster import Roster
from vmplace.agent.state import Decision, PlanSummary, VcpuSummary, vcpu_summary
from vmplace.agent.tracked_guest import TrackedGuest
from vmplace.policy.expected_lar import expected_lar
from vmplace.policy.plan import Move, PlacementPlan, Replication, VcpuMove
from vmplace.topology.guest import PAGE_BYTES
from vmplace.topology.host import HostTopology

LOG = logging.getLogger(__name__)
Change = TypeVar("Change", Move, Replication, VcpuMove)
REFUSALS = {name: name for name in ("busy", "pinned", "gone", "vetoed")} | {"left": "budget"}
"""What a move's outcome calls a refusal, and what people read."""


@dataclass(frozen=True)
class GuestOutcome:
    """What was done for one guest in a window."""

    outcome: MoveOutcome | None = None
    copies: ReplicaOutcome | None = None
    dropped_pages: int = 0
    vcpus: tuple[VcpuSummary, ...] = ()


def done_by_guest(result: ActuationResult) -> Mapping[str, GuestOutcome]:
    """Return what was done, by guest."""
    outcomes = {one.guest: one for one in result.outcomes}
    copies = {one.guest: one for one in result.replicas}
    vcpus: dict[str, tuple[VcpuSummary, ...]] = {}
    for move in result.pinned:
        vcpus[move.guest] = (*vcpus.get(move.guest, ()), vcpu_summary(move))
    return {
        name: GuestOutcome(
            outcomes.get(name), copies.get(name), result.dropped.get(name, 0), vcpus.get(name, ())
        )
        for name in {*outcomes, *copies, *result.dropped, *vcpus}
    }


def remember(guest: TrackedGuest, window: int, unix_s: float, plan: PlanSummary, done: GuestOutcome) -> None:
    """Add what was decided in a window; the same reasons again for doing nothing are no news."""
    mine, reasons, outcome = plan.of(guest.name), plan.reasons(guest.name), done.outcome
    decision = Decision(
        window,
        unix_s,
        mine.size_bytes,
        reasons,
        outcome,
        mine.weighings.get(guest.name),
        done.copies,
        done.dropped_pages * PAGE_BYTES,
        done.vcpus,
        guest.expected_lar if mine.moves or mine.copies or mine.vcpu_moves else None,
    )
    last = guest.decisions[-1] if guest.decisions else None
    if decision.has_changed or last is None or last.has_changed or last.reasons != reasons:
        guest.decisions.append(decision)
    if outcome:
        guest.moved_bytes += outcome.moved * PAGE_BYTES
        _log_moves(guest.name, mine, outcome)


def expect(roster: Roster, host: HostTopology, plan: PlacementPlan) -> None:
    """Keep on each guest what the plan promises it, if it changes anything for it."""
    moves, copies = _by_guest(plan.moves), _by_guest(plan.replications)
    vcpus = _by_guest(plan.vcpu_moves)
    for guest in filter(None, map(roster.get, sorted({*moves, *copies, *vcpus}))):
        mine = PlacementPlan(
            moves.get(guest.name, ()),
            replications=copies.get(guest.name, ()),
            vcpu_moves=vcpus.get(guest.name, ()),
        )
        if guest.pages:
            guest.expected_lar = expected_lar(host, guest.topology, guest.pages, mine)


def _by_guest(changes: Iterable[Change]) -> dict[str, tuple[Change, ...]]:
    found: dict[str, list[Change]] = {}
    for change in changes:
        found.setdefault(change.guest, []).append(change)
    return {name: tuple(some) for name, some in found.items()}


def count_refusals(roster: Roster, result: ActuationResult) -> None:
    """Count on each guest what was not moved or not copied, by reason."""
    for outcome in result.outcomes:
        _refuse(roster, outcome, {name: getattr(outcome, name) for name in REFUSALS})
    for replicas in result.replicas:
        _refuse(roster, replicas, {"left": replicas.left})


def _refuse(roster: Roster, outcome: MoveOutcome | ReplicaOutcome, counts: Mapping[str, int]) -> None:
    if guest := roster.get(outcome.guest):
        for name, count in (*counts.items(), *outcome.refused.items()):
            guest.refused_bytes[REFUSALS.get(name, name)] += count * PAGE_BYTES


def _log_moves(name: str, plan: PlanSummary, outcome: MoveOutcome) -> None:
    """Log old -> new and why, a line for each reason."""
    for move in plan.moves:
        LOG.info(
            'guest=%s planned_bytes=%d nid=%s->%s reason="%s"',
            name, move.moved_bytes, _nids(move.from_bytes), _nids(move.to_bytes), move.reason,
        )  # fmt: skip
    LOG.info("%s", moves_line(outcome))


def _nids(by_nid: Mapping[int, int]) -> str:
    return ",".join(str(nid) for nid in by_nid)
