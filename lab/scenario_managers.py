"""Who places memory in a scenario?  Each manager as its users run it.

=============  ==================================================================================
none           nobody: the control
numad          the daemon of that name, at its default interval.  It considers processes with more than
               300 MB resident and more than half a CPU of load (numad.c: MEMORY_THRESHOLD, CPU_THRESHOLD),
               one per interval, and binds all their threads and memory to the nodes it picks.  Hosts that run
               it pin nothing, so the operator's pins are taken off: libvirt's cpusets would refuse its own.
               In the first five minutes after boot it takes every process for one that it has just bound
               (MIN_DELAY_FOR_REEVALUATION counts from 0): it runs with the clock of a host up for a day.
numad-advice   what libvirt does with placement='auto': `numad -w` advises nodes from a guest's size alone,
               its vCPUs are pinned there and its memory follows.  Once, guest by guest.
kernel         automatic NUMA balancing.  A task's scan delay and first period are shortened from 1 s to
               0.1 s and a scan covers the guest's whole memory, because the lab measures seconds, not hours
               (where the kernel offers these settings: CONFIG_SCHED_DEBUG).
interleave     all memory of all guests distributed over all nodes, as numactl --interleave=all does from a
               guest's start; done by the agent of this project with the policy of that name.
vmplace-stock  the agent of this project on a kernel without its patches, as a user installs it first: with
               the kernel's balancing on, which the agent takes or leaves at work.
vmplace        the agent of this project.
=============  ==================================================================================
"""

import json
import re
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from lab.channel import GuestProcess
from lab.counters_meter import MeterCounters
from lab.errors import LabError, LabTimeoutError
from lab.kernel import Flavour
from lab.machine import LabHost
from lab.progress import log_path
from lab.scenario import ManagerName, Scenario
from lab.scenario_forecast import slowness
from lab.scenario_probe import read_process_time
from lab.topology import read_topology
from vmplace.errors import UnsupportedHostError

BALANCING = "/sys/kernel/debug/sched/numa_balancing"
SYSCTL, KEPT = "/proc/sys/kernel/numa_balancing", "/run/numa_balancing"
NO_DAEMON = "works in the context of the guests' own threads; it has no process of its own"
# The first window may move all there is to move, which takes 20 s on an idle machine, and minutes on one that
# emulates several hosts at once.
START_TIMEOUT_S, STOP_TIMEOUT_S = 600.0, 300.0
CONTROL_SOCKET = "/run/vmplace/control.sock"
# `vmplace status` would take seconds of an emulated CPU each time.
ASK_ROUNDS = """$SIG{ALRM} = sub { exit 1 }; alarm 20;
my $agent = IO::Socket::UNIX->new($ARGV[0]) or exit 1;
print $agent qq({"command": "status"}\\n); local $/; print $1 if <$agent> =~ /"windows":(\\d+)/;"""
UP_FOR_A_DAY = "unshare --time --monotonic=86400 --boottime=86400 --fork"
NUMAD_LOG = "/var/log/numad.log"
UNPIN = """last=$(($(nproc --all) - 1))
for guest in $(virsh -q list --name); do
	for vcpu in $(virsh -q vcpuinfo $guest | awk '/^VCPU:/ { print $2 }'); do
		virsh -q vcpupin $guest $vcpu 0-$last --live
	done
	virsh -q emulatorpin $guest 0-$last --live
done"""
ADVISE = """set -e
guest=$1 vcpus=$2 mib=$3
nodes=$(numad -w $vcpus:$mib)
cd /sys/devices/system/node
cpus=$(for nid in $(echo $nodes | tr , ' '); do cat node$nid/cpulist; done | paste -sd,)
for vcpu in $(seq 0 $((vcpus - 1))); do virsh -q vcpupin $guest $vcpu $cpus --live; done
migratepages $(cat /run/libvirt/qemu/$guest.pid) all $nodes
echo "$guest: nodes $nodes" """


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
    notes: tuple[str, ...] = ()

    def with_longest_call(
        self, longest_ms: float | None, why_not: str, notes: tuple[str, ...]
    ) -> "ManagerFigures":
        """Return the same with what the kernel's tracepoints say of calls, and with more notes."""
        unknown = {key: why for key, why in self.unknown.items() if key != "longest_move_call_ms"}
        if longest_ms is None:
            unknown["longest_move_call_ms"] = why_not
        all_notes = (*self.notes, *notes)
        return replace(self, longest_move_call_ms=longest_ms, unknown=unknown, notes=all_notes)


class Manager(Protocol):
    """One way of placing memory, in one emulated host.

    ``comes_to_rest``: it stops moving pages once all are placed, if guests go on as they do.
    """

    comes_to_rest: bool

    def __init__(self, host: LabHost, scenario: Scenario, speed: float = 1.0) -> None:
        """``speed``: the share of what they declare that guests do on this machine."""

    def start(self) -> None:
        """Let it act; it does when this returns."""

    def rounds(self) -> int | None:
        """Return how often it has looked at all guests and decided; None for one that does not say."""

    def figures(self) -> ManagerFigures:
        """Return its figures; it still runs."""

    def pause(self) -> None:
        """Let it do nothing until it is stopped: its clock is not that of emulated time."""

    def resume(self) -> None:
        """Let it go on."""

    def stop(self) -> None:
        """End it, also when paused; raises LabError if it had died on its own."""


