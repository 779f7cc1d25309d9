"""The source hears of all that may have moved, whatever becomes of the move."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from tests.unit.agent.agent_world import World, guest
from vmplace.agent.notifying_actuator import NotifyingActuator, notifying
from vmplace.errors import VmplaceError
from vmplace.policy.plan import Move, PlacementPlan
from vmplace.sampling.source_fused import FusedSource
from vmplace.sampling.source_kvm import KvmSource
from vmplace.topology.guest import GuestTopology

MOVE = Move(
    "db1", np.array([1 << 40], np.uint64), np.array([1], np.uint16), np.array([0]), np.array([1]), "why"
)


@dataclass
class Keeper:
    kept: list[tuple[str, list[int]]] = field(default_factory=list)
    looks: int = 0

    def moved(self, guest: GuestTopology, hva: np.ndarray) -> None:
        self.kept.append((guest.name, hva.tolist()))

    def look_again(self) -> None:
        self.looks += 1


class Failing(World):
    def apply(self, *_: object) -> None:  # type: ignore[override]
        raise VmplaceError("no")


@pytest.mark.parametrize("world", [World, Failing])
def test_what_was_to_move_is_reported(world: type[World]) -> None:
    keeper, known = Keeper(), guest("db1")
    actuator = NotifyingActuator(world([known]), keeper)
    gone = replace(MOVE, guest="gone")
    try:
        actuator.apply(PlacementPlan((MOVE, gone)), {"db1": known}, lambda: False)
    except VmplaceError:
        assert world is Failing
    assert keeper.kept == [("db1", [1 << 40])]


def test_after_an_undo_all_is_looked_up() -> None:
    keeper = Keeper()
    NotifyingActuator(World([]), keeper).undo(None, lambda: False)
    assert keeper.looks == 1


def test_only_a_source_that_keeps_places_is_notified() -> None:
    world = World([])
    kvm = KvmSource.__new__(KvmSource)
    assert isinstance(notifying(world, kvm), NotifyingActuator)
    assert isinstance(notifying(world, FusedSource([kvm, world])), NotifyingActuator)
    assert notifying(world, world) is world
