"""Room for a guest that is to come: made by order, window by window, and kept free for a while.

While an order waits, windows move what makes room and nothing else.  What was made is then withheld from
every plan for ``KEPT_S``, or until another guest is there; so nothing moves back into it.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from vmplace.actuation.result import ActuationResult
from vmplace.agent.clock import Clock
from vmplace.agent.orders import Order
from vmplace.errors import VmplaceError
from vmplace.policy.fit import Fit, Flavour, fit, tenants
from vmplace.policy.make_room import room_moves
from vmplace.policy.plan import GuestView, PlacementPlan, Snapshot
from vmplace.topology.guest import PAGE_BYTES, Identity
from vmplace.topology.host import HostTopology

LOG = logging.getLogger(__name__)
KEPT_S = 300.0
LONGEST_S = 240.0
"""Less than the 300 s that the client waits (control.py)."""
MOST_IN_VAIN = 5
"""Windows in a row in which nothing could be moved."""


class NoRoomError(VmplaceError):
    """The guest does not fit, and nothing that may be moved makes room."""


@dataclass(frozen=True)
class Kept:
    """Bytes of a node that are kept free until ``until_s``, or until a new guest is there."""

    nid: int
    size_bytes: int
    until_s: float
    known: frozenset[Identity]


@dataclass
class _Making:
    order: Order
    flavour: Flavour
    until_s: float
    nid: int | None = None
    moved_bytes: int = 0
    in_vain: int = 0


class RoomMaker:
    """Orders to make room, oldest first, and the room that is kept; belongs to the loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._making: list[_Making] = []
        self._kept: tuple[Kept, ...] = ()
        self.is_making = False
        """Whether it is for room that this window moves."""

    @property
    def waits(self) -> bool:
        """Tell whether an order waits."""
        return bool(self._making)

    def begin(self, order: Order, flavour: Flavour) -> None:
        """Take an order; ``order.answer`` is set once the room is there, or cannot be."""
        self._making.append(_Making(order, flavour, self._clock.monotonic() + LONGEST_S))

    def without_kept(self, host: HostTopology, present: frozenset[Identity]) -> HostTopology:
        """Return the host without the room that is kept; lets go of what is over."""
        now = self._clock.monotonic()
        self._kept = tuple(one for one in self._kept if now < one.until_s and present <= one.known)
        kept = {node.nid: sum(k.size_bytes for k in self._kept if k.nid == node.nid) for node in host.nodes}
        nodes = tuple(
            replace(n, free_bytes=max(0, n.free_bytes - kept[n.nid])) if kept[n.nid] else n
            for n in host.nodes
        )
        return replace(host, nodes=nodes)

    def plan(self, snapshot: Snapshot, may_move: Callable[[str], bool]) -> PlacementPlan | None:
        """Return what makes room now; None if no order waits any more."""
        while self._making:
            self.is_making = True
            movable = tuple(one for one in snapshot.guests if may_move(one.topology.name))
            try:
                plan = self._step(self._making[0], snapshot, movable)
            except Exception as err:
                # The error goes to the client that asked; the other orders go on.
                self._making[0].order.answer.set_exception(err)
                plan = None
            if plan is not None:
                return plan
            del self._making[0]
        self.is_making = False
        return None

    def _step(
        self, making: _Making, snapshot: Snapshot, movable: tuple[GuestView, ...]
    ) -> PlacementPlan | None:
        """Return the next moves; None once it is answered.  Raises NoRoomError."""
        found = fit(snapshot.host, snapshot.guests, tenants(snapshot.host, movable), making.flavour)
        if found.nids:
            self._keep(making, found, snapshot.guests)
            return None
        self._check(making, found)
        making.nid = found.room_nid
        return PlacementPlan(room_moves(movable, found.evictions, snapshot.budget_bytes))

    def settle(self, result: ActuationResult) -> tuple[str, ...]:
        """Count what moved after the window; return whose memory it was."""
        if not self.is_making:
            return ()
        self.is_making = False
        moved = sum(outcome.moved for outcome in result.outcomes) * PAGE_BYTES
        self._making[0].moved_bytes += moved
        self._making[0].in_vain = 0 if moved else self._making[0].in_vain + 1
        return tuple(outcome.guest for outcome in result.outcomes if outcome.moved)

    def close(self) -> None:
        """Tell everybody who waits that nothing more will be done."""
        for making in self._making:
            making.order.answer.set_exception(VmplaceError("the agent stops", hint="start it, and ask again"))
        self._making = []

    def _check(self, making: _Making, found: Fit) -> None:
        if not found.evictions:
            why = "nothing that may be moved makes room for it on one node"
        elif making.in_vain >= MOST_IN_VAIN:
            why = "what should make room does not move"
        elif self._clock.monotonic() >= making.until_s:
            why = "the time is up"
        else:
            return
        hint = "vmplace fit tells what each node lacks; vmplace why GUEST, what does not move"
        if making.moved_bytes:
            hint = f"ask again to go on; {hint}"
        raise NoRoomError(f"no room for {_size(making)}: {why}", hint=hint)

    def _keep(self, making: _Making, found: Fit, guests: Iterable[GuestView]) -> None:
        """Keep the room for a while, and answer."""
        nid = making.nid if making.nid in found.nids else found.nids[0]
        known = frozenset(one.topology.identity for one in guests)
        until_s = self._clock.monotonic() + KEPT_S
        self._kept += (Kept(nid, making.flavour.memory_bytes, until_s, known),)
        reported = f"node {nid} has room for {_size(making)}; it is kept free for {KEPT_S:.0f} s"
        LOG.info('room_nid=%d reason="%s"', nid, reported)
        making.order.answer.set_result((reported,))


def _size(making: _Making) -> str:
    size = f"{making.flavour.vcpus} vCPUs and {making.flavour.memory_bytes >> 20} MiB"
    return f"{size} ({making.moved_bytes >> 20} MiB were moved)"
