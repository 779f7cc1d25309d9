"""What is seen of one manager's run, from the start that all have in common to the last byte verified?

1. Guests work at the speed of this machine.  Three metered windows before, once for all managers.
2. The manager is let act from when it is ready, until nothing moves any more; nobody gets less time than
   ``least_s``, and the control as much as the longest of the others.
3. It is paused: where memory lies is judged without it.  Three metered windows, and three in emulated time.
4. It runs again, in turns with being paused: what it costs.
   Before and after, where there are copies, every guest verifies all its memory on each vCPU: each reads
   those of its node.
5. It is stopped, and every guest verifies all its memory, exactly.

Memory is looked at, too, where the machine turns out to be too slow for the rest.
"""

import contextlib
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from lab.errors import (
    RUN_AGAIN,
    LabError,
    LabTimeoutError,
    LostMemoryError,
    NothingJudgedError,
    TooSlowError,
)
from lab.machine import LabHost, boot_host
from lab.machine_share import MachineTimes, machine_share, read_machine_times
from lab.progress import Progress
from lab.scenario import ManagerName
from lab.scenario_ask import ask_all, ask_patiently
from lab.scenario_baselines import NoManager
from lab.scenario_blame import killed_for, too_slow_for, whose_doing
from lab.scenario_calls import longest_call_ms, start_tracing
from lab.scenario_cost import Cost, measured_cost
from lab.scenario_judge import Observed, is_intact
from lab.scenario_managers import MANAGERS, Manager
from lab.scenario_meter import FULL_SPEED, RETAKES, WindowSet, read_emulated_windows, read_windows
from lab.scenario_prepare import Stage
from lab.scenario_probe import LoadClock, read_progress, read_vcpu_cpus, read_versions, read_vmstat
from lab.scenario_rest import Acting
from lab.scenario_result import (
    ACTS,
    COST_TURNS,
    EMULATED_WINDOW,
    VERIFIED,
    VERIFIED_COPIES,
    WINDOWS_AFTER,
    WINDOWS_BEFORE,
)
from lab.scenario_speed import LEAST_SPEED, WorkClock, declared_rates, measured_speed
from lab.scenario_stage import VERIFY_TIMEOUT_S
from vmplace.errors import VmplaceError

POLL_S = 1.0
FEW = 0.005
"""Of the guests' memory: less than that moved or copied for a while is rest."""
PAGES_PER_MIB = 256
SPREAD = """last=$(($(nproc --all) - 1))
for pid in $(pidof qemu-system-x86_64); do taskset -acp 0-$last $pid; done"""


@dataclass
class SharedStart:
    """What the first manager's run finds out for all: they start from the same snapshot.

    ``longest_s``: the longest time that a manager was let act so far; the control gets it, too.
    ``speed`` is what guests are to make of their declared touches; ``shares`` and ``step_s`` are of the steps
    that all have in common.
    """

    speed: float | None = None
    shares: dict[str, float] = field(default_factory=dict)
    step_s: dict[str, float] = field(default_factory=dict)
    before: WindowSet | None = None
    longest_s: float = 0.0


def observe(stage: Stage, name: ManagerName, start: SharedStart, progress: Progress) -> Observed:
    """Run one manager and return what was seen; raises LabError, TooSlowError where nothing can be said."""
    run: _Run | None = None
    dilation = stage.scenario.time.dilation
    try:
        with boot_host(
            stage.topology,
            meter=True,
            plugin_args={} if dilation is None else {"dilation": repr(dilation)},
            snapshot=stage.snapshot,
            files=stage.files,
            artifacts=stage.artifacts,
            progress=progress,
        ) as host:
            run = _Run(stage, name, start, progress, host)
            return run.observed_or_lost()
    except (TooSlowError, LostMemoryError):
        raise
    except LabError as err:
        if run is not None and run.is_judged:
            raise
        raise NothingJudgedError(err) from err


