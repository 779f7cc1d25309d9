"""How do the guests of a scenario get to where it begins?

1. They boot with their vCPUs pinned to the start nodes, and there touch all their memory for the first time;
   a program that runs beside the payload has done so when its guest's memory grows no more.
2. The operator pins the vCPUs to where they belong; the memory stays behind.
3. The workloads begin, and settle.  Then a snapshot is taken, from which every manager starts.
"""

import json
import time
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from lab.domain_xml import Boot, cpu_list, domain_xml
from lab.errors import RUN_AGAIN, LabError
from lab.machine import LabHost
from lab.scenario import Guest, Scenario
from lab.topology import LabTopology, cpu_nids

FILES = PurePosixPath("/usr/lib/vmplace-lab")
# /run would do, but libvirtd's restart must not lose it either.
RUN_DIR = PurePosixPath("/var/lib/vmplace-lab")
# A guest boots in some 15 s of a CPU of the machine outside; others may want that, too.
BOOT_TIMEOUT_S = 900.0
GROWN_S = 6.0
PERIOD_US = 100_000
"""Of the bandwidth that a vCPU gets: the default of Linux."""
VERIFY_TIMEOUT_S = 60
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
# Polling spares real hardware a wake-up; here it burns CPU time that other emulated CPUs need.
HALT_POLLING = "/sys/module/kvm/parameters/halt_poll_ns"


def cpus_by_nid(topology: LabTopology) -> dict[int, tuple[int, ...]]:
    """Return the CPUs of each node, also of those that have none."""
    nids = cpu_nids(topology)
    return {nid: tuple(cpu for cpu, at in enumerate(nids) if at == nid) for nid in topology.nids}


def runs_programs(scenario: Scenario) -> bool:
    """Return whether a guest runs a program beside its payload."""
    return any(guest.workload.run for guest in scenario.guests)


def boot_files(scenario: Scenario) -> Boot:
    """Return what the guests boot from: the larger initramfs only where a guest runs a program."""
    name = "programs.cpio.gz" if runs_programs(scenario) else "payload.cpio.gz"
    return Boot(FILES / "bzImage", FILES / name, RUN_DIR)


def apply_start(host: LabHost, scenario: Scenario, topology: LabTopology) -> None:
    """Start all guests on their start nodes and wait until each has touched all its memory."""
    cpus = cpus_by_nid(topology)
    host.run(f"mkdir -p {RUN_DIR} && echo madvise >{HUGE_PAGES} && echo 0 >{HALT_POLLING}")
    for guest in scenario.guests:
        host.put(domain_xml(scenario, guest, boot_files(scenario), cpus).encode(), _xml_path(guest))
    _create(host, scenario.guests)
    _wait_for_payloads(host, scenario)
    _wait_for_programs(host, tuple(guest.name for guest in scenario.guests if guest.workload.run))


def apply_operator_pins(host: LabHost, scenario: Scenario, topology: LabTopology) -> None:
    """Pin the vCPUs to where they belong, as an operator does: virsh vcpupin --live."""
    cpus = cpus_by_nid(topology)
    every = tuple(sorted(cpu for some in cpus.values() for cpu in some))
    lines = ["set -e"]
    for guest in scenario.guests:
        wanted = [every] * len(guest.start_nids) if guest.floats else [cpus[nid] for nid in guest.nids]
        lines += [
            f"virsh -q vcpupin {guest.name} {vcpu} {cpu_list(some)} --live"
            for vcpu, some in enumerate(wanted)
        ]
        pinned = {cpu for nid in guest.vcpu_nids for cpu in cpus[nid]}
        everywhere = every if guest.floats else tuple(sorted(pinned))
        if guest.cpu_percent:
            quota = f"vcpu_period={PERIOD_US} vcpu_quota={guest.cpu_percent * PERIOD_US // 100}"
            lines.append(f"virsh -q schedinfo {guest.name} --live {quota} >/dev/null")
        lines.append(f"virsh -q emulatorpin {guest.name} {cpu_list(everywhere)} --live")
    host.run("\n".join(lines), timeout=BOOT_TIMEOUT_S)


