"""How is a scenario run under each manager, so that the figures can be compared?

1. Host and guests are brought to the start once, and saved (cached by all that they depend on).
2. Each manager gets a host restored from that snapshot: bit by bit the same start.
3. A metered window; the manager acts until nothing moves any more; a metered window with it still there, and
   one in emulated time if the scenario has it, without the manager: its clock would run many times too fast.
4. Every guest verifies all its memory, exactly.
"""

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import vmplace
from lab import domain_xml, scenario_stage
from lab.build import LabArtifacts, build_all
from lab.cache import content_hash
from lab.errors import LabError
from lab.guest_initramfs import programs_initramfs
from lab.machine import LabHost, boot_host
from lab.progress import Progress
from lab.scenario import ManagerName, Scenario, check_on_nodes
from lab.scenario_expect import failed_expectations
from lab.scenario_judge import Observed, judged
from lab.scenario_managers import MANAGERS
from lab.scenario_meter import MeteredWindow, read_window
from lab.scenario_probe import LoadClock, read_vcpu_cpus, read_vmstat
from lab.scenario_result import ManagerResult, ScenarioResult
from lab.snapshot import prepared_snapshot
from lab.topology import LabTopology, read_topology
from vmplace.errors import VmplaceError

POLL_S = 1.0
ATTEMPTS = 2
ANSWER_TIMEOUT_S = 60
SPREAD = """last=$(($(nproc --all) - 1))
for pid in $(pidof qemu-system-x86_64); do taskset -acp 0-$last $pid; done"""


@dataclass(frozen=True)
class Stage:
    """Where managers start from: the snapshot, and what belongs to it."""

    scenario: Scenario
    topology: LabTopology
    artifacts: LabArtifacts
    snapshot: Path
    files: dict[str, Path]


def deployed_files(scenario: Scenario, artifacts: LabArtifacts, progress: Progress) -> dict[str, Path]:
    """Return what the scenario needs in the host beside the package: path there -> file here."""
    if artifacts.payload is None:
        raise LabError("the guests' payload was not built", hint="lab/payload has no Makefile")
    files = {"/usr/local/bin/vmp-talk": artifacts.payload / "vmp-talk"}
    if scenario_stage.runs_programs(scenario):
        files[str(scenario_stage.boot_files(scenario).initramfs)] = programs_initramfs(artifacts, progress)
    return files


def run_scenario(scenario: Scenario, managers: Sequence[ManagerName], progress: Progress) -> ScenarioResult:
    """Run the scenario under each manager; one that breaks is told as a failed expectation."""
    stage = prepare_stage(scenario, progress)
    results: dict[ManagerName, ManagerResult] = {}
    broken: dict[ManagerName, str] = {}
    for name in managers:
        try:
            results[name] = _judged(stage, name, progress)
        except LabError as err:
            broken[name] = f"{err} ({err.hint})" if err.hint else str(err)
            progress.note(f"{name}: {broken[name]}")
            continue
        _tell(progress, name, results[name])
    if not results:
        raise LabError("no manager came to an end", hint="; ".join(broken.values()))
    failures = [f"{name}: the run broke off: {why}" for name, why in broken.items()]
    return ScenarioResult(
        scenario=scenario.name,
        topology=scenario.topology,
        nids=stage.topology.nids,
        managers=results,
        failed_expectations=(*failures, *failed_expectations(scenario, results)),
        seed=scenario.seed,
        versions=_versions(stage),
    )


def _judged(stage: Stage, name: ManagerName, progress: Progress) -> ManagerResult:
    """Return the manager's figures; where a guest fell silent, of one more run from the same start.

    Nested guests hang now and then under emulation, also where nothing is moved.  The figures tell how many
    runs it took; a guest that falls silent again stays "not verified".
    """
    for attempt in range(1, ATTEMPTS + 1):
        started = time.monotonic()
        seen = _observe(stage, name, progress)
        silent = [guest.name for guest in stage.scenario.guests if guest.name not in seen.verified]
        if not silent or attempt == ATTEMPTS:
            break
        progress.note(f"{name}: no answer from {', '.join(silent)}: once more")
    return judged(stage.scenario, stage.topology, seen, time.monotonic() - started, attempt)


def prepare_stage(scenario: Scenario, progress: Progress) -> Stage:
    """Build what is missing and return the scenario's start, taking the snapshot if it is absent."""
    topology = read_topology(scenario.topology)
    check_on_nodes(scenario, scenario_stage.cpus_by_nid(topology))
    artifacts = build_all(progress)
    files = deployed_files(scenario, artifacts, progress)

    def prepare(host: LabHost) -> None:
        with progress.step(f"{scenario.name}: start {len(scenario.guests)} guests", host.console_log):
            scenario_stage.apply_start(host, scenario, topology)
        with progress.step(f"{scenario.name}: pin vCPUs away from the memory", host.console_log):
            scenario_stage.apply_operator_pins(host, scenario, topology)
            scenario_stage.apply_go(host, scenario)

    def take() -> Path:
        name, inputs = f"scenario-{scenario.name}", _start_inputs(scenario)
        return prepared_snapshot(
            name, topology, artifacts, progress, inputs=inputs, prepare=prepare, files=files
        )

    try:
        snapshot = take()
    except LabError as err:
        # A nested guest hangs now and then under emulation; a fresh host is the cure.
        progress.note(f"{scenario.name}: {err}: once more")
        snapshot = take()
    return Stage(scenario, topology, artifacts, snapshot, files)


