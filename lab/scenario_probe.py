"""What does the emulated host's kernel say about guests and moves?  One look is one command inside.

Truth for all managers alike: nothing here comes from the manager that is judged.
"""

import re
import time
from dataclasses import dataclass

from lab.machine import LabHost
from lab.scenario import Scenario
from lab.scenario_calls import COPIED, TRACING
from vmplace.topology.guest import PAGE_BYTES

VMSTAT = (
    "pgmigrate_success",
    "pgmigrate_fail",
    "numa_pte_updates",
    "numa_hint_faults",
    "numa_pages_migrated",
)
CLOCK_TICKS_PER_S = 100
"""USER_HZ: the unit of times in /proc/PID/stat on x86."""

_STAT = re.compile(r"(\d+) \((.*)\) (.*)")
_VCPU = re.compile(r"CPU (\d+)/KVM")

# Words after the ")" of /proc/PID/stat start with field 3.
_UTIME, _STIME, _PROCESSOR = 14 - 3, 15 - 3, 39 - 3


@dataclass(frozen=True)
class ProcessTime:
    """CPU time of a process and its threads, in seconds of the emulated host."""

    user_s: float
    system_s: float

    @property
    def total_s(self) -> float:
        """Return both together."""
        return self.user_s + self.system_s


def read_vmstat(host: LabHost) -> dict[str, int]:
    """Return the counters of page moves and NUMA balancing since the host's boot."""
    return parse_vmstat(host.run(["cat", "/proc/vmstat"]).stdout)


def read_progress(host: LabHost) -> tuple[int, ...]:
    """Return the pages moved since the host's boot, and how often KVM made or dropped copies of a page."""
    return tuple(int(word) for word in host.run(progress_command()).stdout.split())


def progress_command(tracing: str = TRACING) -> str:
    """Return the shell's words for it: statistics of a placement fd are for its owner, events for all."""
    return f"""awk '/^pgmigrate_success/ {{ print $2 }}' /proc/vmstat
cat {tracing}/{COPIED}/per_cpu/cpu*/stats 2>/dev/null |
awk '/^(entries|overrun):/ {{ events += $2 }} END {{ print events + 0 }}'"""


def parse_vmstat(text: str) -> dict[str, int]:
    """Return what /proc/vmstat says about VMSTAT's names; absent ones are absent."""
    pairs = (line.split() for line in text.splitlines())
    return {name: int(value) for name, value in pairs if name in VMSTAT}


def moved_bytes(before: dict[str, int], after: dict[str, int]) -> int | None:
    """Return the bytes that the kernel moved between two looks: pgmigrate_success counts 4 KiB pages."""
    try:
        return (after["pgmigrate_success"] - before["pgmigrate_success"]) * PAGE_BYTES
    except KeyError:
        return None


VERSIONS = """echo "host_kernel $(uname -rv)"
for package in libvirt-daemon qemu-system-x86 numad; do
	echo "host_$package $(dpkg-query -W -f '${Version}' $package)"
done"""


def read_versions(host: LabHost) -> dict[str, str]:
    """Return the exact versions of what runs in the emulated host, and of the emulator."""
    lines = host.run(VERSIONS).stdout.splitlines()
    reported = {name: version for name, _, version in (line.partition(" ") for line in lines)}
    emulator = host.qmp("query-version")
    numbers = emulator["qemu"]
    reported["emulator_qemu"] = (
        f"{numbers['major']}.{numbers['minor']}.{numbers['micro']}{emulator['package']}"
    )
    return reported


def read_process_time(host: LabHost, pid: int) -> ProcessTime | None:
    """Return a process's CPU time so far, or None when it is gone."""
    result = host.run(["cat", f"/proc/{pid}/stat"], check=False)
    return parse_process_time(result.stdout) if result.returncode == 0 else None


def parse_process_time(stat: str) -> ProcessTime:
    """Return the times of a line of /proc/PID/stat."""
    match = _STAT.match(stat)
    if not match:
        raise ValueError(f"not a line of /proc/PID/stat: {stat!r}")
    words = match[3].split()
    return ProcessTime(int(words[_UTIME]) / CLOCK_TICKS_PER_S, int(words[_STIME]) / CLOCK_TICKS_PER_S)


class LoadClock:
    """How many CPUs do the guests use, from now until somebody asks?"""

    def __init__(self, host: LabHost, scenario: Scenario) -> None:
        self._host, self._names = host, tuple(guest.name for guest in scenario.guests)
        self._began, self._used = time.monotonic(), self._cpu_seconds()

    def loads(self) -> dict[str, float]:
        """Return CPUs by guest; of the last second and less it would say nothing, and is empty."""
        passed = time.monotonic() - self._began
        if passed < 1.0:
            return {}
        now = self._cpu_seconds()
        return {name: (now[name] - used) / passed for name, used in self._used.items() if name in now}

    def _cpu_seconds(self) -> dict[str, float]:
        script = (
            'for guest in "$@"; do echo "$guest $(cat /proc/$(cat /run/libvirt/qemu/$guest.pid)/stat)"; done'
        )
        lines = self._host.run(["sh", "-c", script, "sh", *self._names]).stdout.splitlines()
        reported = (line.partition(" ") for line in lines)
        return {name: parse_process_time(stat).total_s for name, _, stat in reported if stat}


def read_vcpu_cpus(host: LabHost, guest_names: tuple[str, ...]) -> dict[str, dict[int, int]]:
    """Return the CPU on which each vCPU of each guest ran last; a guest that is gone has none."""
    script = (
        'for guest in "$@"; do echo "guest $guest"; '
        "cat /proc/$(cat /run/libvirt/qemu/$guest.pid)/task/*/stat 2>/dev/null; done; true"
    )
    return parse_vcpu_cpus(host.run(["sh", "-c", script, "sh", *guest_names]).stdout)


def parse_vcpu_cpus(text: str) -> dict[str, dict[int, int]]:
    """Parse lines "guest NAME", each followed by the stat lines of its threads."""
    cpus: dict[str, dict[int, int]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("guest "):
            name = line.removeprefix("guest ")
            cpus[name] = {}
        elif (stat := _STAT.match(line)) and (vcpu := _VCPU.fullmatch(stat[2])):
            cpus[name][int(vcpu[1])] = int(stat[3].split()[_PROCESSOR])
    return cpus
