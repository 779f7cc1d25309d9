"""What was decided about a guest, and what became of it: remembered for ``vmplace show``, and logged."""

import logging
from collections.abc import Mapping

from vmplace.actuation.result import MoveOutcome
from vmplace.agent.guests import TrackedGuest
from vmplace.agent.report import told
from vmplace.agent.state import Decision, PlanSummary
from vmplace.topology.guest import PAGE_BYTES

LOG = logging.getLogger(__name__)


def remember(
    guest: TrackedGuest, window: int, unix_s: float, plan: PlanSummary, outcome: MoveOutcome | None
) -> None:
    """Add what was decided in a window; the same reasons again for doing nothing are no news."""
    mine, reasons = plan.of(guest.name), plan.reasons(guest.name)
    last = guest.decisions[-1] if guest.decisions else None
    if outcome or last is None or last.outcome or last.reasons != reasons:
        guest.decisions.append(Decision(window, unix_s, mine.size_bytes, reasons, outcome))
    if outcome:
        guest.moved_bytes += outcome.moved * PAGE_BYTES
        _log_moves(guest.name, mine, outcome)


def _log_moves(name: str, plan: PlanSummary, outcome: MoveOutcome) -> None:
    """Log old -> new and why, a line for each reason."""
    for move in plan.moves:
        LOG.info(
            'guest=%s planned_bytes=%d nid=%s->%s reason="%s"',
            name, move.moved_bytes, _nids(move.from_bytes), _nids(move.to_bytes), move.reason,
        )  # fmt: skip
    LOG.info("%s", told(outcome))


def _nids(by_nid: Mapping[int, int]) -> str:
    return ",".join(str(nid) for nid in by_nid)
