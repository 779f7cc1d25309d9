"""What does the agent do all day?  Window, harvest, model, plan, act; and rest while there is nothing to do.

One guest's failure never stops the loop.  Orders (pause, undo ...) come in at any moment and are carried
out between two batches of moves.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace

from vmplace import __version__
from vmplace.actuation.result import ActuationResult, Copies
from vmplace.agent import cost, decisions
from vmplace.agent.balancing import left_to_kernel
from vmplace.agent.command_queue import CommandQueue
from vmplace.agent.config import DEFAULT_CONFIG, LoadedConfig, read_config
from vmplace.agent.guests import Roster, TrackedGuest
from vmplace.agent.handovers import Handovers
from vmplace.agent.heartbeat import Heartbeat
from vmplace.agent.idle_backoff import IdleBackoff
from vmplace.agent.limits import limited, preferred_views
from vmplace.agent.look_interval import LookInterval
from vmplace.agent.notes import Notes, described, unexpected
from vmplace.agent.orders import Inbox
from vmplace.agent.parts import Parts
from vmplace.agent.planning import CpuBudget, planned
from vmplace.agent.readings import Readings
from vmplace.agent.reload import reloaded
from vmplace.agent.report import published, result_lines
from vmplace.agent.room import RoomMaker
from vmplace.agent.state import AgentStatus, PlanSummary, summary
from vmplace.agent.trials import Trials
from vmplace.agent.wakeup import Wakeup
from vmplace.errors import ConfigError
from vmplace.model.page_windows import absorbed
from vmplace.policy.plan import Mode, PlacementPlan, Snapshot
from vmplace.policy.policy_auto import plans_pages, uncounted
from vmplace.policy.registry import AUTO
from vmplace.policy.trial import SAMPLE_S, Trial, Verdict
from vmplace.sampling.source import EarlyReader
from vmplace.topology.guest import PAGE_BYTES, GuestTopology
from vmplace.topology.host import HostTopology

LOG = logging.getLogger(__name__)
NO_PLAN = PlacementPlan()
LEFT_TO_KERNEL = (
    "kernel.numa_balancing stays as it is: {} run on several nodes, and nothing here tells which of these "
    "touches a page, as the kernel's hint faults do"
)
LONGEST_SAVING_S = 2.0
"""A budget that was not used for longer is gone: a plan takes 40 bytes a page, and an agent that a busy host
lets run seldom must not grow."""


class Agent:
    """The loop.  ``run`` belongs to one thread; ``status``, ``last_plan`` and ``inbox`` to everybody."""

    def __init__(
        self, loaded: LoadedConfig, parts: Parts, wakeup: Wakeup, heartbeat: Heartbeat | None = None
    ) -> None:
        self._loaded = loaded
        self._given = None if loaded.path in {None, DEFAULT_CONFIG} else loaded.path
        self._reload_notes: tuple[str, ...] = ()
        self._has_heard = False
        self._config = loaded.config
        self._parts = parts
        self._wakeup = wakeup
        self._heartbeat = heartbeat or Heartbeat()
        self._host: HostTopology | None = None
        self._whole_host: HostTopology | None = None
        self._kept: tuple[str, ...] = ()
        self._notes = Notes()
        self._backoff = IdleBackoff(self._config.window_ms, self._config.longest_rest_ms)
        self._clock = parts.clock
        self._planned_at = self._clock.monotonic()
        self._harvest_s = self._plan_s = 0.0
        self._status = AgentStatus(
            __version__, os.getpid(), parts.source.name, parts.policy_name, paused=False
        )
        # Who sets a shorter window wants an answer sooner; windows that shrink by themselves do not count.
        sample_s = min(SAMPLE_S, self._config.window_ms / 1000)
        self._trials = Trials(parts.counters, self._is_judged, sample_s)
        source = parts.source
        reader = source if parts.policy_name == AUTO and isinstance(source, EarlyReader) else None
        self._readings = Readings(reader, self._config.readings, self._config.window_ms, self._clock)
        longest_ms = self._config.window_ms
        shortest_ms = longest_ms if reader is None else min(self._config.shortest_window_ms, longest_ms)
        self._interval = LookInterval(shortest_ms, longest_ms)
        self._window_ms = self._interval.window_ms
        self._decisions = CpuBudget(self._config.decisions.share, self._clock)
        self._handovers = Handovers(
            parts.summaries, self._config.migration.summary_s, self._clock, self._heartbeat.beat
        )
        self.roster = Roster(loaded, parts.holds)
        self.inbox = Inbox(wakeup)
        self._rooms = RoomMaker(self._clock)
        self._commands = CommandQueue(
            self.inbox, self.roster, parts.actuator, self._held, self._is_undo_over, self._rooms
        )
        self.last_plan = PlanSummary()

    @property
    def host(self) -> HostTopology | None:
        """Return the host as plans see it, without the room that is kept; None before the first look."""
        return self._host

    @property
    def status(self) -> AgentStatus:
        """Return the state after the last window, with the agent's cost of this moment."""
        now = replace(self._status, cpu_seconds=cost.cpu_seconds(), rss_bytes=cost.rss_bytes())
        return replace(
            now,
            notes=tuple(dict.fromkeys((*self._parts.notes, *self._kept, *self._reload_notes, *now.notes))),
        )

    def run(self, *, windows: int | None = None) -> None:
        """Run until the wakeup says stop, or for ``windows`` windows."""
        try:
            self._heartbeat.ready()
            self._welcome()
            while not self._wakeup.stopping and (windows is None or self._status.windows < windows):
                self._commands.serve()
                self._window()
                if windows is None or self._status.windows < windows:
                    self._rest(self._status.rest_ms / 1000, until_asked=True)
        finally:
            self._farewell()

    def _welcome(self) -> None:
        left = self._parts.actuator.leftover()
        if left is None:
            return
        LOG.warning("%s", left)
        self._kept = (f"{left}; `vmplace undo` restores it",)
        if self._config.on_leftover == "undo":
            with self._notes.fenced("what a killed agent left is not undone"):
                self._kept = self._parts.actuator.undo(None, self._is_undo_over)
            self._kept += self._notes.now

    def _farewell(self) -> None:
        self._heartbeat.stopping()
        for part in (self._commands, self._parts.source, self._parts.actuator, self._trials, self._handovers):
            with self._notes.fenced("clean stop"):
                part.close()

    def _window(self) -> None:
        started_cpu = look_cpu = self._clock.cpu_s()
        self._window_ms = self._interval.window_ms
        self._readings.last(self._window_ms)
        changed = self._refresh()
        armed = self._armed()
        self._trials.begin(armed, self._window_ms / 1000)
        busy_cpu = self._clock.cpu_s() - started_cpu
        busy_cpu += self._watch()
        if self._wakeup.stopping:
            return
        started_cpu = self._clock.cpu_s()
        self._trials.end(armed)
        began = self._clock.monotonic()
        for guest in armed:
            if not guest.is_migrating:
                self._harvest(guest)
        self._harvest_s += self._clock.monotonic() - began
        if self.roster.has_lost:
            self._parts.discovery.look_again()
        busy_cpu += self._clock.cpu_s() - started_cpu
        self._decisions.begin(is_asked=self._commands.waits_for_window)
        if not self._decisions.allows:
            self._notes.add(self._decisions.note)
        began = self._clock.monotonic()
        with self._decisions.charged():
            plan = self._plan()
        self._plan_s += self._clock.monotonic() - began
        if armed:
            self._interval = self._interval.after(self._clock.cpu_s() - look_cpu)
        result = self._act(plan)
        self._judge(result)
        self._settle(result, busy_cpu, changed=changed)

    def _armed(self) -> list[TrackedGuest]:
        """Arm all that are sampled; return those that could be."""
        sampled = [
            guest
            for guest in self.roster
            if guest.settings.mode is not Mode.MANUAL and not guest.is_migrating
        ]
        spread = {guest.name for guest in sampled if self._is_spread(guest)}
        armed = []
        for guest in sampled:
            self._heartbeat.beat()
            if self.roster.tried(guest, self._parts.source.arm):
                armed.append(guest)
                if guest.name in spread:
                    self._readings.begin(guest, guests=len(spread))
            self._readings.read_due(self.roster)
        return armed

    def _is_judged(self, guest: TrackedGuest) -> bool:
        """Tell whether a trial judges what moves for the guest, rather than the guard of the plan."""
        is_planned = self._host is not None and plans_pages(self._host, guest.view)
        return self._parts.policy_name != AUTO or not is_planned

    def _is_spread(self, guest: TrackedGuest) -> bool:
        """Tell whether the guest may run on several nodes: else who uses its pages needs no asking."""
        cpus = tuple({cpu for vcpu in guest.topology.vcpus for cpu in vcpu.cpus})
        return self._host is not None and len(self._host.nids_of_cpus(cpus)) > 1

    def _watch(self) -> float:
        """Let the window pass, with the readings that fall due; return the CPU seconds that these took."""
        end, cpu_s = self._clock.monotonic() + self._window_ms / 1000, 0.0
        while not self._wakeup.stopping and (due := self._readings.next_s()) is not None and due < end:
            self._rest(due - self._clock.monotonic(), until_asked=False)
            started_cpu = self._clock.cpu_s()
            self._readings.read_due(self.roster)
            cpu_s += self._clock.cpu_s() - started_cpu
        self._readings.end()
        self._rest(end - self._clock.monotonic(), until_asked=False)
        return cpu_s

    def _refresh(self) -> bool:
        self._notes.renew()
        self._hear()
        # What was known a window ago is better than nothing; a guest that ended tells by itself.
        found = self.roster.found()
        with self._notes.fenced("nodes not looked up"):
            self._whole_host = self._parts.discovery.host()
        with self._notes.fenced("guests not looked up"):
            found = self._parts.discovery.guests()
        self._notes.add(*found.notes)
        nids = self._whole_host.nids if self._whole_host else ()
        changed = self.roster.update(found.guests, nids)
        if self._whole_host is not None:
            present = frozenset(guest.topology.identity for guest in self.roster)
            self._host = self._rooms.without_kept(self._whole_host, present)
        changed |= self.roster.follow_domains(found, nids, self._clock.monotonic())
        self.roster.follow_time(self._clock.unix_s())
        self._let_go()
        for gone in self.roster.take_gone():
            for part in (self._parts.source, self._trials, self._readings):
                with self._notes.fenced(f"guest {gone.name} is not forgotten"):
                    part.forget(gone)
        self._own()
        return changed

    def _hear(self) -> None:
        """Follow what was reported since the last window: by libvirt and its hook, and by SIGHUP."""
        self._listen()
        if self._has_heard:
            self._has_heard = False
            self._parts.discovery.look_again(asking=True)
        if not self._wakeup.take_reload():
            return
        try:
            self._loaded, reported = reloaded(self._loaded, read_config(self._given))
        except ConfigError as err:
            reported = (f"not read again, what was read before holds: {described(err)}",)
        else:
            self.roster.reload(self._loaded, self._host.nids if self._host else ())
        self._reload_notes = tuple(f"vmplace.toml: {line}" for line in reported)
        for line in self._reload_notes:
            LOG.info("%s", line)

    def _listen(self) -> None:
        """Take in what libvirt and its hook tell; let go at once of a guest that begins to migrate."""
        for news in self.inbox.take_news():
            # Each round of a migration is reported, for minutes: only the first is news to anybody.
            is_round = self.roster.is_round(news)
            self.roster.follow_news(news, self._clock.monotonic())
            if is_round:
                continue
            self._has_heard = True
            self._let_go()

    def _let_go(self) -> None:
        """Take roots, copies and hint faults off guests that begin to migrate; a window brings them back."""
        for guest in self.roster:
            if guest.is_migrating and not guest.is_let_go:
                guest.is_let_go = self._let_go_of(guest)
            elif not guest.is_migrating:
                guest.is_let_go = False

    def _let_go_of(self, guest: TrackedGuest) -> bool:
        """Let one guest go for its migration; what would not is tried again at the next window."""
        steps = (self._parts.source.forget, self._parts.actuator.release)
        done = 0
        for let_go in steps:
            with self._notes.fenced(f"guest {guest.name} is not let go for its migration"):
                let_go(guest.topology)
                done += 1
        if done == len(steps):
            LOG.info('guest=%s state=known->migrating reason="nothing of it moves"', guest.name)
        return done == len(steps)

    def _own(self) -> None:
        """Take what must not interfere, as long as a guest is managed; give it back otherwise."""
        managing = (
            any(guest.settings.mode is Mode.AUTO for guest in self.roster) and not self._commands.paused
        )
        with self._notes.fenced("kernel NUMA balancing"):
            left = self._left_to_kernel() if managing else ()
            if left:
                self._notes.add(LEFT_TO_KERNEL.format(", ".join(left)))
            self._notes.add(*self._parts.actuator.own(managing and not left))

    def _left_to_kernel(self) -> tuple[str, ...]:
        """Return the guests for which the kernel's balancing stays at work."""
        is_known = self._parts.source.coverage.accessor_nid or self._parts.policy_name != AUTO
        if is_known or self._config.numa_balancing != "auto" or self._host is None:
            return ()
        # What an order or an undo brought to its place stays there; any guest may be moved by an order.
        if self._commands.waits_for_window or any(guest.held for guest in self.roster):
            return ()
        return left_to_kernel(self._host, [guest.view for guest in self.roster])

    def _harvest(self, guest: TrackedGuest) -> None:
        def step(topology: GuestTopology) -> None:
            self._heartbeat.beat()
            batch = self._parts.source.harvest(topology)
            self._parts.sampled(topology, batch)
            with self._readings.charged(guest):
                before = guest.pages or self._handovers.prior(guest, self._host, batch)
                guest.pages = absorbed(before, batch)
                if guest.read_since_s is None:
                    guest.read_since_s = self._clock.monotonic()
            if batch.served:
                guest.served.append(batch.served)

        self.roster.tried(guest, step)

    def _plan(self) -> PlacementPlan:
        if self._host is None or not self._decisions.allows or self.roster.are_awaited:
            return NO_PLAN
        budget_bytes = round(self._config.budget.mb_per_s * 1e6 * self._since_plan_s())
        views, stays = preferred_views(self.roster.views(self._clock.monotonic()), self._host)
        snapshot = Snapshot(
            self._host,
            views,
            budget_bytes,
            self._parts.replica_ratio,
            self._parts.huge_replicas,
            now_ns=self._clock.monotonic() * 1e9,
            window_s=self._window_ms / 1000,
        )
        if self._parts.policy_name == AUTO:
            self._notes.add(*uncounted(snapshot))
        plan = NO_PLAN
        with self._notes.fenced(f"policy {self._parts.policy_name} failed, nothing moves"):
            wanted = self._rooms.plan(snapshot, self._may_move)
            if wanted is None:
                wanted = planned(self._parts.policy, snapshot, self._blame)
            self._notes.add(*wanted.notes)
            limits = {guest.name: guest.limits(self._now_ns()) for guest in self.roster}
            plan = limited(replace(wanted, stays=(*stays, *wanted.stays)), limits)
            self.last_plan = summary(plan)
            decisions.expect(self.roster, self._host, plan)
        return plan

    def _blame(self, name: str, err: Exception) -> None:
        if guest := self.roster.get(name):
            guest.note(err)
        self._notes.add(f"guest {name} is planned for no more: {described(err)}")

    def _now_ns(self) -> int:
        return round(self._clock.monotonic() * 1e9)

    def _since_plan_s(self) -> float:
        """Return how long ago the last plan was, at least a window: the budget has grown so long."""
        now = self._clock.monotonic()
        since_s, self._planned_at = now - self._planned_at, now
        return min(max(since_s, self._window_ms / 1000), LONGEST_SAVING_S)

    def _act(self, plan: PlacementPlan) -> ActuationResult:
        self._commands.serve()
        self._listen()
        if self._commands.waits_for_window:
            self._own()
        try:
            plan = plan.only(self._may_move)
            if plan.is_empty:
                return ActuationResult()
            topologies = {guest.name: guest.topology for guest in self.roster}
            return self._parts.actuator.apply(
                plan,
                topologies,
                self._is_interrupted,
            )
        except Exception as err:
            if unexpected(err):
                LOG.error("the plan was not carried out to its end", exc_info=err)
            return ActuationResult(failures=(described(err),))
        finally:
            self._listen()

    def _judge(self, result: ActuationResult) -> None:
        """Undo what made a guest slower."""
        if made_room := self._rooms.settle(result):
            for guest in filter(None, map(self.roster.get, made_room)):
                # It was not for its own good: what it costs from now on is what later moves are held against.
                guest.trial = Trial(kept=True)
            return
        verdicts: Mapping[str, Verdict] = {}
        with self._notes.fenced("what moved is not judged"):
            verdicts = self._trials.settle(self.roster, result, self._clock.monotonic())
        for name in (name for name, verdict in verdicts.items() if verdict is Verdict.UNDO):
            with self._notes.fenced(f"guest {name} is not undone"):
                self._notes.add(*self._parts.actuator.undo(name, self._is_undo_over))

    def _is_stopping(self) -> bool:
        self._heartbeat.beat()
        return self._wakeup.stopping

    def _is_undo_over(self) -> bool:
        """Tell whether an undo has to end; it may last for minutes, in which guests begin to migrate."""
        self._listen()
        return self._is_stopping()

    def _is_interrupted(self) -> bool:
        # A migration tells of each of its rounds, for minutes: it must not hold up all other guests.
        heard = any(not self.roster.is_known(news) for news in self.inbox.news)
        return self._is_stopping() or self.inbox.waiting or heard

    def _may_move(self, name: str) -> bool:
        guest = self.roster.get(name)
        if guest is None or guest.settings.mode is Mode.MANUAL or guest.is_migrating:
            return False
        if guest.is_awaited:
            # Its policy may say hands off, which counts whoever asks.
            return False
        if self._parts.holds(guest.topology):
            return False
        if self._commands.asked_to_move(name):
            return True
        if guest.held or guest.waits_for or self._commands.paused or guest.settings.mode is not Mode.AUTO:
            return False
        return self._rooms.is_making or self._trials.may_move(guest, self._clock.monotonic())

    def _settle(self, result: ActuationResult, cpu_s: float, *, changed: bool) -> None:
        outcomes = {outcome.guest: outcome for outcome in result.outcomes}
        unix_s = self._clock.unix_s()
        for guest in self.roster:
            with self._notes.fenced(f"guest {guest.name}: its decision is not kept"):
                outcome = outcomes.get(guest.name)
                guest.spend(outcome.moved * PAGE_BYTES if outcome else 0, self._now_ns())
                decisions.remember(guest, self._status.windows + 1, unix_s, self.last_plan, outcome)
        decisions.count_refusals(self.roster, result)
        for failure in result.failures:
            self._notes.complain(failure)
        if result.pinned_vcpus:
            self._parts.discovery.look_again()
        did = result.moved_pages + result.replicated_pages + result.pinned_vcpus
        if self._decisions.allows:
            self._backoff = self._backoff.after(moved=changed or did > 0, look_s=self._interval.look_s)
        if self._decisions.allows:
            # Of all guests they may take longer than a plan, and have no other budget.
            with (
                self._notes.fenced("summaries for other hosts are not written"),
                self._decisions.charged_extra(),
            ):
                self._handovers.write_due(self.roster, self._host)
        longest_ms = max((one.longest_call_ns for one in result.outcomes), default=0) / 1e6
        cpu_ms = max((one.longest_call_cpu_ns for one in result.outcomes), default=0) / 1e6
        self._publish(
            replace(
                self._status,
                windows=self._status.windows + 1,
                rest_ms=self._backoff.rest_ms,
                moved_bytes=self._status.moved_bytes + result.moved_pages * PAGE_BYTES,
                longest_move_call_ms=max(self._status.longest_move_call_ms, longest_ms),
                longest_move_call_cpu_ms=max(self._status.longest_move_call_cpu_ms, cpu_ms),
                sampling_cpu_seconds=self._status.sampling_cpu_seconds + cpu_s,
                replicated_bytes=self._status.replicated_bytes + result.replicated_pages * PAGE_BYTES,
                harvest_seconds=self._harvest_s,
                plan_seconds=self._plan_s,
                budget_bytes_per_s=self._config.budget.mb_per_s * 10**6,
            )
        )
        if self._decisions.allows:
            self._commands.report(result_lines(result))
        self._decisions.end()

    def _publish(self, status: AgentStatus) -> None:
        if not self._decisions.allows:
            known = self.roster.names()
            guests = {name: one for name, one in status.guests.items() if name in known}
            status = replace(status, guests=guests)
        elif self._host is not None:
            copies: Mapping[str, Copies] = {}
            with self._notes.fenced("copies are not counted"):
                copies = self._parts.actuator.copies()
            with self._notes.fenced("the figures are those of an earlier window"), self._decisions.charged():
                status = published(status, self.roster, self._host, self.last_plan, copies)
        self._status = replace(status, notes=self._notes.now)

    def _rest(self, seconds: float, *, until_asked: bool) -> None:
        """Serve orders for ``seconds``; an order that needs a window ends a rest, but not a window."""
        end = self._clock.monotonic() + seconds
        while not self._wakeup.stopping and (left := end - self._clock.monotonic()) > 0:
            self._heartbeat.beat()
            longest_s = min(self._heartbeat.interval_s, self._config.window_ms / 1000)
            if self._wakeup.wait(min(left, longest_s)):
                self._commands.serve()
            self._listen()
            if until_asked and (self._commands.waits_for_window or self._is_called() or self._is_stirred()):
                return

    def _is_called(self) -> bool:
        """Return whether something was reported that the next window should follow."""
        return self._has_heard or self._wakeup.reloading or self._parts.discovery.has_news()

    def _is_stirred(self) -> bool:
        """Return whether a guest does something else than in its last window: then a rest is over."""
        with self._notes.fenced("whether guests changed is not known"):
            if self._trials.stirred(self.roster):
                self._backoff = IdleBackoff(self._config.window_ms, self._config.longest_rest_ms)
                return True
        return False

    def _held(self) -> None:
        """Follow an order to hold guests or let go of them: look again soon, and tell."""
        self._backoff = IdleBackoff(self._config.window_ms, self._config.longest_rest_ms)
        self._publish(replace(self._status, paused=self._commands.paused))
