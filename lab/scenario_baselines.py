"""How are the managers run that the agent is compared with?  scenario_managers.py says why so."""

import re

from lab.errors import LabError
from lab.machine import LabHost
from lab.scenario import Scenario
from lab.scenario_figures import ManagerFigures
from lab.scenario_probe import read_process_time

BALANCING = "/sys/kernel/debug/sched/numa_balancing"
SYSCTL = "/proc/sys/kernel/numa_balancing"
NO_DAEMON = "works in the context of the guests' own threads; it has no process of its own"
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


def notes_of_numad(log: str) -> tuple[str, ...]:
    """Return what numad's log says: whom it moved where, what was refused, or that it did not act."""
    moved = re.findall(r"Advising pid (\d+) .*? move from nodes \((\S+)\) to nodes \((\S+)\)", log)
    refused = len(re.findall(r"Bad sched_setaffinity", log))
    notes = [f"it moved process {pid} from nodes {old} to {new}" for pid, old, new in moved]
    notes += [f"{refused} of its changes of affinity were refused"] if refused else []
    return tuple(notes or ["it did not act"])
