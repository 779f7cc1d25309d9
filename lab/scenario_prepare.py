"""Where do all managers of a scenario start from?  Host and guests are brought there once, and saved.

The snapshot is cached by all that it depends on: later runs begin there.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from lab import domain_xml, scenario_stage
from lab.build import LabArtifacts, build_all
from lab.cache import content_hash
from lab.errors import LabError, NothingJudgedError
from lab.guest_initramfs import programs_initramfs
from lab.kernel import Flavour
from lab.machine import LabHost
from lab.progress import Progress
from lab.scenario import Scenario, check_on_nodes
from lab.snapshot import prepared_snapshot
from lab.topology import LabTopology, read_topology


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


def prepare_stage(scenario: Scenario, progress: Progress, flavour: Flavour | None = None) -> Stage:
    """Build what is missing and return the scenario's start, taking the snapshot if it is absent.

    ``flavour`` is the kernel's, by default that of the environment (kernel.py).  Raises LabError for what
    cannot be built, NothingJudgedError where host and guests do not come up.
    """
    topology = read_topology(scenario.topology)
    check_on_nodes(scenario, scenario_stage.cpus_by_nid(topology))
    artifacts = build_all(progress, flavour)
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
        try:
            snapshot = take()
        except LabError as again:
            raise NothingJudgedError(again) from again
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