class NoManager:
    """The control: nothing acts."""

    comes_to_rest = False

    def __init__(self, host: LabHost, scenario: Scenario, speed: float = 1.0) -> None:
        del host, scenario, speed

    def start(self) -> None:
        """Do nothing."""

    def rounds(self) -> int | None:
        """Return None: it decides nothing."""
        return None

    def figures(self) -> ManagerFigures:
        """Return no cost."""
        return ManagerFigures(cpu_seconds=0.0)

    def pause(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class Numad:
    """The numad daemon."""

    comes_to_rest = False

    def __init__(self, host: LabHost, scenario: Scenario, speed: float = 1.0) -> None:
        del scenario, speed
        self._host = host

    def start(self) -> None:
        """Take off the pins and start the daemon."""
        self._host.run(UNPIN, timeout=300)
        self._host.run(f"rm -f {NUMAD_LOG}; {UP_FOR_A_DAY} numad -l 6", timeout=60)

    def rounds(self) -> int | None:
        """Return None: nobody waits for its rest."""
        return None

    def figures(self) -> ManagerFigures:
        """Return the daemon's CPU time, which contains its migrate_pages(2) calls."""
        pid = self._host.run("cat /run/numad.pid", check=False).stdout.strip()
        used = read_process_time(self._host, int(pid)) if pid.isdigit() else None
        log = self._host.run(["cat", NUMAD_LOG], check=False).stdout
        if used is None:
            raise LabError("numad is not running", hint=log[-500:])
        return ManagerFigures(cpu_seconds=used.total_s, notes=notes_of_numad(log))

    def pause(self) -> None:
        """Stop the process."""
        self._host.run("kill -STOP $(cat /run/numad.pid)")

    def resume(self) -> None:
        """Let the process go on."""
        self._host.run("kill -CONT $(cat /run/numad.pid)")

    def stop(self) -> None:
        """Stop the daemon the way its manual says."""
        self._host.run("kill -CONT $(cat /run/numad.pid)", check=False)
        self._host.run("numad -i 0", check=False, timeout=60)


class NumadAdvice(NoManager):
    """numad's advice for each guest by its size, as libvirt takes it where placement is "auto"."""

    def __init__(self, host: LabHost, scenario: Scenario, speed: float = 1.0) -> None:
        del speed
        self._host, self._guests = host, scenario.guests
        self._advice: list[str] = []

    def start(self) -> None:
        """Ask for each guest, pin its vCPUs there and have its memory follow."""
        for guest in self._guests:
            sizes = [str(len(guest.vcpu_nids)), str(guest.memory_mib)]
            reported = self._host.run(["sh", "-c", ADVISE, "sh", guest.name, *sizes], timeout=300)
            self._advice.append(reported.stdout.strip())

    def figures(self) -> ManagerFigures:
        """Return the advice."""
        return ManagerFigures(notes=tuple(self._advice), unknown={"manager_cpu_seconds": "it ran once"})


class KernelBalancing:
    """Automatic NUMA balancing, which goes on moving what several nodes use."""

    comes_to_rest = False

    def __init__(self, host: LabHost, scenario: Scenario, speed: float = 1.0) -> None:
        del speed
        self._host = host
        self._scan_mib = max(guest.memory_mib for guest in scenario.guests)

    def start(self) -> None:
        """Set the scan rates and switch it on."""
        settings = {"scan_delay_ms": 100, "scan_period_min_ms": 100, "scan_size_mb": self._scan_mib}
        lines = [
            f"[ ! -d {BALANCING} ] || echo {value} >{BALANCING}/{name}" for name, value in settings.items()
        ]
        self._host.run("\n".join(["set -e", *lines, f"echo 1 >{SYSCTL}"]))

    def rounds(self) -> int | None:
        """Return None: it works as tasks fault."""
        return None

    def figures(self) -> ManagerFigures:
        """Return nothing: its cost is inside the guests' threads."""
        return ManagerFigures(unknown={"manager_cpu_seconds": NO_DAEMON})

    def pause(self) -> None:
        """Switch it off."""
        self._host.run(f"echo 0 >{SYSCTL}")

    def resume(self) -> None:
        """Switch it on."""
        self._host.run(f"echo 1 >{SYSCTL}")

    def stop(self) -> None:
        """Switch it off."""
        self.pause()


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


def notes_of_numad(log: str) -> tuple[str, ...]:
    """Return what numad's log says: whom it moved where, what was refused, or that it did not act."""
    moved = re.findall(r"Advising pid (\d+) .*? move from nodes \((\S+)\) to nodes \((\S+)\)", log)
    refused = len(re.findall(r"Bad sched_setaffinity", log))
    notes = [f"it moved process {pid} from nodes {old} to {new}" for pid, old, new in moved]
    notes += [f"{refused} of its changes of affinity were refused"] if refused else []
    return tuple(notes or ["it did not act"])


KERNEL_OF: dict[ManagerName, Flavour] = {"vmplace-stock": "stock"}
"""Managers that have a kernel of their own (kernel.py)."""

MANAGERS: dict[ManagerName, type[Manager]] = {
    "none": NoManager,
    "numad": Numad,
    "numad-advice": NumadAdvice,
    "kernel": KernelBalancing,
    "interleave": InterleavingAgent,
    "vmplace-stock": StockAgent,
    "vmplace": VmplaceAgent,
}
