"""How does the agent of this project run in a scenario: its settings, its start, its own figures?"""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.channel import GuestProcess
from lab.counters_meter import MeterCounters
from lab.errors import LabError, LabTimeoutError
from lab.machine import LabHost
from lab.progress import log_path
from lab.scenario import Scenario
from lab.scenario_baselines import SYSCTL, KernelBalancing
from lab.scenario_figures import ManagerFigures
from lab.scenario_forecast import slowness
from lab.scenario_probe import read_process_time
from lab.topology import read_topology
from vmplace.errors import UnsupportedHostError

KEPT = "/run/numa_balancing"
# The first window may move all there is to move, which takes 20 s on an idle machine, and minutes on one that
# emulates several hosts at once.
START_TIMEOUT_S, STOP_TIMEOUT_S = 600.0, 300.0
CONTROL_SOCKET = "/run/vmplace/control.sock"
# `vmplace status` would take seconds of an emulated CPU each time.
ASK_ROUNDS = """$SIG{ALRM} = sub { exit 1 }; alarm 20;
my $agent = IO::Socket::UNIX->new($ARGV[0]) or exit 1;
print $agent qq({"command": "status"}\\n); local $/; print $1 if <$agent> =~ /"windows":(\\d+)/;"""


class VmplaceAgent:
    """The vmplace agent."""

    comes_to_rest = True

    PLACE = "/etc/vmplace/scenario.toml"

    def __init__(self, host: LabHost, scenario: Scenario, speed: float = 1.0) -> None:
        self._host = host
        self._scenario = scenario
        self._speed = speed
        self._start_cpu_s: float | None = None
        self._process: GuestProcess | None = None

    def start(self) -> None:
        """Start the agent with the scenario's configuration."""
        self._host.run("mkdir -p /etc/vmplace")
        self._host.put(self._config().encode(), self.PLACE)
        self._process = self._host.spawn(["vmplace", "agent", "--config", self.PLACE])
        self._await_ready()
        used = read_process_time(self._host, self._process.pid)
        self._start_cpu_s = used.total_s if used else None

    def _config(self) -> str:
        metered = has_meter(self._host.shared_memory)
        return self._scenario.agent_config + (of_emulation(self._scenario, self._speed) if metered else "")

    def _await_ready(self) -> None:
        """Wait until the agent is up: Python takes its time to start under emulation."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            self._running()
            if not self._host.run(["test", "-S", CONTROL_SOCKET], check=False).returncode:
                return
            time.sleep(0.5)
        raise LabTimeoutError(f"the agent was not up in {START_TIMEOUT_S:.0f} s", hint=self._process_output())

    def rounds(self) -> int | None:
        """Return the windows so far, by its status; None where it has no time to answer."""
        said = self._host.run(["perl", "-MIO::Socket::UNIX", "-e", ASK_ROUNDS, CONTROL_SOCKET], check=False)
        return int(said.stdout) if said.stdout.isdecimal() else None

    def figures(self) -> ManagerFigures:
        """Return the agent's CPU time by the kernel, and its own account of moves and guests."""
        process = self._running()
        used = read_process_time(self._host, process.pid)
        # A guest without a finished window makes the exit code 3; the JSON is whole all the same.
        said = self._host.run(["vmplace", "status", "--json"], check=False, timeout=START_TIMEOUT_S)
        try:
            status = json.loads(said.stdout)
        except ValueError:
            raise LabTimeoutError("the agent tells no figures", hint=said.stderr[-500:]) from None
        figures = figures_of_status(status, used.total_s if used else None, self._start_cpu_s)
        lacking = {guest.name for guest in self._scenario.guests} - set(status["guests"])
        notes = (f"not found yet: {', '.join(sorted(lacking))}",) if lacking else ()
        return replace(figures, notes=notes)

    def pause(self) -> None:
        """Stop the process, and keep what it has said so far among the lab's logs."""
        self._running().kill("STOP")
        log_path("agent").write_text(self._process_output(None))

    def resume(self) -> None:
        """Let the process go on."""
        self._running().kill("CONT")

    def stop(self) -> None:
        """Stop the agent cleanly."""
        process = self._running()
        process.kill("TERM")
        process.kill("CONT")
        if code := process.wait(timeout=STOP_TIMEOUT_S):
            raise LabError(f"the agent ended with {code}", hint=process.output()[-2000:])

    def _process_output(self, most: int | None = 2000) -> str:
        said = self._process.output() if self._process else ""
        return said if most is None else said[-most:]

    def _running(self) -> GuestProcess:
        if self._process is None:
            raise LabError("the agent was not started")
        if self._process.poll() is not None:
            raise LabError("the agent died", hint=self._process_output())
        return self._process


class StockAgent(VmplaceAgent):
    """The agent on a stock host, whose kernel balances by default: it takes that, or leaves it at work."""

    comes_to_rest = False

    def __init__(self, host: LabHost, scenario: Scenario, speed: float = 1.0) -> None:
        super().__init__(host, scenario, speed)
        self._balancing = KernelBalancing(host, scenario, speed)

    def start(self) -> None:
        """Switch balancing on, as such hosts have it, and start the agent."""
        self._balancing.start()
        super().start()

    def pause(self) -> None:
        """Stop the process, and the balancing that it left on."""
        super().pause()
        self._host.run(f"cp {SYSCTL} {KEPT}; echo 0 >{SYSCTL}")

    def resume(self) -> None:
        """Let both go on."""
        self._host.run(f"cat {KEPT} >{SYSCTL}")
        super().resume()

    def stop(self) -> None:
        """Stop the agent cleanly, then what it gave back or left on."""
        super().stop()
        self._balancing.stop()


class InterleavingAgent(VmplaceAgent):
    """The agent with policy "interleave", as fast as it can."""

    def _config(self) -> str:
        return 'policy = "interleave"\nsource = "idle"\nwindow_ms = 500\n[budget]\nmb_per_s = 4096\n'


def has_meter(shared_memory: Path) -> bool:
    """Tell whether the emulator runs with the meter: only then there is anything that counts."""
    try:
        MeterCounters(shared_memory).close()
    except UnsupportedHostError:
        return False
    return True


def of_emulation(scenario: Scenario, speed: float) -> str:
    """Return settings of an emulated host: what counts for a PMU, how slow guests are, and so is the agent.

    ``speed``: the share of what they declare that guests do on this machine.
    """
    numbers = ", ".join(f"{guest.name} = {scenario.guest_id(guest.name)}" for guest in scenario.guests)
    scale = slowness(scenario, read_topology(scenario.topology)) / speed
    return f"""
[clock]
scale = {scale:g}

[trial]
counters = "meter"
meter_guests = {{ {numbers} }}

[decisions]
share = 1.0
"""


def figures_of_status(
    status: dict[str, Any], cpu_seconds: float | None, start_cpu_seconds: float | None
) -> ManagerFigures:
    """Return the figures that ``vmplace status --json`` tells (vmplace.agent.state.AgentStatus)."""
    reported = {name: guest["estimated_lar"] for name, guest in status["guests"].items()}
    return ManagerFigures(
        cpu_seconds=cpu_seconds,
        start_cpu_seconds=start_cpu_seconds,
        longest_move_call_ms=status["longest_move_call_ms"],
        longest_move_call_cpu_ms=status["longest_move_call_cpu_ms"],
        rss_bytes=status["rss_bytes"],
        moved_bytes_own=status["moved_bytes"],
        replica_bytes=sum(guest["replica_bytes"] for guest in status["guests"].values()),
        guest_lar={name: lar for name, lar in reported.items() if lar is not None},
    )
