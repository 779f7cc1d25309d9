"""At the end of a window: remember what was decided and done, and show it."""

from dataclasses import dataclass, replace

from vmplace.actuation.result import ActuationResult
from vmplace.agent import decisions
from vmplace.agent.loop_state import LoopState
from vmplace.agent.report import published, result_lines
from vmplace.agent.state import AgentStatus
from vmplace.policy.plan import Mode
from vmplace.topology.guest import PAGE_BYTES


@dataclass(frozen=True)
class WindowCost:
    """What a window took, in s: a look is sampling and planning; ``all`` is wall time since the start."""

    sampling_cpu_s: float
    look_cpu_s: float
    all_harvests_s: float
    all_plans_s: float


class SettleStage:
    """Keeps decisions, status and the rest that follows; belongs to the loop's thread."""

    def __init__(self, state: LoopState) -> None:
        self._state = state

    def settle(self, result: ActuationResult, cost: WindowCost, *, changed: bool) -> None:
        """End a window; ``changed``: guests came, went or have other settings."""
        state = self._state
        self._remember(result)
        if result.pinned_vcpus:
            state.parts.discovery.look_again()
        did = result.moved_pages + result.replicated_pages + result.pinned_vcpus
        if state.decisions.allows:
            placed = {guest.name for guest in state.roster if guest.settings.mode is Mode.AUTO}
            state.backoff = state.backoff.after(
                moved=changed or did > 0,
                look_s=cost.look_cpu_s,
                all_left=bool(placed) and placed <= state.left_to_kernel,
            )
            self._write_summaries()
        self.publish(self._counted(result, cost))
        if state.decisions.allows:
            lars = {guest.name: guest.expected_lar for guest in state.roster}
            state.commands.report(result_lines(result, state.last_plan, lars))
        state.decisions.end()

    def publish(self, status: AgentStatus) -> None:
        """Show ``status`` with how guests and host stand now, if the budget for decisions allows that."""
        state = self._state
        if not state.decisions.allows:
            known = state.roster.names()
            guests = {name: one for name, one in status.guests.items() if name in known}
            status = replace(status, guests=guests)
        elif state.host is not None:
            state.copies = None
            with state.notes.fenced("copies are not counted"):
                state.copies = state.parts.actuator.copies([guest.topology for guest in state.roster])
            with (
                state.notes.fenced("the figures are those of an earlier window"),
                state.decisions.charged(),
            ):
                copies, now_s = state.copies or {}, state.clock.monotonic()
                status = published(status, state.roster, state.host, state.last_plan, copies, now_s)
        state.status = replace(status, notes=state.notes.now)

    def _remember(self, result: ActuationResult) -> None:
        """Keep on each guest what was decided, done and refused."""
        state = self._state
        done = decisions.done_by_guest(result)
        unix_s = state.clock.unix_s()
        for guest in state.roster:
            with state.notes.fenced(f"guest {guest.name}: its decision is not kept"):
                mine = done.get(guest.name, decisions.GuestOutcome())
                guest.spend(mine.outcome.moved * PAGE_BYTES if mine.outcome else 0, state.now_ns())
                decisions.remember(guest, state.status.windows + 1, unix_s, state.last_plan, mine)
        decisions.count_refusals(state.roster, result)
        for failure in result.failures:
            state.notes.complain(failure)

    def _write_summaries(self) -> None:
        state = self._state
        # Of all guests they may take longer than a plan, and have no other budget.
        with (
            state.notes.fenced("summaries for other hosts are not written"),
            state.decisions.charged_extra(),
        ):
            state.handovers.write_due(state.roster, state.host)

    def _counted(self, result: ActuationResult, cost: WindowCost) -> AgentStatus:
        """Return the status with what this window did and took."""
        before, outcomes = self._state.status, result.outcomes
        longest_ms = max((one.longest_call_ns for one in outcomes), default=0) / 1e6
        cpu_ms = max((one.longest_call_cpu_ns for one in outcomes), default=0) / 1e6
        return replace(
            before,
            windows=before.windows + 1,
            rest_ms=self._state.backoff.rest_ms,
            moved_bytes=before.moved_bytes + result.moved_pages * PAGE_BYTES,
            longest_move_call_ms=max(before.longest_move_call_ms, longest_ms),
            longest_move_call_cpu_ms=max(before.longest_move_call_cpu_ms, cpu_ms),
            sampling_cpu_seconds=before.sampling_cpu_seconds + cost.sampling_cpu_s,
            replicated_bytes=before.replicated_bytes + result.replicated_pages * PAGE_BYTES,
            harvest_seconds=cost.all_harvests_s,
            plan_seconds=cost.all_plans_s,
            budget_bytes_per_s=self._state.config.budget.mb_per_s * 10**6,
        )
