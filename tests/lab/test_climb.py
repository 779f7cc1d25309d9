"""An agent that looks for the best proximity of a real guest's memory comes to a good one, by stall counters.

The emulated memory is narrow: node 1, on which the vCPU runs, serves hardly more than the guest asks for, and
the link to node 0 a fifth of that.  So an instruction waits about as long at any proximity from 0.5 to 1, and
twice as long at 0, where the canonical weights lead that firmware's bandwidths give.
Truth: the stall per instruction, by the meter, with the memory distributed by move_pages(2) alone.
"""

import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from lab import scenario_stage
from lab.counters_meter import MeterCounters
from lab.machine import LabHost, boot_host
from lab.progress import Progress
from lab.scenario import read_scenario
from lab.scenario_meter import FULL_SPEED
from lab.scenario_prepare import prepare_stage
from lab.topology import cpu_nids
from tests.lab.test_agent import pages_by_nid, until
from vmplace.policy.proximity import STEP

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

CONFIG = """
source = "kvm"
policy = "home"
# Shorter ones would tell of the agent, whose start takes this machine from the guest, and so queues from it.
window_ms = 3000
longest_rest_ms = 0
[budget]
mb_per_s = 4096
[trial]
counters = "meter"
meter_guests = { small = 1 }
[guests.small]
proximity = "tuned"
"""
NEAR_NID, FAR_NID = 1, 0
NARROW = {"capacity": "0.196608:0.006:0.0012:0.0012", "dilation": "10"}
"""Accesses per ns of the controllers of nodes 0 and 1, and of the links between them (meter/arguments.h)."""
FAR_WEIGHT = 1 / 3
"""The far node's canonical weight: firmware tells 12 and 6 GB/s."""
SWEPT = (0.0, 0.5, 0.75, 1.0)
NOISE = 1.15
"""Medians of some spells of a second differ by up to 6 % here."""
SETTLE_S, SPELL_S, SPELLS = 1.0, 1.0, 7
ON_FAR_NODE = ["numactl", "-N", str(FAR_NID), "-m", str(FAR_NID)]
"""What the host accesses takes its part of the narrow memory, too."""
SPREAD = "/root/spread_inside.py"


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    scenario = read_scenario("one-guest")
    stage = prepare_stage(scenario, Progress())
    files = stage.files | {SPREAD: Path(__file__).with_name("spread_inside.py")}
    with boot_host(
        stage.topology, meter=True, snapshot=stage.snapshot, files=files, plugin_args=NARROW
    ) as booted:
        near = [cpu for cpu, nid in enumerate(cpu_nids(stage.topology)) if nid == NEAR_NID]
        booted.run(["virsh", "-q", "vcpupin", "small", "0", ",".join(map(str, near)), "--live"])
        scenario_stage.ask_payloads(booted, scenario.guests, f"speed {FULL_SPEED}", 60)
        booted.run("mkdir -p /etc/vmplace")
        booted.put(CONFIG.encode(), "/etc/vmplace/vmplace.toml")
        yield booted


def cost_at(host: LabHost, proximity: float) -> float:
    """Bring the guest's memory to about this proximity; return what an instruction waits then."""
    pid = host.run("cat /run/libvirt/qemu/small.pid").stdout.strip()
    # Emulated time is for the guest: what else runs is only slowed down by it.
    host.run(["vmp-meter", "on"])
    share = str((1 - proximity) * FAR_WEIGHT)
    host.run([*ON_FAR_NODE, "python3", SPREAD, pid, str(NEAR_NID), str(FAR_NID), share])
    pages = pages_by_nid(host, "small")
    assert pages.get(FAR_NID, 0) / sum(pages.values()) == pytest.approx(
        float(share), abs=STEP * FAR_WEIGHT / 2
    )
    host.run(["vmp-meter", "time"])
    return metered_cost(host)


def metered_cost(host: LabHost) -> float:
    """Return the stall per instruction now: the median of some spells, as the host works in between."""
    time.sleep(SETTLE_S)
    with MeterCounters(host.shared_memory) as meter:
        readings = [meter.read()]
        for _ in range(SPELLS):
            time.sleep(SPELL_S)
            readings.append(meter.read())
    growths = [late.since(early) for early, late in pairwise(readings)]
    return statistics.median(
        float(growth.stall_ns[1].sum() / growth.instructions[1].sum()) for growth in growths
    )


def climbed(host: LabHost) -> str:
    """Let an agent climb until it has taken a step back, or there is none left; return what it told."""
    # In emulated time from the start: what the agent knows of the guest's cost before must be in it, too.
    host.run(["vmp-meter", "time"])
    agent = host.spawn([*ON_FAR_NODE, "vmplace", "agent"])
    try:
        # The log, not `vmplace status`: each start of a program takes the emulated host a second.
        until(
            lambda: any(end in agent.output() for end in ("back to", "no more is left")),
            "the climb is over",
            agent,
            timeout_s=400,
        )
        return agent.output()
    finally:
        host.run(["vmp-meter", "on"])
        agent.kill("TERM")
        assert agent.wait(timeout=60) == 0


def test_the_climb_ends_where_the_guest_waits_little(host: LabHost) -> None:
    costs = {proximity: cost_at(host, proximity) for proximity in SWEPT}
    # The control: what weights by bandwidth alone cost here.
    assert costs[0.0] > 1.4 * min(costs.values())
    reported = climbed(host)
    host.run(["vmp-meter", "time"])
    found = metered_cost(host)
    print(f"{costs}, found {found}\n{reported}")
    assert "proximity=1.0->0.9" in reported
    assert found < NOISE * min(costs.values())
