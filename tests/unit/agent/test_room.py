"""Room is made by order, and kept; guests that are held stay, and whoever asked gets an answer."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest

from tests.unit.agent.agent_world import HOST, World, guest
from vmplace.actuation.result import ActuationResult
from vmplace.agent.loop import Agent
from vmplace.agent.orders import Order
from vmplace.agent.room import KEPT_S, NoRoomError
from vmplace.errors import VmplaceError
from vmplace.policy.fit import Flavour
from vmplace.policy.home import RESERVE_RATIO
from vmplace.policy.plan import PlacementPlan, Snapshot
from vmplace.topology.guest import GuestTopology
from vmplace.topology.host import HostTopology

MIB = 1 << 20
GUEST = 4 * MIB
SIZE = Flavour(2, 6 * MIB)


def plans_nothing(_: Snapshot) -> PlacementPlan:
    return PlacementPlan()


@dataclass
class Crowded(World):
    """Each node has room for 9 MiB; guests, of 4 MiB, take of it.  Node 1 has one core to spare at most."""

    policy: Callable[[Snapshot], PlacementPlan] = plans_nothing
    stuck: bool = False

    def host(self) -> HostTopology:
        """Return the host with the room that guests leave."""
        held = {nid: sum(self.nid_of.get(one.name, 0) == nid for one in self.running) for nid in (0, 1)}
        nodes = tuple(
            replace(
                n,
                free_bytes=int(RESERVE_RATIO * n.memory_bytes) + 4096 + 9 * MIB - GUEST * held[n.nid],
            )
            for n in HOST.nodes
        )
        return replace(HOST, nodes=nodes)

    def apply(
        self, plan: PlacementPlan, guests: Mapping[str, GuestTopology], is_stopping: Callable[[], bool]
    ) -> ActuationResult:
        """Move as the world does, or nothing if that is what is tested."""
        return ActuationResult() if self.stuck else super().apply(plan, guests, is_stopping)


def ordered(agent: Agent, world: World, order: Order) -> Order:
    """Run the agent until the order is answered."""

    def give() -> None:
        agent.inbox.submit(order)
        order.answer.add_done_callback(lambda _: world.wakeup.stop())

    threading.Timer(0.05, give).start()
    agent.run()
    return order


def test_room_is_made_by_moving_memory_to_its_vcpus_and_is_kept():
    world = Crowded([guest("db1")])
    agent = world.agent()
    order = ordered(agent, world, Order("make-room", flavour=SIZE))
    (reported,) = order.answer.result(0)
    assert reported.startswith("node 0 has room for 2 vCPUs and 6 MiB (1 MiB were moved); it is kept free")
    assert world.applied == ["db1"] and world.nid_of == {"db1": 1}


def test_room_that_was_made_is_withheld_from_plans_until_a_guest_comes():
    world = Crowded([guest("db1")])
    agent = world.agent()
    ordered(agent, world, Order("make-room", flavour=SIZE))
    rooms, free = agent.state.rooms, world.host().node(0).free_bytes
    present = frozenset({one.identity for one in world.running})
    assert rooms.without_kept(world.host(), present).node(0).free_bytes == free - SIZE.memory_bytes
    assert rooms.without_kept(world.host(), present | {(1, 2)}) == world.host()
    assert KEPT_S == 300


def test_a_guest_that_fits_already_is_answered_without_a_move():
    world = Crowded([guest("db1")])
    order = ordered(world.agent(), world, Order("make-room", flavour=Flavour(1, 8 * MIB)))
    assert order.answer.result(0)[0].startswith("node 1 has room")
    assert world.applied == []


@pytest.mark.parametrize("held", [True, False])
def test_guests_that_are_held_stay_and_whoever_asked_is_answered(held: bool):
    world = Crowded([guest("db1")])
    agent = world.agent()
    agent.run(windows=1)
    agent.inbox.submit(Order("pause" if held else "resume", "db1"))
    order = ordered(agent, world, Order("make-room", flavour=SIZE))
    assert (order.answer.exception(0) is not None) == held
    assert (world.applied == []) == held


def test_what_does_not_move_is_given_up_and_others_go_on():
    world = Crowded([guest("db1")], stuck=True)
    order = ordered(world.agent(), world, Order("make-room", flavour=SIZE))
    with pytest.raises(NoRoomError, match="does not move") as reported:
        order.answer.result(0)
    assert reported.value.hint and "vmplace why" in reported.value.hint


@pytest.mark.parametrize(("verb", "cure"), [("pause", "vmplace resume"), ("resume", None)])
def test_while_all_is_paused_no_room_is_made(verb: str, cure: str | None):
    world = Crowded([guest("db1")])
    agent = world.agent()
    agent.inbox.submit(Order(verb))  # type: ignore[arg-type]
    order = ordered(agent, world, Order("make-room", flavour=SIZE))
    err = order.answer.exception(0)
    assert (err.hint if isinstance(err, VmplaceError) else None) == cure


def test_a_stop_answers_who_waits():
    world = Crowded([guest("db1")], stuck=True)
    agent, order = world.agent(window_ms=3_600_000), Order("make-room", flavour=SIZE)
    agent.inbox.submit(order)
    threading.Timer(0.2, world.wakeup.stop).start()
    agent.run()
    assert isinstance(order.answer.exception(0), VmplaceError)
