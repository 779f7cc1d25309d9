"""After a plan: carry it out, and undo what made a guest slower."""

import logging

from vmplace.actuation.result import ActuationResult
from vmplace.agent.balancing import BalancingSwitch
from vmplace.agent.listening import Listener
from vmplace.agent.loop_state import LoopState
from vmplace.agent.may_move import may_change, may_move, may_undo
from vmplace.agent.notes import described, unexpected
from vmplace.agent.tracked_guest import TrackedGuest
from vmplace.policy.plan import Mode, PlacementPlan
from vmplace.policy.trial import Trial

LOG = logging.getLogger(__name__)


class ActStage:
    """Hands plans to the actuator, and judges what came of them."""

    def __init__(self, state: LoopState, listener: Listener, balancing: BalancingSwitch) -> None:
        self._state = state
        self._listener = listener
        self._balancing = balancing

    def act(self, plan: PlacementPlan) -> ActuationResult:
        """Carry out what may be moved now; what fails is in the result."""
        state = self._state
        state.commands.serve()
        self._listener.listen()
        if state.commands.waits_for_window:
            self._balancing.own()
        try:
            # What harmed a guest must end, whatever its trial has to say of moves.
            plan = plan.only(lambda name: may_move(state, name), lambda name: may_change(state, name))
            if plan.is_empty:
                return ActuationResult()
            topologies = {guest.name: guest.topology for guest in state.roster}
            return state.parts.actuator.apply(plan, topologies, self._listener.is_interrupted)
        except Exception as err:
            if unexpected(err):
                LOG.error("the plan was not carried out to its end", exc_info=err)
            return ActuationResult(failures=(described(err),))
        finally:
            self._listener.listen()

    def judge(self, result: ActuationResult) -> None:
        """Undo what made a guest slower, as soon as it may be changed."""
        state = self._state
        if made_room := state.rooms.settle(result):
            for guest in filter(None, map(state.roster.get, made_room)):
                # These moves were for another guest.  Later moves are compared with its cost from now on.
                guest.trial = Trial(kept=True)
            return
        with state.notes.fenced("what moved is not judged"):
            state.trials.settle(state.roster, result, state.clock.monotonic())
        for guest in state.roster:
            if guest.trial.is_undo_due and guest.settings.mode is Mode.ADVISE:
                # Root had it moved.  As long as mode is "advise", only root has anything moved.
                guest.trial = guest.trial.left_as_it_is(f"mode advise; `vmplace undo {guest.name}`")
            # An order that waits may be to pause.
            is_due = guest.trial.is_to_undo(state.clock.monotonic())
            if is_due and may_undo(state, guest.name) and not state.inbox.waiting:
                self._undo(guest)

    def _undo(self, guest: TrackedGuest) -> None:
        """Undo what made one guest slower; what does not go back stays due, at once if an order came."""
        state, listener = self._state, self._listener
        is_undone = False
        with state.notes.fenced(f"guest {guest.name} is not undone"):
            undone = state.parts.actuator.undo(
                guest.topology, lambda: listener.is_undo_over() or state.inbox.waiting
            )
            is_undone = True
            state.notes.add(*undone)
        now_s = state.clock.monotonic()
        if is_undone:
            guest.trial = guest.trial.undone(now_s)
        elif not state.inbox.waiting:
            guest.trial = guest.trial.not_undone(now_s)
