"""The waits of the loop: it serves orders meanwhile, and ends a rest early if something cannot wait."""

from vmplace.agent.listening import Listener
from vmplace.agent.loop_state import LoopState
from vmplace.garbage import Collector


class LoopWaits:
    """Windows and the rests between them, by the loop's clock."""

    def __init__(self, state: LoopState, listener: Listener) -> None:
        self._state = state
        self._listener = listener
        self._collector = Collector()

    def rest(self, seconds: float, *, until_asked: bool) -> None:
        """Serve orders for ``seconds``; an order that needs a window ends a rest, but not a window."""
        state = self._state
        end = state.clock.monotonic() + seconds
        # Also where the windows leave no time for a rest.
        self._collector.collect_due()
        while not state.wakeup.stopping and (left := end - state.clock.monotonic()) > 0:
            state.heartbeat.beat()
            self._collector.collect_due()
            longest_s = min(state.heartbeat.interval_s, state.config.window_ms / 1000)
            if state.wakeup.wait(min(left, longest_s)):
                state.commands.serve()
            self._listener.listen()
            if until_asked and (state.commands.waits_for_window or self._is_called() or self._is_stirred()):
                return

    def _is_called(self) -> bool:
        """Return whether something was reported that the next window should follow."""
        state = self._state
        return self._listener.has_heard or state.wakeup.reloading or state.parts.discovery.has_news()

    def _is_stirred(self) -> bool:
        """Return whether a guest does something else than in its last window: then a rest is over.

        One that is left to the kernel may do what it likes: nothing of it would be moved.
        """
        state = self._state
        watched = [guest for guest in state.roster if guest.name not in state.left_to_kernel]
        with state.notes.fenced("whether guests changed is not known"):
            if state.trials.stirred(watched):
                state.look_again_soon()
                return True
        return False
