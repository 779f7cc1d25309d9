"""Guests whose vCPUs float: the agent brings each one's together, and its memory with them.

Real vCPU threads under libvirt, a real KVM, and counters that stand in for the CPU's: what an instruction
stalls, in emulated time.  Truth: the threads' affinities, and the kernel's numa_maps.
"""

import json
from collections.abc import Iterator

import pytest

from lab import scenario_stage
from lab.channel import GuestProcess
from lab.machine import LabHost, boot_host
from lab.progress import Progress
from lab.scenario import read_scenario
from lab.scenario_prepare import prepare_stage
from tests.lab.test_agent import affinities, pages_by_nid, status, until

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(1500)]

DILATION = 100
CONFIG = f"""
window_ms = 500
longest_rest_ms = 500
[budget]
mb_per_s = 4096
[readings]
first_ms = 0
[clock]
scale = {DILATION}
[decisions]
share = 1.0
[trial]
counters = "meter"
meter_guests = {{ left = 1, right = 2 }}
"""
EVERY, NODES = "0-3", ("0-1", "2-3")
GUESTS = ("left", "right")


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    scenario = read_scenario("floating")
    stage = prepare_stage(scenario, Progress())
    with boot_host(
        stage.topology,
        meter=True,
        plugin_args={"dilation": repr(float(DILATION))},
        snapshot=stage.snapshot,
        files=stage.files,
    ) as booted:
        scenario_stage.apply_go(booted, scenario)
        booted.run("mkdir -p /etc/vmplace; vmp-meter time")
        yield booted


def tied_nodes(host: LabHost) -> list[str]:
    """Return the CPUs of each guest whose vCPUs are all on one node."""
    found = [affinities(host, name) for name in GUESTS]
    return [next(iter(one)) for one in found if one in ({NODES[0]}, {NODES[1]})]


def share_beside(host: LabHost, name: str) -> float:
    pages, (cpus,) = pages_by_nid(host, name), affinities(host, name)
    return pages.get(NODES.index(cpus), 0) / sum(pages.values())


def start(host: LabHost) -> GuestProcess:
    host.put(CONFIG.encode(), "/etc/vmplace/vmplace.toml")
    return host.spawn(["vmplace", "agent"])


def begin_job(host: LabHost, cpus: str) -> list[GuestProcess]:
    """Have somebody of whom vmplace knows nothing, and whom the scheduler prefers, want all these CPUs."""
    job = ["nice", "-n", "-15", "taskset", "-c", cpus, "sh", "-c", "while :; do :; done"]
    return [host.spawn(job) for _ in range(4)]


def test_vcpus_are_gathered_memory_follows_and_they_float_again_if_others_want_the_cores_or_by_undo(
    host: LabHost,
) -> None:
    assert [affinities(host, name) for name in GUESTS] == [{EVERY}, {EVERY}]
    agent = start(host)
    until(lambda: sorted(tied_nodes(host)) == sorted(NODES), "each guest has a node", agent, timeout_s=400)
    until(lambda: all(share_beside(host, name) > 0.8 for name in GUESTS), "memory follows", agent)
    why = json.loads(host.run("vmplace why left --json", timeout=120).stdout)
    assert any(decision["vcpus"] for decision in why["decisions"])
    until(lambda: "->kept" in agent.output(), "counters confirm it", agent, timeout_s=400)
    assert status(host)["guests"]["left"]["mode"] == "auto"
    until(lambda: agent.output().count("->kept") == len(GUESTS), "so for both", agent, timeout_s=400)
    (crowded,) = affinities(host, "left")
    job = begin_job(host, crowded)
    loosened = "guest=left gather=kept->loose"
    until(lambda: loosened in agent.output(), "its vCPUs wait for the job", agent, timeout_s=500)
    (line,) = (line for line in agent.output().splitlines() if loosened in line)
    assert "wait longer for a CPU" in line
    until(lambda: affinities(host, "left") == {EVERY}, "left floats", agent)
    for process in job:
        process.kill("KILL")
    host.run("vmplace undo", timeout=300)
    assert [affinities(host, name) for name in GUESTS] == [{EVERY}, {EVERY}]
    agent.kill("TERM")
    assert agent.wait(timeout=60) == 0
