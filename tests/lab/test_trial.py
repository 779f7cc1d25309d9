"""A placement that makes a real guest slower is undone, by stall counters in emulated time.

The guest runs beside its memory; the policy is to interleave that over both nodes.  Truth: the kernel's
numa_maps.
"""

from collections.abc import Iterator

import pytest

from lab.channel import GuestProcess
from lab.machine import LabHost, boot_host
from lab.progress import Progress
from lab.scenario import read_scenario
from lab.scenario_prepare import prepare_stage
from lab.topology import cpu_nids
from tests.lab.test_agent import pages_by_nid, status, until

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]

CONFIG = """
policy = "interleave"
source = "idle"
window_ms = 500
longest_rest_ms = 500
[budget]
mb_per_s = 4096
[trial]
counters = "{counters}"
meter_guests = {{ small = 1 }}
"""
MEMORY_NID, AWAY_NID = 1, 0


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    stage = prepare_stage(read_scenario("one-guest"), Progress())
    with boot_host(stage.topology, meter=True, snapshot=stage.snapshot, files=stage.files) as booted:
        near = [cpu for cpu, nid in enumerate(cpu_nids(stage.topology)) if nid == MEMORY_NID]
        booted.run(["virsh", "-q", "vcpupin", "small", "0", ",".join(map(str, near)), "--live"])
        booted.run("mkdir -p /etc/vmplace; vmp-meter time")
        yield booted


def share_away(host: LabHost) -> float:
    pages = pages_by_nid(host, "small")
    return pages.get(AWAY_NID, 0) / sum(pages.values())


def start(host: LabHost, counters: str) -> GuestProcess:
    host.put(CONFIG.format(counters=counters).encode(), "/etc/vmplace/vmplace.toml")
    return host.spawn(["vmplace", "agent"])


def stop(agent: GuestProcess) -> None:
    agent.kill("TERM")
    assert agent.wait(timeout=60) == 0


def test_what_made_the_guest_slower_is_undone_where_counters_tell(host: LabHost) -> None:
    agent = start(host, "off")
    until(lambda: share_away(host) > 0.4, "interleaved without counters", agent)
    stop(agent)
    host.run(["vmplace", "undo"])
    assert share_away(host) < 0.1

    agent = start(host, "meter")
    until(lambda: share_away(host) > 0.4, "interleaved with counters", agent)
    until(lambda: "undone" in " ".join(reasons_of(host)), "the trial is undone", agent)
    assert share_away(host) < 0.1
    windows = status(host)["windows"]
    until(lambda: status(host)["windows"] > windows + 3, "three more windows", agent)
    assert share_away(host) < 0.1
    stop(agent)


def reasons_of(host: LabHost) -> list[str]:
    small = status(host)["guests"].get("small")
    return list(small["reasons"]) if small else []
