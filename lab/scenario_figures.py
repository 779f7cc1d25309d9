"""What did a manager cost in a scenario, and what does it say of itself?"""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class ManagerFigures:
    """What a manager cost and what it says of itself; None with a reason in ``unknown``.

    ``replica_bytes``: what copies of the guests' pages take; only the agent makes any.
    """

    cpu_seconds: float | None = None
    start_cpu_seconds: float | None = None
    longest_move_call_ms: float | None = None
    longest_move_call_cpu_ms: float | None = None
    rss_bytes: int | None = None
    moved_bytes_own: int | None = None
    replica_bytes: int = 0
    guest_lar: dict[str, float] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def with_longest_call(
        self, longest_ms: float | None, why_not: str, notes: tuple[str, ...]
    ) -> "ManagerFigures":
        """Return the same with what the kernel's tracepoints say of calls, and with more notes."""
        unknown = {key: why for key, why in self.unknown.items() if key != "longest_move_call_ms"}
        if longest_ms is None:
            unknown["longest_move_call_ms"] = why_not
        all_notes = (*self.notes, *notes)
        return replace(self, longest_move_call_ms=longest_ms, unknown=unknown, notes=all_notes)
