"""Notify the source of what was moved, by a wrapper around the actuator."""

from collections.abc import Callable, Collection, Mapping

from vmplace.actuation.result import ActuationResult
from vmplace.agent.parts import Actuator
from vmplace.policy.plan import PlacementPlan
from vmplace.sampling.source import PlaceKeeper, Source
from vmplace.topology.guest import GuestTopology, Identity


def notifying(actuator: Actuator, source: Source) -> Actuator:
    """Return an actuator that notifies the source, if that keeps places."""
    return NotifyingActuator(actuator, source) if isinstance(source, PlaceKeeper) else actuator


class NotifyingActuator:
    """Does what ``actuator`` does; then ``keeper`` looks up again what may have moved."""

    def __init__(self, actuator: Actuator, keeper: PlaceKeeper) -> None:
        self._actuator, self._keeper = actuator, keeper
        self.copies, self.own = actuator.copies, actuator.own
        self.ties, self.placed = actuator.ties, actuator.placed
        self.leftover, self.close, self.release = actuator.leftover, actuator.close, actuator.release

    def apply(
        self, plan: PlacementPlan, guests: Mapping[str, GuestTopology], is_stopping: Callable[[], bool]
    ) -> ActuationResult:
        """Carry the plan out."""
        try:
            return self._actuator.apply(plan, guests, is_stopping)
        finally:
            # Also what was planned and not moved: to look it up is cheap.
            for move in plan.moves:
                if move.guest in guests:
                    self._keeper.moved(guests[move.guest], move.hva)

    def undo(
        self,
        guest: GuestTopology | None,
        is_stopping: Callable[[], bool],
        held: Collection[Identity] = (),
    ) -> tuple[str, ...]:
        """Restore what the journal holds; that may be any page."""
        try:
            return self._actuator.undo(guest, is_stopping, held)
        finally:
            self._keeper.look_again()
