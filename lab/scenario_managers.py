"""Who places memory in a scenario?  Each manager as its users run it, set to act as fast as it can.

=============  ==================================================================================
none           nobody: the control
numad          the daemon of that name, with its shortest interval.  It considers processes with more than
               300 MB resident and more than half a CPU of load (numad.c: MEMORY_THRESHOLD, CPU_THRESHOLD),
               one per interval, and binds all their threads and memory to the nodes it picks.  In the first
               five minutes after boot it takes every process for one that it has just bound
               (MIN_DELAY_FOR_REEVALUATION counts from 0): it runs with the clock of a host up for a day.
kernel         automatic NUMA balancing.  A task's scan delay and first period are shortened from 1 s to
               0.1 s and a scan covers the guest's whole memory, because the lab measures seconds, not hours
               (where the kernel offers these settings: CONFIG_SCHED_DEBUG).
interleave     all memory of all guests dealt out over all nodes, as numactl --interleave=all does from a
               guest's start; done by the agent of this project with the policy of that name.
vmplace-nodes  the agent of this project with policy "nodes" in place of the scenario's: each guest by itself.
vmplace        the agent of this project.
=============  ==================================================================================
"""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from lab.channel import GuestProcess
from lab.errors import LabError
from lab.machine import LabHost
from lab.scenario import ManagerName, Scenario
from lab.scenario_probe import read_process_time

BALANCING = "/sys/kernel/debug/sched/numa_balancing"
NO_DAEMON = "works in the context of the guests' own threads; it has no process of its own"
# The first window may move all there is to move, which takes 20 s on an idle machine, and minutes on one that
# emulates several hosts at once.
START_TIMEOUT_S, STOP_TIMEOUT_S = 600.0, 300.0
CONTROL_SOCKET = "/run/vmplace/control.sock"
UP_FOR_A_DAY = "unshare --time --monotonic=86400 --boottime=86400 --fork"
NOT_TOLD = "the manager does not say, and outside it cannot be told from the guests' own time"


@dataclass(frozen=True)
class ManagerFigures:
    """What a manager cost and what it says of itself; None with a reason in ``unknown``.

    ``replica_bytes``: what copies of the guests' pages take; only the agent makes any.
    """

    cpu_seconds: float | None = None
    start_cpu_seconds: float | None = None
    longest_move_call_ms: float | None = None
    longest_move_call_cpu_ms: float | None = None
    rss_bytes: int | None = None
    moved_bytes_own: int | None = None
    replica_bytes: int = 0
    guest_lar: dict[str, float] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


class Manager(Protocol):
    """One way of placing memory, in one emulated host."""

    def start(self) -> None:
        """Let it act."""

    def figures(self) -> ManagerFigures:
        """Return its figures; it still runs."""

    def pause(self) -> None:
        """Let it do nothing until it is stopped: its clock is not that of emulated time."""

    def stop(self) -> None:
        """End it, also when paused; raises LabError if it had died on its own."""


