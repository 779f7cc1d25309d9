"""The real numad beside a running agent on the emulated host: what is reported, and whether they fight.

Two guests as numad wants to see them, far from their memory.  One is kept off numad from the start, so what
numad does to the other one shows that it acts here at all.  Truth: numad's log, the kernel's counts of pages.
"""

import json
import re
import time
from collections.abc import Iterator

import pytest

from lab.machine import LabHost, boot_host
from lab.progress import Progress
from lab.scenario import read_scenario
from lab.scenario_baselines import NUMAD_LOG, UP_FOR_A_DAY
from lab.scenario_prepare import prepare_stage
from tests.lab.test_agent import is_away, is_home, start_agent, status, until

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(1500)]

SCENARIO = read_scenario("busy")
KEPT_OFF, OTHER = "busy0", "busy1"
HOME = {KEPT_OFF: 0, OTHER: 1}
WATCHED_S = 60
FEW_PAGES = 2000
"""What the host's own programs may migrate in that time; a guest that went to and fro has 80,000."""


@pytest.fixture
def host() -> Iterator[LabHost]:
    stage = prepare_stage(SCENARIO, Progress())
    with boot_host(stage.topology, snapshot=stage.snapshot, files=stage.files) as booted:
        booted.run("mkdir -p /etc/vmplace; echo 0 >/proc/sys/kernel/numa_balancing")
        yield booted
        print(booted.run(["cat", NUMAD_LOG], check=False).stdout[-5000:])


def pid_of(host: LabHost, name: str) -> int:
    return int(host.run(f"cat /run/libvirt/qemu/{name}.pid").stdout)


def acted_on(host: LabHost) -> set[int]:
    """Return the processes that numad says it placed."""
    return {int(pid) for pid in re.findall(r"Advising pid (\d+)", host.run(["cat", NUMAD_LOG]).stdout)}


def migrated(host: LabHost) -> int:
    """Return how many pages were migrated since the host booted, by anybody."""
    return int(host.run("awk '/^pgmigrate_success/ { print $2 }' /proc/vmstat").stdout)


def notes(host: LabHost) -> list[str]:
    return [note for note in status(host)["notes"] if "numad" in note]


def test_numad_is_reported_and_a_guest_that_is_kept_off_it_stays_where_the_agent_put_it(host: LabHost):
    pids = {name: pid_of(host, name) for name in HOME}
    host.run(f"{UP_FOR_A_DAY} numad -l 6 -x {pids[KEPT_OFF]}", timeout=60)
    before = migrated(host)
    agent = start_agent(host)
    until(lambda: all(is_home(host, *one) for one in HOME.items()), "both guests are at home", agent)
    assert migrated(host) - before > 2 * 80_000

    # The agent names the guest that numad may move, and only that one, with the cure; so do why and doctor.
    (note,) = notes(host)
    assert f"may move {OTHER}, too" in note and KEPT_OFF not in note
    assert note in json.loads(host.run(f"vmplace why {OTHER} --json", timeout=240).stdout)["notes"]
    reported = json.loads(host.run("vmplace doctor --json", check=False, timeout=240).stdout)
    (found,) = (one for one in reported["capabilities"] if "numad" in one["name"])
    assert found["answer"] is False and "moves guests, too; 1 process is kept off it" in found["why"]

    # numad acts, on the one that it was not kept off.
    until(lambda: pids[OTHER] in acted_on(host), "numad places the other guest", agent)
    host.run(note.partition("`")[2].partition("`")[0])
    until(lambda: notes(host) == [], "there is nothing to tell any more", agent)

    # Nobody moves anything to and fro.
    until(lambda: all(is_home(host, *one) for one in HOME.items()), "both guests are at home again", agent)
    before = migrated(host)
    time.sleep(WATCHED_S)
    assert migrated(host) - before < FEW_PAGES
    assert all(is_home(host, *one) for one in HOME.items())
    assert pids[KEPT_OFF] not in acted_on(host)
    assert status(host)["guests"][KEPT_OFF]["state"] == "settled"
    agent.kill("TERM")
    assert agent.wait(timeout=60) == 0
    assert not is_away(host, KEPT_OFF, 1)
