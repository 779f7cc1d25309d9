"""What root ordered, carried out between two batches of moves or at the end of a window."""

import logging
from collections.abc import Callable

from vmplace.agent.orders import Answer, Inbox, Order, UnknownGuestError
from vmplace.agent.parts import Actuator
from vmplace.agent.room import RoomMaker
from vmplace.agent.roster import Roster
from vmplace.agent.standing_orders import StandingOrders
from vmplace.errors import VmplaceError

LOG = logging.getLogger(__name__)


class CommandQueue:
    """Serves the inbox; ``standing`` are the orders that stay behind: ``paused``, and guests that are held.

    ``changed`` is called when one of these did, before who asked for it is answered.  An undo is given up
    once ``is_stopping()``.
    """

    def __init__(  # noqa: PLR0913 - whom orders concern
        self,
        inbox: Inbox,
        roster: Roster,
        actuator: Actuator,
        changed: Callable[[], None],
        is_stopping: Callable[[], bool] = lambda: False,
        rooms: RoomMaker | None = None,
        standing: StandingOrders | None = None,
    ) -> None:
        self._inbox = inbox
        self._roster = roster
        self._actuator = actuator
        self._changed = changed
        self._is_stopping = is_stopping
        self._rooms = rooms
        self._standing = standing or StandingOrders()
        self._applied: list[Order] = []

    @property
    def paused(self) -> bool:
        """Tell whether nothing of any guest may be changed."""
        return self._standing.paused

    @property
    def waits_for_window(self) -> bool:
        """Tell whether somebody asked for what the next window decides."""
        return bool(self._applied) or bool(self._rooms and self._rooms.waits)

    def asked_to_move(self, name: str) -> bool:
        """Tell whether somebody asked for this guest's moves, whatever its mode."""
        return any(order.guest in (None, name) for order in self._applied)

    def serve(self) -> None:
        """Carry out what was ordered, or keep it for the end of the window."""
        for order in iter(self._inbox.take, None):
            try:
                answer = self._obeyed(order)
            except Exception as err:
                # The error goes to the client; no order ends the loop.
                order.answer.set_exception(err)
            else:
                if answer is not None:
                    order.answer.set_result(answer)

    def report(self, lines: tuple[str, ...]) -> None:
        """Answer those who waited for the end of the window."""
        for order in self._applied:
            order.answer.set_result(lines or ("nothing to move",))
        self._applied = []

    def close(self) -> None:
        """Tell everybody who waits that nothing will be done."""
        for order in (*iter(self._inbox.take, None), *self._applied):
            order.answer.set_exception(
                VmplaceError("the agent stops", hint="start it again: systemctl start vmplace")
            )
        if self._rooms:
            self._rooms.close()

    def _obeyed(self, order: Order) -> Answer | None:
        """Carry an order out; None = it is answered at the end of the window."""
        guest = None if order.guest is None else self._roster.get(order.guest)
        if order.guest is not None and guest is None:
            raise UnknownGuestError(order.guest, self._roster.names())
        LOG.info('order=%s guest=%s reason="asked by root"', order.verb, order.guest or "all")
        if order.verb == "apply":
            self._applied.append(order)
            return None
        if order.verb == "make-room":
            self._make_room(order)
            return None
        self._hold(order.guest, held=order.verb != "resume")
        done: Answer = (f"{order.guest or 'all guests'}: {order.verb}d",)
        if order.verb == "undo":
            done = self._actuator.undo(guest.topology if guest else None, self._is_stopping)
        if problem := self._standing.problem:
            hint = "free some space, or make it writable, and order it again"
            raise VmplaceError(f"{'; '.join(done)}, but {problem}", hint=hint)
        return done

    def _make_room(self, order: Order) -> None:
        if self._rooms is None or order.flavour is None:
            raise VmplaceError("the size to make room for is missing", hint="name it: VCPUS:MIB")
        if self.paused:
            raise VmplaceError("all moves are paused, so no room is made", hint="vmplace resume")
        self._rooms.begin(order, order.flavour)

    def _hold(self, name: str | None, *, held: bool) -> None:
        if name is None:
            self._standing.hold_all(held=held)
        elif guest := self._roster.get(name):
            self._standing.hold(guest.topology, held=held)
        for guest in self._roster:
            guest.held = self._standing.holds(guest.topology)
        self._changed()