class NoManager:
    """The control: nothing acts."""

    def __init__(self, host: LabHost, scenario: Scenario) -> None:
        del host, scenario

    def start(self) -> None:
        """Do nothing."""

    def figures(self) -> ManagerFigures:
        """Return no cost."""
        return ManagerFigures(cpu_seconds=0.0, unknown={"longest_move_call_ms": "nothing is moved"})

    def pause(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class Numad:
    """The numad daemon."""

    def __init__(self, host: LabHost, scenario: Scenario) -> None:
        del scenario
        self._host = host

    def start(self) -> None:
        """Start the daemon with intervals of one to two seconds (its default: 5 to 15)."""
        self._host.run(f"rm -f /var/log/numad.log; {UP_FOR_A_DAY} numad -i 1:2 -l 6", timeout=60)

    def figures(self) -> ManagerFigures:
        """Return the daemon's CPU time, which contains its migrate_pages(2) calls."""
        pid = self._host.run("cat /run/numad.pid", check=False).stdout.strip()
        used = read_process_time(self._host, int(pid)) if pid.isdigit() else None
        if used is None:
            log = self._host.run("tail -5 /var/log/numad.log", check=False).stdout
            raise LabError("numad is not running", hint=log)
        return ManagerFigures(cpu_seconds=used.total_s, unknown={"longest_move_call_ms": NOT_TOLD})

    def pause(self) -> None:
        """Stop the process."""
        self._host.run("kill -STOP $(cat /run/numad.pid)")

    def stop(self) -> None:
        """Stop the daemon the way its manual says."""
        self._host.run("kill -CONT $(cat /run/numad.pid)", check=False)
        self._host.run("numad -i 0", check=False, timeout=60)


class KernelBalancing:
    """Automatic NUMA balancing."""

    def __init__(self, host: LabHost, scenario: Scenario) -> None:
        self._host = host
        self._scan_mib = max(guest.memory_mib for guest in scenario.guests)

    def start(self) -> None:
        """Set the scan rates and switch it on."""
        settings = {"scan_delay_ms": 100, "scan_period_min_ms": 100, "scan_size_mb": self._scan_mib}
        lines = [
            f"[ ! -d {BALANCING} ] || echo {value} >{BALANCING}/{name}" for name, value in settings.items()
        ]
        self._host.run("\n".join(["set -e", *lines, "echo 1 >/proc/sys/kernel/numa_balancing"]))

    def figures(self) -> ManagerFigures:
        """Return nothing: its cost is inside the guests' threads."""
        return ManagerFigures(unknown={"manager_cpu_seconds": NO_DAEMON, "longest_move_call_ms": NO_DAEMON})

    def pause(self) -> None:
        """Switch it off."""
        self._host.run("echo 0 >/proc/sys/kernel/numa_balancing")

    def stop(self) -> None:
        """Switch it off."""
        self.pause()


class VmplaceAgent:
    """The vmplace agent."""

    PLACE = "/etc/vmplace/scenario.toml"

    def __init__(self, host: LabHost, scenario: Scenario) -> None:
        self._host = host
        self._scenario = scenario
        self._start_cpu_s: float | None = None
        self._process: GuestProcess | None = None

    def start(self) -> None:
        """Start the agent with the scenario's configuration."""
        self._host.run("mkdir -p /etc/vmplace")
        self._host.put(self._config().encode(), self.PLACE)
        self._process = self._host.spawn(["vmplace", "agent", "--config", self.PLACE])
        self._await_guests(len(self._scenario.guests))
        used = read_process_time(self._host, self._process.pid)
        self._start_cpu_s = used.total_s if used else None

    def _config(self) -> str:
        return self._scenario.agent_config

    def _await_guests(self, count: int) -> None:
        """Wait until the agent has found all guests: Python takes its time to start under emulation."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            self._running()
            # Another Python that starts takes the CPU that the agent needs: ask only who can answer.
            result = self._host.run(f"test -S {CONTROL_SOCKET} && vmplace status --json", check=False)
            if result.stdout and len(json.loads(result.stdout)["guests"]) >= count:
                return
            time.sleep(2)
        raise LabError(
            f"the agent found no {count} guests in {START_TIMEOUT_S:.0f} s", hint=self._process_output()
        )

    def figures(self) -> ManagerFigures:
        """Return the agent's CPU time by the kernel, and its own account of moves and guests."""
        process = self._running()
        used = read_process_time(self._host, process.pid)
        # A guest without a finished window makes the exit code 3; the JSON is whole all the same.
        status = json.loads(self._host.run(["vmplace", "status", "--json"], check=False).stdout)
        return figures_of_status(status, used.total_s if used else None, self._start_cpu_s)

    def pause(self) -> None:
        """Stop the process."""
        self._running().kill("STOP")

    def stop(self) -> None:
        """Stop the agent cleanly."""
        process = self._running()
        process.kill("TERM")
        process.kill("CONT")
        if code := process.wait(timeout=STOP_TIMEOUT_S):
            raise LabError(f"the agent ended with {code}", hint=process.output()[-2000:])

    def _process_output(self) -> str:
        return self._process.output()[-2000:] if self._process else ""

    def _running(self) -> GuestProcess:
        if self._process is None:
            raise LabError("the agent was not started")
        if self._process.poll() is not None:
            raise LabError("the agent died", hint=self._process_output())
        return self._process


class InterleavingAgent(VmplaceAgent):
    """The agent with policy "interleave", as fast as it can."""

    def _config(self) -> str:
        return 'policy = "interleave"\nsource = "idle"\nwindow_ms = 500\n[budget]\nmb_per_s = 4096\n'


class GuestByGuestAgent(VmplaceAgent):
    """The agent as the scenario has it, but with policy "nodes"."""

    def _config(self) -> str:
        return 'policy = "nodes"\n' + re.sub(r"(?m)^policy\s*=.*$", "", super()._config())


def figures_of_status(
    status: dict[str, Any], cpu_seconds: float | None, start_cpu_seconds: float | None
) -> ManagerFigures:
    """Return the figures that ``vmplace status --json`` tells (vmplace.agent.state.AgentStatus)."""
    told = {name: guest["estimated_lar"] for name, guest in status["guests"].items()}
    return ManagerFigures(
        cpu_seconds=cpu_seconds,
        start_cpu_seconds=start_cpu_seconds,
        longest_move_call_ms=status["longest_move_call_ms"],
        longest_move_call_cpu_ms=status["longest_move_call_cpu_ms"],
        rss_bytes=status["rss_bytes"],
        moved_bytes_own=status["moved_bytes"],
        replica_bytes=sum(guest["replica_bytes"] for guest in status["guests"].values()),
        guest_lar={name: lar for name, lar in told.items() if lar is not None},
    )


MANAGERS: dict[ManagerName, Callable[[LabHost, Scenario], Manager]] = {
    "none": NoManager,
    "numad": Numad,
    "kernel": KernelBalancing,
    "interleave": InterleavingAgent,
    "vmplace-nodes": GuestByGuestAgent,
    "vmplace": VmplaceAgent,
}
