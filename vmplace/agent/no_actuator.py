"""An actuator for looks at a live host in which nothing may be changed."""

from collections.abc import Callable, Collection, Iterable, Mapping

from vmplace.actuation.result import ActuationResult, Copies
from vmplace.policy.gathering import EarlierTie
from vmplace.policy.plan import PlacementPlan
from vmplace.topology.guest import GuestTopology, Identity


class NoActuator:
    """Changes nothing and keeps no journal."""

    def apply(
        self, plan: PlacementPlan, guests: Mapping[str, GuestTopology], is_stopping: Callable[[], bool]
    ) -> ActuationResult:
        """Do nothing."""
        return ActuationResult()

    def release(self, guest: GuestTopology) -> None:
        """Nothing is held."""

    def copies(self, guests: Iterable[GuestTopology]) -> Mapping[str, Copies]:
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
