"""The loop of the agent: window, harvest, model, plan, act; and rest while there is nothing to do.

One guest's failure never stops the loop.  Orders (pause, undo ...) come in at any moment and are carried
out between two batches of moves.  Each stage is a module of its own (``*_stage.py``); here is their order.
"""

import logging
import os
from dataclasses import replace

from vmplace import __version__
from vmplace.agent import cost
from vmplace.agent.act_stage import ActStage
from vmplace.agent.balancing import BalancingSwitch
from vmplace.agent.command_queue import CommandQueue
from vmplace.agent.config import LoadedConfig
from vmplace.agent.handovers import Handovers
from vmplace.agent.heartbeat import Heartbeat
from vmplace.agent.idle_backoff import IdleBackoff
from vmplace.agent.listening import Listener
from vmplace.agent.look_interval import LookInterval
from vmplace.agent.loop_state import LoopState
from vmplace.agent.orders import Inbox
from vmplace.agent.parts import Parts
from vmplace.agent.plan_stage import PlanStage
from vmplace.agent.planning import CpuBudget
from vmplace.agent.readings import Readings
from vmplace.agent.refresh_stage import RefreshStage
from vmplace.agent.room import RoomMaker
from vmplace.agent.roster import Roster
from vmplace.agent.sample_stage import SampleStage
from vmplace.agent.settle_stage import SettleStage, WindowCost
from vmplace.agent.state import AgentStatus, PlanSummary
from vmplace.agent.tracked_guest import TrackedGuest
from vmplace.agent.trials import Trials
from vmplace.agent.waiting import LoopWaits
from vmplace.agent.wakeup import Wakeup
from vmplace.policy.registry import AUTO
from vmplace.policy.trial import SAMPLE_S
from vmplace.sampling.source import EarlyReader
from vmplace.topology.host import HostTopology

LOG = logging.getLogger(__name__)
PAUSED = "it was not undone, as all guests were paused: `vmplace undo` does it"
HELD = "what a killed agent left was not undone, as the guest was held: `vmplace undo` does it"


