"""An emulated host with two real guests, each with its memory on another node than its vCPU."""

from pathlib import Path

from lab.build import build_all
from lab.machine import LabHost
from lab.progress import Progress
from lab.scenario import parse_scenario
from lab.scenario_stage import apply_operator_pins, apply_start
from lab.snapshot import prepared_snapshot
from lab.topology import read_topology

TOPOLOGY = "n4-full"
# Guest "one" runs on node 0 with its memory on node 1, "two" on node 3 with its memory on node 2.
SCENARIO = """
name = "agent-test"
topology = "n4-full"
managers = ["vmplace"]
[[guests]]
name = "one"
start_nids = [1]
nids = [0]
memory_mib = 192
workload = { arena_mib = 64, touch = [{ vcpus = "0", ranges = ["0+64"], rate = 5, write_percent = 20 }] }
[[guests]]
name = "two"
start_nids = [2]
nids = [3]
memory_mib = 192
workload = { arena_mib = 64, touch = [{ vcpus = "0", ranges = ["0+64"], rate = 5, write_percent = 20 }] }
"""
GUESTS = parse_scenario(SCENARIO, source="agent-test")


def misplaced_guests() -> Path:
    """Return the snapshot of a host with both guests running."""
    topology, progress = read_topology(TOPOLOGY), Progress()

    def prepare(host: LabHost) -> None:
        apply_start(host, GUESTS, topology)
        apply_operator_pins(host, GUESTS, topology)

    return prepared_snapshot(
        "agent-test",
        topology,
        build_all(progress),
        progress,
        inputs={"scenario": SCENARIO},
        prepare=prepare,
    )
