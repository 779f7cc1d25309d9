"""After a window: what should move, within the budgets and limits of host and guests?"""

from collections.abc import Mapping
from dataclasses import replace

from vmplace.actuation.result import Copies
from vmplace.agent import decisions
from vmplace.agent.limits import GuestLimits, limited, preferred_views
from vmplace.agent.loop_state import LoopState
from vmplace.agent.may_move import may_move
from vmplace.agent.notes import described
from vmplace.agent.planning import planned
from vmplace.agent.state import summary
from vmplace.policy.known_nodes import changed_nodes
from vmplace.policy.plan import GuestView, PlacementPlan, Snapshot, Stay
from vmplace.policy.policy_auto import by_pages, uncounted
from vmplace.policy.registry import AUTO
from vmplace.policy.unneeded_copies import UnneededCopies
from vmplace.topology.host import HostTopology

NO_PLAN = PlacementPlan()
LONGEST_SAVING_S = 2.0
"""A budget that was not used for longer is gone: a plan takes 40 bytes a page, and an agent that a busy host
lets run seldom must not grow."""


class PlanStage:
    """Asks the policy; ``plan_s``: how long that took in all."""

    def __init__(self, state: LoopState) -> None:
        self._state = state
        self._planned_at = state.clock.monotonic()
        self.plan_s = 0.0
        self._lone = UnneededCopies()

    def plan(self, window_ms: int) -> PlacementPlan:
        """Return the plan after a window of ``window_ms``, if the budget for decisions allows one."""
        state = self._state
        state.decisions.begin(is_asked=state.commands.waits_for_window)
        if not state.decisions.allows:
            state.notes.add(state.decisions.note)
        began = state.clock.monotonic()
        with state.decisions.charged():
            plan = self._plan(window_ms)
        self.plan_s += state.clock.monotonic() - began
        return plan

    def _plan(self, window_ms: int) -> PlacementPlan:
        state = self._state
        if state.host is None or not state.decisions.allows or state.roster.are_awaited:
            return NO_PLAN
        limits = {guest.name: guest.limits(state.now_ns()) for guest in state.roster}
        snapshot, stays = self._snapshot(state.host, window_ms, limits)
        if state.parts.policy_name == AUTO:
            state.notes.add(*uncounted(snapshot), *changed_nodes(snapshot))
        plan = NO_PLAN
        with state.notes.fenced(f"policy {state.parts.policy_name} failed, nothing moves"):
            wanted = state.rooms.plan(snapshot, lambda name: may_move(state, name))
            if wanted is None:
                wanted = planned(state.parts.policy, snapshot, self._blame, self._lone)
                state.by_pages = by_pages(wanted)
            state.notes.add(*wanted.notes)
            plan = limited(replace(wanted, stays=(*stays, *wanted.stays)), limits)
            state.last_plan = summary(plan)
            decisions.expect(state.roster, state.host, plan)
        return plan

    def _snapshot(
        self, host: HostTopology, window_ms: int, limits: Mapping[str, GuestLimits]
    ) -> tuple[Snapshot, tuple[Stay, ...]]:
        """Return what the policy plans from, and what stays because of where guests prefer to be."""
        state = self._state
        budget_bytes = round(state.config.budget.mb_per_s * 1e6 * self._since_plan_s(window_ms))
        views, stays = preferred_views(state.roster.views(state.clock.monotonic()), host)
        views = tuple(self._limited(host, one, limits[one.topology.name]) for one in views)
        snapshot = Snapshot(
            host,
            views,
            budget_bytes,
            state.parts.replica_ratio,
            state.parts.huge_replicas,
            now_ns=state.clock.monotonic() * 1e9,
            window_s=window_ms / 1000,
        )
        return snapshot, stays

    def _limited(self, host: HostTopology, view: GuestView, limits: GuestLimits) -> GuestView:
        """Return the view with what may be done with the guest now."""
        name, counted = view.topology.name, self._state.copies
        view = replace(view, may_change=may_move(self._state, name))
        view = replace(view, numatune=limits.numatune, move_bytes=limits.move_bytes)
        if guest := self._state.roster.get(name):
            now_s = self._state.clock.monotonic()
            view = replace(view, lar=guest.lar_of_nodes(host, now_s), node_shares=guest.shares(host, now_s))
        if counted is None:
            return view
        copies = counted.get(name, Copies())
        return replace(view, copied_bytes=copies.present_bytes, copies_wait=copies.wait)

    def _since_plan_s(self, window_ms: int) -> float:
        """Return how long ago the last plan was, at least a window: the budget has grown so long."""
        now = self._state.clock.monotonic()
        since_s, self._planned_at = now - self._planned_at, now
        return min(max(since_s, window_ms / 1000), LONGEST_SAVING_S)

    def _blame(self, name: str, err: Exception) -> None:
        if guest := self._state.roster.get(name):
            guest.note(err)
        self._state.notes.add(f"guest {name} is planned for no more: {described(err)}")
