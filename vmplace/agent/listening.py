"""What is reported to the loop while it works or waits: news of guests, orders, the end."""

import logging

from vmplace.agent.loop_state import LoopState
from vmplace.agent.tracked_guest import TrackedGuest

LOG = logging.getLogger(__name__)


class Listener:
    """Takes in news; ``has_heard``: some came since the last window began."""

    def __init__(self, state: LoopState) -> None:
        self._state = state
        self.has_heard = False

    def listen(self) -> None:
        """Take in what libvirt and its hook tell; let go at once of a guest that begins to migrate."""
        state = self._state
        now_s = state.clock.monotonic()
        for news in state.inbox.take_news():
            # Each round of a migration is reported, for minutes: only the first is news to anybody.  A look
            # at a guest that arrives costs CPU that it waits for.
            is_under_way = state.roster.is_under_way(news, now_s)
            state.roster.follow_news(news, now_s)
            if is_under_way:
                continue
            self.has_heard = True
            self.let_go()

    def let_go(self) -> None:
        """Take roots, copies and hint faults off guests that begin to migrate; a window brings them back."""
        for guest in self._state.roster:
            if guest.is_migrating and not guest.is_let_go:
                guest.is_let_go = self._let_go_of(guest)
            elif not guest.is_migrating:
                guest.is_let_go = False

    def is_stopping(self) -> bool:
        """Tell whether the loop has to end, and the service manager that it goes on."""
        self._state.heartbeat.beat()
        return self._state.wakeup.stopping

    def is_undo_over(self) -> bool:
        """Tell whether an undo has to end; it may last for minutes, in which guests begin to migrate."""
        self.listen()
        return self.is_stopping()

    def is_interrupted(self) -> bool:
        """Tell whether moves have to end early: the agent is stopped, or an order or news came."""
        # libvirt reports each round of a migration, for minutes: that must not delay all other guests.
        inbox, roster, now_s = self._state.inbox, self._state.roster, self._state.clock.monotonic()
        heard = any(not roster.is_known(news, now_s) for news in inbox.news)
        return self.is_stopping() or inbox.waiting or heard

    def _let_go_of(self, guest: TrackedGuest) -> bool:
        """Let one guest go for its migration; what would not is tried again at the next window."""
        parts = self._state.parts
        steps = (parts.source.forget, parts.actuator.release)
        done = 0
        for let_go in steps:
            with self._state.notes.fenced(f"guest {guest.name} is not let go for its migration"):
                let_go(guest.topology)
                done += 1
        if done == len(steps):
            LOG.info('guest=%s state=known->migrating reason="nothing of it moves"', guest.name)
        return done == len(steps)