def _start_inputs(scenario: Scenario) -> dict[str, str]:
    """Return what the start depends on: not what is expected, nor how long a manager gets."""
    start = {
        "guests": scenario.guests,
        "seed": scenario.seed,
        "settle_s": scenario.time.settle_s,
    }
    sources = [Path(module.__file__ or "") for module in (domain_xml, scenario_stage)]
    return {"start": msgspec.json.encode(start).decode(), "sources": content_hash(sources)}


def _observe(stage: Stage, name: ManagerName, progress: Progress) -> Observed:
    scenario, topology = stage.scenario, stage.topology
    with boot_host(
        topology,
        meter=True,
        plugin_args={} if (dilation := scenario.time.dilation) is None else {"dilation": repr(dilation)},
        snapshot=stage.snapshot,
        files=stage.files,
        artifacts=stage.artifacts,
        progress=progress,
    ) as host:
        manager = MANAGERS[name](host, scenario)
        count = len(scenario.guests)
        with progress.step(f"{name}: metered window before", host.console_log):
            before = read_window(host, topology, scenario.time.before_s, count)
        vmstat, clock = read_vmstat(host), LoadClock(host, scenario)
        with progress.step(f"{name}: starts", host.console_log):
            manager.start()
        with progress.step(f"{name}: acts", host.console_log):
            active_s = _await_rest(host, name, scenario)
        cpu_loads = clock.loads()
        with progress.step(f"{name}: metered window after", host.console_log):
            after = read_window(host, topology, scenario.time.after_s, count)
        figures, vmstat_after = manager.figures(), read_vmstat(host)
        cpus = read_vcpu_cpus(host, tuple(guest.name for guest in scenario.guests))
        emulated = None
        if scenario.time.dilation is not None:
            manager.pause()
            with progress.step(f"{name}: window in emulated time", host.console_log):
                emulated = _emulated_window(host, stage)
        manager.stop()
        with progress.step(f"{name}: guests verify all their memory", host.console_log):
            verified = _verify(host, scenario)
    return Observed(
        name, before, after, emulated, cpu_loads, (vmstat, vmstat_after), active_s, figures, cpus, verified
    )


def _emulated_window(host: LabHost, stage: Stage) -> MeteredWindow:
    """Return a window in emulated time, in which the guests work as fast as they can."""
    guests = stage.scenario.guests

    def set_speed(factor: int) -> None:
        told = scenario_stage.ask_payloads(host, guests, f"speed {factor}", ANSWER_TIMEOUT_S)
        if silent := [guest.name for guest in guests if guest.name not in told]:
            raise LabError(f"no answer from {', '.join(silent)}")

    seconds = stage.scenario.time.emulated_s
    return read_window(host, stage.topology, seconds, len(guests), set_speed)


def _await_rest(host: LabHost, name: ManagerName, scenario: Scenario) -> float | None:
    """Wait until no page has moved for a while; return the seconds to the last move, None without any.

    The control moves nothing and gets no time: its second window is the first one, repeated.
    """
    if name == "none":
        return None
    timing = scenario.time
    started = time.monotonic()
    quiet_since, moved_until = started, None
    moved = read_vmstat(host).get("pgmigrate_success")
    while (now := time.monotonic()) - started < timing.most_s:
        if now - started >= timing.least_s and now - quiet_since >= timing.quiet_s:
            break
        time.sleep(POLL_S)
        latest = read_vmstat(host).get("pgmigrate_success")
        if latest != moved:
            moved, quiet_since = latest, time.monotonic()
            moved_until = quiet_since - started
    return moved_until


def _verify(host: LabHost, scenario: Scenario) -> dict[str, Any]:
    # All is measured by now; the vCPUs that a manager packed on one node would take minutes.
    host.run(SPREAD)
    return scenario_stage.ask_payloads(host, scenario.guests, "verify", scenario_stage.VERIFY_TIMEOUT_S)


def _tell(progress: Progress, name: ManagerName, result: ManagerResult) -> None:
    ratios = ", ".join(
        f"{guest_name} {guest.lar_before:.2f}->{guest.lar_after:.2f}"
        for guest_name, guest in result.guests.items()
        if guest.lar_before is not None and guest.lar_after is not None
    )
    progress.note(f"{name}: LAR {ratios}")


def _versions(stage: Stage) -> dict[str, str]:
    artifacts = stage.artifacts
    return {
        "vmplace": vmplace.__version__,
        "python": platform.python_version(),
        "kernel": artifacts.kernel.parent.name,
        "root_file_system": artifacts.rootfs_image.parent.name,
        "toolbox": artifacts.toolbox.parent.name,
        "snapshot": stage.snapshot.name,
        "emulator": "QEMU of the toolbox, TCG with one thread per CPU",
    }


def check_managers(names: Sequence[str]) -> tuple[ManagerName, ...]:
    """Return the names as managers; raises VmplaceError for one that does not exist."""
    for name in names:
        if name not in MANAGERS:
            raise VmplaceError(f"no manager '{name}'", hint=f"known: {', '.join(MANAGERS)}")
    return tuple(name for name in MANAGERS if name in names)