class _Run:
    """One manager in one host."""

    def __init__(
        self, stage: Stage, name: ManagerName, start: SharedStart, progress: Progress, host: LabHost
    ) -> None:
        self._stage, self._scenario, self._host = stage, stage.scenario, host
        self._name, self._start, self._progress = name, start, progress
        self._manager: Manager = NoManager(host, stage.scenario)
        self._shares, self._step_s = dict(start.shares), dict(start.step_s)
        self._is_managed = False
        self._since = self._machine_times()
        self._rates: dict[int, float] = {}
        self._notes: list[str] = []

    @property
    def is_judged(self) -> bool:
        """Tell whether there is a manager that what goes wrong now may be of."""
        return self._is_managed and self._name != "none"

    def observed_or_lost(self) -> Observed:
        """Go through all steps; memory is looked at, too, where the machine was too slow for that."""
        try:
            return self.observed()
        except VmplaceError as err:
            raise self._explained(err) from err

    def _explained(self, err: VmplaceError) -> VmplaceError:
        """Return why a step failed: the machine, somebody who ended the emulator, or what the step says."""
        if killed := killed_for(err, self._host):
            return killed
        if isinstance(err, LabTimeoutError):
            return self._unless_memory_is_lost(too_slow_for(err, self.share()))
        if isinstance(err, TooSlowError):
            return self._unless_memory_is_lost(err)
        return err if isinstance(err, LabError) else LabError(str(err), hint=err.hint)

    def observed(self) -> Observed:
        """Go through all steps."""
        host, scenario = self._host, self._scenario
        self._settle_speed()
        before = self._windows_before()
        manager = self._manager = MANAGERS[self._name](host, scenario, self._start.speed or 1.0)
        vmstat, clock = read_vmstat(host), LoadClock(host, scenario)
        start_tracing(host)
        self._is_managed = True
        with self._step("starts"):
            manager.start()
        with self._step(ACTS):
            try:
                acting = self._acting()
            finally:
                manager.pause()
        self._notes += acting.notes(self._name)
        cpu_loads, (longest_ms, why_not), vmstat_after = (
            clock.loads(),
            longest_call_ms(host),
            read_vmstat(host),
        )
        after = self._windows(WINDOWS_AFTER, scenario.time.after_s)
        cpus = read_vcpu_cpus(host, tuple(guest.name for guest in scenario.guests))
        emulated = self._emulated_windows()
        have_answered = set(self._verify_copies())
        manager.resume()
        figures, cost = manager.figures(), self._cost()
        versions = read_versions(host) | {"kernel": self._stage.artifacts.kernel.parent.name}
        # Stopped as it is: it makes no more copies.
        manager.pause()
        have_answered &= set(self._verify_copies())
        if figures.replica_bytes and VERIFIED_COPIES not in self._step_s:
            raise LabError(f"{self._name} made copies that the lab did not see", hint="see scenario_calls.py")
        manager.stop()
        verified = self._verified_by(have_answered)
        return Observed(
            manager=self._name,
            before=before,
            after=after,
            emulated=emulated,
            cpu_loads=cpu_loads,
            vmstat=(vmstat, vmstat_after),
            active_s=acting.moved_until_s,
            figures=figures.with_longest_call(longest_ms, why_not, tuple(self._notes)),
            vcpu_cpus=cpus,
            verified=verified,
            rates=declared_rates(scenario),
            speed=self._start.speed,
            cost=cost,
            shares=self._shares,
            step_s=self._step_s,
            versions=versions,
        )

    @contextlib.contextmanager
    def _step(self, what: str) -> Iterator[None]:
        with self._progress.step(f"{self._name}: {what}", self._host.console_log):
            self._since, began = self._machine_times(), time.monotonic()
            try:
                yield
            except TooSlowError as err:
                if not self._is_managed:
                    raise
                raise whose_doing(err, self._name, self.share()) from err
            # A step may be taken twice.
            self._shares[what] = min(self.share(), self._shares.get(what, 1.0))
            self._step_s[what] = round(time.monotonic() - began + self._step_s.get(what, 0.0), 3)

    def share(self) -> float:
        """Return what others left of the machine since the last step began."""
        return machine_share(self._since, self._machine_times())

    def _machine_times(self) -> MachineTimes:
        return read_machine_times(self._host.emulator_pid)

    def _settle_speed(self) -> None:
        """Let the guests work at the speed that the first run found."""
        declared = declared_rates(self._scenario)
        if declared and self._start.speed is None:
            with self._step("what guests can do on this machine"):
                self._start.speed = measured_speed(self._host, declared, self._set_speed)
            self._progress.note(f"guests work at {self._start.speed:.0%} of what they declare")
        elif declared and self._start.speed != 1.0:
            self._set_speed(self._start.speed or 1.0)
        self._rates = {guest: rate * (self._start.speed or 1.0) for guest, rate in declared.items()}

    def _windows_before(self) -> WindowSet:
        """Return the windows before any manager acts, the first run's for all."""
        start = self._start
        if start.before is None:
            start.before = self._windows(WINDOWS_BEFORE, self._scenario.time.before_s)
            start.shares, start.step_s = dict(self._shares), dict(self._step_s)
            return start.before
        # Windows that were taken again count once.
        return replace(start.before, retakes=0)

    def _windows(self, what: str, seconds: float) -> WindowSet:
        """Return windows at the speed that the machine allows now: it may do other things than at first."""
        count = len(self._scenario.guests)
        retakes = 0
        with self._step(what):
            while True:
                try:
                    found = read_windows(self._host, self._stage.topology, seconds, count, self._rates)
                    return replace(found, retakes=retakes + found.retakes)
                except TooSlowError:
                    retakes += RETAKES + 1
                    slower = (self._start.speed or 1.0) / 2
                    if slower < LEAST_SPEED:
                        raise
                    self._change_speed(slower)

    def _change_speed(self, speed: float) -> None:
        self._progress.note(f"guests work at {speed:.0%} of what they declare")
        self._start.speed = speed
        self._set_speed(speed)
        self._rates = {guest: rate * speed for guest, rate in declared_rates(self._scenario).items()}

    def _set_speed(self, factor: float) -> None:
        ask_all(self._host, self._scenario.guests, f"speed {factor:g}")

    def _emulated_windows(self) -> WindowSet | None:
        """Return windows in emulated time, in which the guests work as fast as they can."""
        if self._scenario.time.dilation is None:
            return None
        with self._step(EMULATED_WINDOW):
            return read_emulated_windows(
                self._host,
                self._stage.topology,
                self._scenario.time.emulated_s,
                len(self._scenario.guests),
                lambda speed: self._set_speed(speed if speed > 1 else self._start.speed or 1.0),
            )

    def _cost(self) -> Cost:
        """Return the share of the guests' work that the manager costs when all is placed."""
        seconds = self._scenario.time.cost_s
        if not seconds or not self._rates or self._name == "none":
            return Cost()
        with self._step(COST_TURNS):
            self._set_speed(FULL_SPEED)
            cost = measured_cost(self._host, self._manager, seconds, self._rates)
            self._set_speed(self._start.speed or 1.0)
            return cost

    def _acting(self) -> Acting:
        """Let the manager act until it is at rest or has had its time; return what was seen of it."""
        few = int(FEW * sum(guest.memory_mib for guest in self._scenario.guests) * PAGES_PER_MIB)
        acting = Acting(
            self._scenario.time,
            read_progress(self._host),
            few,
            rests=self._manager.comes_to_rest,
            longest_s=self._start.longest_s,
            speed=self._start.speed or 1.0,
        )
        times, now = self._machine_times(), time.monotonic()
        clock = WorkClock(self._host, self._rates)
        while not self._is_over(acting):
            time.sleep(POLL_S)
            before, then = times, now
            times, now = self._machine_times(), time.monotonic()
            acting.look(
                now - then,
                machine_share(before, times),
                read_progress(self._host),
                work_s=clock.passed_s(),
                rounds=self._manager.rounds(),
            )
        self._start.longest_s = max(self._start.longest_s, acting.passed_s)
        self._progress.note(f"{self._name}: acted {acting.summary}")
        return acting

    def _is_over(self, acting: Acting) -> bool:
        if self._name == "none" and self._start.longest_s:
            return acting.passed_s >= self._start.longest_s
        return acting.is_over

    def _unless_memory_is_lost(self, err: LabError) -> LabError:
        """Return the error itself, or, if a guest lost memory or hangs, that: on any machine."""
        if not self._is_managed or not isinstance(err, TooSlowError):
            return err
        try:
            verified = self._verify()
        except LabError:
            return err
        if lost := sorted(name for name, one in verified.items() if not is_intact(one)):
            return LostMemoryError(f"{', '.join(lost)} lost memory under {self._name}", hint=str(err))
        if silent := [one.name for one in self._scenario.guests if one.name not in verified]:
            return LabError(f"{', '.join(silent)} fell silent under {self._name}", hint=str(err))
        return err

    def _verify_copies(self) -> Collection[str]:
        """Return the guests that verified all while there may be copies, or all where there never were any.

        What they found counts on: the answer of a later look has it, too.
        """
        every = [guest.name for guest in self._scenario.guests]
        if read_progress(self._host)[1:] in ((), (0,)):
            return every
        with self._step(VERIFIED_COPIES):
            return ask_patiently(self._host, self._scenario.guests, "verify", VERIFY_TIMEOUT_S)

    def _verified_by(self, have_answered: Collection[str]) -> dict[str, Any]:
        """Return what guests find at the end that have answered so far.

        Raises LabError for those that did not where no manager acts: the lab is why.
        """
        with self._step(VERIFIED):
            verified = {name: one for name, one in self._verify().items() if name in have_answered}
        silent = [one.name for one in self._scenario.guests if one.name not in verified]
        if silent and not self.is_judged:
            raise LabError(f"{', '.join(silent)} fell silent", hint=RUN_AGAIN)
        return verified

    def _verify(self) -> dict[str, Any]:
        # All is measured by now; the vCPUs that a manager packed on one node would take minutes.
        self._host.run(SPREAD)
        return ask_patiently(self._host, self._scenario.guests, "verify", VERIFY_TIMEOUT_S)
