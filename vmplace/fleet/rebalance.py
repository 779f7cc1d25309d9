"""Which guests should go to which host?  Pure; the Watcher strategy and the model of a fleet both use it.

1. The host with the most pressed node at or above ``threshold`` gives a guest away: the one that takes most
   off the load above ``target``, of all its nodes.  A guest that presses another node is of no help.
2. It goes to the host with room whose fullest node is least pressed afterwards, and at most at ``target``.
   On which node it lands is not known, so it is taken to be the fullest: no host gets worse than that.
3. A migration that takes off less than LEAST_RELIEF is not worth its cost.
4. A guest moves once in a plan; there are ``most`` moves at most.  Then figures are to be seen anew.

A guest is taken to ask the same on both hosts: true where nodes have like bandwidths.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

THRESHOLD, TARGET, MOST = 0.5, 0.4, 10
LEAST_RELIEF = 0.1

NodeLoads = Mapping[int, float]
"""What is taken of each node's bandwidth (0 to 1), by node id."""


@dataclass(frozen=True)
class PressingGuest:
    """A guest, the host it is on, and what it takes of that host's nodes."""

    uuid: str
    host: str
    by_node: NodeLoads


@dataclass(frozen=True)
class Migration:
    """One guest to be migrated."""

    uuid: str
    source: str
    destination: str


@dataclass(frozen=True)
class Limits:
    """From which pressure on a host is relieved, what others are not to exceed, and migrations of a plan."""

    threshold: float = THRESHOLD
    target: float = TARGET
    most: int = MOST


@dataclass(frozen=True)
class Rebalance:
    """What to do, and the hosts' pressures that are expected then: those of their fullest nodes."""

    migrations: tuple[Migration, ...]
    expected: Mapping[str, float]


HasRoom = Callable[[str, str, tuple[Migration, ...]], bool]
"""``has_room(uuid, host, before)``: does the guest fit there, after ``before``?"""


def plan_rebalance(
    loads: Mapping[str, NodeLoads], guests: Sequence[PressingGuest], has_room: HasRoom, limits: Limits
) -> Rebalance:
    """Return the plan for hosts with these loads by node; hosts without a figure are left alone."""
    expected = {host: dict(by_node) for host, by_node in loads.items() if by_node}
    staying = {guest.uuid: guest for guest in guests if guest.host in expected}
    done = tuple[Migration, ...]()
    while len(done) < limits.most:
        move = _next_move(expected, staying, has_room, limits, done)
        if move is None:
            break
        guest = staying.pop(move.uuid)
        expected[move.source] = _without(expected[move.source], guest)
        there = expected[move.destination]
        there[max(there, key=lambda nid: there[nid])] += sum(guest.by_node.values())
        done = (*done, move)
    return Rebalance(done, {host: _fullest(by_node) for host, by_node in expected.items()})


def _next_move(
    expected: Mapping[str, NodeLoads],
    staying: Mapping[str, PressingGuest],
    has_room: HasRoom,
    limits: Limits,
    done: tuple[Migration, ...],
) -> Migration | None:
    pressure = {host: _fullest(by_node) for host, by_node in expected.items()}
    coldest = sorted(pressure, key=lambda host: (pressure[host], host))
    for hot in sorted(pressure, key=lambda host: (-pressure[host], host)):
        if pressure[hot] < limits.threshold:
            return None
        mine = [guest for guest in staying.values() if guest.host == hot]
        for guest in _most_relief_first(expected[hot], mine, limits.target):
            takes = sum(guest.by_node.values())
            for cold in coldest:
                if pressure[cold] + takes > limits.target:
                    break
                if cold != hot and has_room(guest.uuid, cold, done):
                    return Migration(guest.uuid, hot, cold)
    return None


def _most_relief_first(
    loads: NodeLoads, guests: Sequence[PressingGuest], target: float
) -> list[PressingGuest]:
    """Return the guests whose leaving is worth it; of two with like relief, who burdens others less."""
    found = [(_excess(loads, target) - _excess(_without(loads, guest), target), guest) for guest in guests]
    worth = [(relief, guest) for relief, guest in found if relief >= LEAST_RELIEF]
    worth.sort(key=lambda one: (-round(one[0], 6), sum(one[1].by_node.values()), one[1].uuid))
    return [guest for _, guest in worth]


def _excess(loads: NodeLoads, target: float) -> float:
    return sum(max(load - target, 0.0) for load in loads.values())


def _without(loads: NodeLoads, guest: PressingGuest) -> dict[int, float]:
    return {nid: max(load - guest.by_node.get(nid, 0.0), 0.0) for nid, load in loads.items()}


def _fullest(loads: NodeLoads) -> float:
    return max(loads.values())