def apply_go(host: LabHost, scenario: Scenario) -> None:
    """Let the workloads begin."""
    answers = ask_payloads(host, scenario.guests, "go", 60)
    if silent := {guest.name for guest in scenario.guests} - set(answers):
        raise LabError(f"no answer from {', '.join(sorted(silent))}", hint=RUN_AGAIN)
    time.sleep(scenario.time.settle_s)


def ask_payloads(host: LabHost, guests: Iterable[Guest], command: str, timeout_s: int) -> dict[str, Any]:
    """Return each guest's answer to a command (payload/control.h); a guest that did not answer is absent.

    ``command`` may have a number (``numbered``) already: then the answer to an earlier try counts, too.
    """
    sockets = [str(RUN_DIR / f"{guest.name}.sock") for guest in guests]
    result = host.run(
        ["vmp-talk", str(timeout_s), numbered(command), *sockets], timeout=timeout_s + 30, check=False
    )
    pairs = (line.partition("\t") for line in result.stdout.splitlines())
    return {PurePosixPath(path).stem: json.loads(answer) for path, _, answer in pairs}


def numbered(command: str) -> str:
    """Return the command with a number, which only its answer repeats.

    What guests say by themselves, as when a phase ends, or say late to an earlier question, is no answer.
    """
    return command if command.startswith("@") else f"@{time.monotonic_ns()} {command}"


def _xml_path(guest: Guest) -> str:
    return str(RUN_DIR / f"{guest.name}.xml")


def _start_again(host: LabHost, guests: Iterable[Guest]) -> None:
    """Start those guests again that ended in their firmware, as one in some dozens does under emulation."""
    running = host.run(["virsh", "-q", "list", "--name"]).stdout.split()
    _create(host, [guest for guest in guests if guest.name not in running])


def _create(host: LabHost, guests: Iterable[Guest]) -> None:
    # A start keeps one emulated CPU busy for seconds; the machine outside has at least two.
    starts = ["xargs", "-r", "-P", "2", "-n", "1", "virsh", "-q", "create"]
    host.run(starts, input="\n".join(map(_xml_path, guests)), timeout=BOOT_TIMEOUT_S)


def _wait_for_payloads(host: LabHost, scenario: Scenario) -> None:
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    waiting = {guest.name: guest for guest in scenario.guests}
    question = numbered("status")
    while waiting and time.monotonic() < deadline:
        _start_again(host, waiting.values())
        for name, answer in ask_payloads(host, tuple(waiting.values()), question, 3).items():
            if answer["event"] == "error":
                hint = f"change the workload of guest {name} in the scenario"
                raise LabError(f"guest {name} cannot run its workload: {answer['message']}", hint=hint)
            del waiting[name]
    if waiting:
        name = next(iter(waiting))
        console = host.run(["tail", "-n", "5", str(RUN_DIR / f"{name}.log")], check=False).stdout
        raise LabError(
            f"guest {name} did not come up in {BOOT_TIMEOUT_S:.0f} s", hint=f"console: {console!r}"
        )


def _wait_for_programs(host: LabHost, names: tuple[str, ...]) -> None:
    """Wait until the guests' memory has not grown by a per cent for ``GROWN_S``."""
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    before = [0] * len(names)
    while names and (now := _resident_kib(host, names)) and _have_grown(before, now):
        if time.monotonic() > deadline:
            raise LabError(
                f"memory of {', '.join(names)} still grows after {BOOT_TIMEOUT_S:.0f} s",
                hint="let its program take all of its memory at once, or less of it",
            )
        before = now
        time.sleep(GROWN_S)


def _resident_kib(host: LabHost, names: tuple[str, ...]) -> list[int]:
    files = " ".join(f"/proc/$(cat /run/libvirt/qemu/{name}.pid)/status" for name in names)
    lines = host.run(f"grep -h ^VmRSS: {files}").stdout.splitlines()
    return [int(line.split()[1]) for line in lines]


def _have_grown(before: list[int], now: list[int]) -> bool:
    return any(new > old * 1.01 for old, new in zip(before, now, strict=True))
