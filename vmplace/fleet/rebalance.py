"""Which guests should go to which host?  Pure; what the Watcher strategy and the fleet's model decide by.

1. The most pressed host at or above ``threshold`` gives a guest away: the one that presses most, if there
   is a host that takes it.
2. It goes to the least pressed host that has room, where the pressure afterwards stays below ``target``:
   a guest that would only carry the trouble along stays.
3. A guest moves once in a plan; there are ``most`` moves at most.  Then figures are to be seen anew.

A guest's pressure is taken to be the same on both hosts: true where nodes have like bandwidths.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

THRESHOLD, TARGET, MOST = 0.8, 0.7, 5
LEAST_GUEST = 0.05
"""A guest that presses less is not worth a migration."""


@dataclass(frozen=True)
class PressingGuest:
    """A guest, the host it is on, and what it takes of that host's most pressed node (0 to 1)."""

    uuid: str
    host: str
    pressure: float


@dataclass(frozen=True)
class Migration:
    """One guest to be migrated."""

    uuid: str
    source: str
    destination: str


@dataclass(frozen=True)
class Rebalance:
    """What to do, and the hosts' pressures that are expected then."""

    migrations: tuple[Migration, ...]
    expected: Mapping[str, float]


def plan_rebalance(  # noqa: PLR0913 - what is known, and three limits
    pressures: Mapping[str, float],
    guests: Sequence[PressingGuest],
    has_room: Callable[[str, str, tuple[Migration, ...]], bool],
    threshold: float = THRESHOLD,
    target: float = TARGET,
    most: int = MOST,
) -> Rebalance:
    """Return the plan; ``has_room(uuid, host, before)``: does the guest fit there, after ``before``?"""
    expected, done = dict(pressures), tuple[Migration, ...]()
    while len(done) < most:
        move = _next_move(expected, guests, has_room, threshold, target, done)
        if move is None:
            break
        pressure = next(guest.pressure for guest in guests if guest.uuid == move.uuid)
        expected[move.source] = max(expected[move.source] - pressure, 0.0)
        expected[move.destination] += pressure
        done = (*done, move)
    return Rebalance(done, expected)


def _next_move(  # noqa: PLR0913 - as above
    expected: Mapping[str, float],
    guests: Sequence[PressingGuest],
    has_room: Callable[[str, str, tuple[Migration, ...]], bool],
    threshold: float,
    target: float,
    done: tuple[Migration, ...],
) -> Migration | None:
    moved = {move.uuid for move in done}
    coldest = sorted(expected, key=lambda host: (expected[host], host))
    for hot in sorted(expected, key=lambda host: (-expected[host], host)):
        if expected[hot] < threshold:
            return None
        mine = [g for g in guests if g.host == hot and g.uuid not in moved and g.pressure >= LEAST_GUEST]
        for guest in sorted(mine, key=lambda one: (-one.pressure, one.uuid)):
            for cold in coldest:
                if expected[cold] + guest.pressure > target:
                    break
                if cold != hot and has_room(guest.uuid, cold, done):
                    return Migration(guest.uuid, hot, cold)
    return None