class Agent:
    """The loop.  ``run`` belongs to one thread; ``status``, ``last_plan`` and ``inbox`` to everybody."""

    def __init__(
        self, loaded: LoadedConfig, parts: Parts, wakeup: Wakeup, heartbeat: Heartbeat | None = None
    ) -> None:
        self._kept: tuple[str, ...] = ()
        self.state = self._first_state(loaded, parts, wakeup, heartbeat or Heartbeat())
        self.roster, self.inbox = self.state.roster, self.state.inbox
        longest_ms = self.state.config.window_ms
        shortest_ms = min(self.state.config.shortest_window_ms, longest_ms) if _reader(parts) else longest_ms
        self._interval = LookInterval(shortest_ms, longest_ms)
        self._window_ms = self._interval.window_ms
        self.listener = Listener(self.state)
        self.waits = LoopWaits(self.state, self.listener)
        balancing = BalancingSwitch(self.state)
        self.refresh_stage = RefreshStage(self.state, self.listener, balancing, loaded)
        self._sample_stage = SampleStage(self.state, self.waits)
        self._plan_stage = PlanStage(self.state)
        self._act_stage = ActStage(self.state, self.listener, balancing)
        self._settle_stage = SettleStage(self.state)

    @property
    def host(self) -> HostTopology | None:
        """Return the host as plans see it, without the room that is kept; None before the first look."""
        return self.state.host

    @property
    def last_plan(self) -> PlanSummary:
        """Return what the last plan wanted."""
        return self.state.last_plan

    @property
    def status(self) -> AgentStatus:
        """Return the state after the last window, with the agent's cost of this moment."""
        now = replace(self.state.status, cpu_seconds=cost.cpu_seconds(), rss_bytes=cost.rss_bytes())
        parts = self.state.parts
        notes = (
            *parts.notes,
            *self._kept,
            *parts.standing.notes,
            *self.refresh_stage.reload_notes,
            *now.notes,
        )
        return replace(now, notes=tuple(dict.fromkeys(notes)))

    def run(self, *, windows: int | None = None) -> None:
        """Run until the wakeup says stop, or for ``windows`` windows."""
        state = self.state
        try:
            state.heartbeat.ready()
            self._welcome()
            while not state.wakeup.stopping and (windows is None or state.status.windows < windows):
                state.commands.serve()
                self._window()
                if windows is None or state.status.windows < windows:
                    self.waits.rest(state.status.rest_ms / 1000, until_asked=True)
        finally:
            self._farewell()

    def _welcome(self) -> None:
        state = self.state
        if left := state.parts.actuator.leftover():
            LOG.warning("%s", left)
            self._kept = (left,)
            if state.config.on_leftover == "undo":
                self._undo_leftover()
        with state.notes.fenced("whom an earlier agent placed is not known"):
            state.roster.placed = state.parts.actuator.placed().keys()

    def _undo_leftover(self) -> None:
        """Undo what a killed agent left, but nothing of guests that root ordered to leave alone."""
        state, standing = self.state, self.state.parts.standing
        if standing.paused:
            self._kept += (PAUSED,)
            return
        placed = state.parts.actuator.placed()
        held = {identity: name for identity, name in placed.items() if identity in standing.held}
        undone: tuple[str, ...] = tuple(f"{name}: {HELD}" for name in held.values())
        with state.notes.fenced("what a killed agent left is not undone"):
            undone += state.parts.actuator.undo(None, self.listener.is_undo_over, held)
        self._kept = (*(undone or self._kept), *state.notes.now)

    def _farewell(self) -> None:
        state = self.state
        state.heartbeat.stopping()
        parts = (state.commands, state.parts.source, state.parts.actuator, state.trials, state.handovers)
        for part in parts:
            with state.notes.fenced("clean stop"):
                part.close()

    def _window(self) -> None:
        state, clock = self.state, self.state.clock
        started_cpu = look_cpu = clock.cpu_s()
        self._window_ms = self._interval.window_ms
        state.readings.last(self._window_ms)
        changed = self.refresh_stage.refresh()
        armed = self._sample_stage.armed()
        state.trials.begin(armed, self._window_ms / 1000)
        busy_cpu = clock.cpu_s() - started_cpu
        busy_cpu += self._sample_stage.watch(self._window_ms)
        if state.wakeup.stopping:
            return
        started_cpu = clock.cpu_s()
        state.trials.end(armed, clock.monotonic())
        self._sample_stage.harvest(armed)
        busy_cpu += clock.cpu_s() - started_cpu
        plan = self._plan_stage.plan(self._window_ms)
        if armed:
            self._interval = self._interval.after(clock.cpu_s() - look_cpu)
        result = self._act_stage.act(plan)
        self._act_stage.judge(result)
        self._settle_stage.settle(result, self._cost(busy_cpu), changed=changed)

    def _cost(self, sampling_cpu_s: float) -> WindowCost:
        harvests_s, plans_s = self._sample_stage.harvest_s, self._plan_stage.plan_s
        return WindowCost(sampling_cpu_s, self._interval.look_s, harvests_s, plans_s)

    def _is_judged(self, guest: TrackedGuest) -> bool:
        """Tell whether a trial judges what moves for the guest, rather than the guard of the plan."""
        return self.state.parts.policy_name != AUTO or guest.name not in self.state.by_pages

    def _held(self) -> None:
        """Follow an order to hold guests or let go of them: look again soon, and tell."""
        self.state.look_again_soon()
        self._settle_stage.publish(replace(self.state.status, paused=self.state.commands.paused))

    def _is_undo_over(self) -> bool:
        return self.listener.is_undo_over()

    def _first_state(
        self, loaded: LoadedConfig, parts: Parts, wakeup: Wakeup, heartbeat: Heartbeat
    ) -> LoopState:
        config, clock = loaded.config, parts.clock
        standing = parts.standing
        roster, inbox, rooms = Roster(loaded, parts.holds, standing.holds), Inbox(wakeup), RoomMaker(clock)
        return LoopState(
            config,
            parts,
            clock,
            wakeup,
            heartbeat,
            roster,
            inbox,
            rooms,
            CommandQueue(inbox, roster, parts.actuator, self._held, self._is_undo_over, rooms, standing),
            # A shorter configured window asks for verdicts sooner; windows that shrink by themselves do not.
            Trials(parts.counters, self._is_judged, min(SAMPLE_S, config.window_ms / 1000)),
            Readings(_reader(parts), config.readings, config.window_ms, clock),
            CpuBudget(config.decisions.share, clock),
            Handovers(parts.summaries, config.migration.summary_s, clock, heartbeat.beat),
            AgentStatus(
                __version__, os.getpid(), parts.source.name, parts.policy_name, paused=standing.paused
            ),
            IdleBackoff(config.window_ms, config.longest_rest_ms),
        )


def _reader(parts: Parts) -> EarlyReader | None:
    """Return the source if its bits can be read before a window ends."""
    source = parts.source
    return source if parts.policy_name == AUTO and isinstance(source, EarlyReader) else None
