"""What the simulated agent pays for its work is at least what its benches measured of the real one."""

import json
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from tests.unit.simulate.small_trace import private_pages
from tests.unit.simulate.test_agent_run import KVM, machine_of, simulation_of, spec_of
from vmplace.simulate import agent_host, agent_source
from vmplace.simulate.agent_source import TraceSource
from vmplace.simulate.simulated_guest import HVA
from vmplace.simulate.source_views import Sensor

KEPT = Path(__file__).parents[3] / "bench/results/decision.json"
GIB_PAGES = 1 << 18
HARVEST_S_PER_GIB = 0.030
IDLE = Sensor("idle")


def kept_s_per_gib() -> float:
    """Return what a plan takes for each GiB that several nodes touch, as it was measured and kept."""
    return float(median([json.loads(KEPT.read_text())["parts"]["by_gib"]["figures"]["auto_s_per_gib"]]))


def test_a_look_costs_what_harvest_and_plan_were_measured_to_take() -> None:
    measured_ns = (HARVEST_S_PER_GIB + kept_s_per_gib()) / GIB_PAGES * 1e9
    assert measured_ns <= agent_source.LOOK_PAGE_NS < 1.25 * measured_ns


@pytest.mark.parametrize(("sensor", "least_ns"), [(KVM, 1.0), (IDLE, 200.0)])
def test_each_page_is_paid_for_when_it_is_watched(tmp_path: Path, sensor: Sensor, least_ns: float) -> None:
    machine = machine_of(simulation_of(spec_of(private_pages())), tmp_path)
    source, (guest,) = TraceSource(machine, sensor, seed=1), machine.topologies()
    source.arm(guest)
    source.harvest(guest)
    (mine,) = machine.guests.values()
    assert machine.clock.thread_cpu_ns() >= least_ns * mine.slots


def test_looking_up_the_nodes_of_pages_is_paid_for(tmp_path: Path) -> None:
    machine = machine_of(simulation_of(spec_of(private_pages())), tmp_path)
    (guest,) = machine.guests.values()
    hvas = np.arange(100, dtype=np.uint64) * 4096 + HVA
    machine.page_nids(guest.pid, hvas, np.zeros(100, np.int32))
    assert machine.clock.thread_cpu_ns() == 100 * agent_host.PAGE_NIDS_NS
