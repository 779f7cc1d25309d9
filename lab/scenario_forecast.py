"""What does the simulator say, before anything runs, of a scenario's emulated run times under a manager?

1. A guest's declared pattern becomes a trace: which vCPU touches which page, how often (simulate/trace.py).
2. The simulator places it as the manager would (simulate/registry.py) until that has settled.
3. The rates at which all guests together then access memory give each one's time for WORK_TOUCHES touches.

Nothing of it comes from a run but the guests' CPU load, by which numad chooses whom to place.  Time is that
of the meter's emulated time: the same memory model, in another program and another language.  Not in it: what
the guests' kernels access (5 % of all), their verification, and that a huge page is copied as a whole or not.
"""

from collections.abc import Callable, Mapping

import numpy as np

from lab.emulated_time import DILATION
from lab.scenario import Guest, ManagerName, Scenario
from lab.scenario_result import WORK_TOUCHES
from lab.scenario_speed import declared_rates
from lab.topology import MIB, LabTopology
from lab.workload import Touch
from vmplace.model.described_memory import described_memory
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import Indexes
from vmplace.simulate.guest_run import GuestSpec
from vmplace.simulate.host_file import PAGE_BYTES as TRACE_PAGE_BYTES
from vmplace.simulate.host_file import SimulatedHost
from vmplace.simulate.placement_costs import FREE
from vmplace.simulate.registry import POLICIES
from vmplace.simulate.run import settled_rates
from vmplace.simulate.source_views import source_named
from vmplace.simulate.trace import NEAR_PAGES, NEVER, Trace

POLICY_OF: Mapping[ManagerName, tuple[str, str]] = {
    "none": ("none", "full"),
    "numad": ("numad-model", "full"),
    "kernel": ("kernel-balancing-model", "full"),
    "interleave": ("interleave-all", "full"),
    "vmplace": ("agent:auto", "ad"),
}
"""What stands for each manager in the simulator: policy and source; for vmplace the agent's own loop."""

SPAN_NS = 5e8
"""By then every model has settled: numad's looks each 0.3 s of simulated time, and one round is enough."""

PAGE_BYTES = 1 << 18
"""A page of the forecast: where these patterns have pages alike, larger ones change nothing but the cost."""

TOUCHES = 1 << 40
"""Touches of each vCPU in the one window of the trace: more than it gets to."""

PAGE_LINES = 64
ZIPF_EXPONENT = 0.99
"""As payload/zipf.h has it."""

NUMAD_LEAST_LOAD = 0.5
NUMAD_LEAST_BYTES = 300 * MIB
"""numad.c: CPU_THRESHOLD and MEMORY_THRESHOLD; processes with less are left where they are."""


def forecast_run_times(
    scenario: Scenario, topology: LabTopology, manager: ManagerName, cpu_loads: Mapping[str, float]
) -> dict[str, float]:
    """Return each guest's emulated seconds for WORK_TOUCHES touches under ``manager``.

    ``cpu_loads`` in CPUs, by guest; one that is not given counts as busy.  Where numad considers one guest,
    its model places all.
    """
    policy_name, source = POLICY_OF[manager]
    host = _host(topology, float(np.mean([dirty_share(guest) for guest in scenario.guests])))
    specs = [_spec(guest, topology, is_pinned(guest, manager)) for guest in scenario.guests]
    policy = POLICIES[policy_name]
    if manager == "numad" and not any(numad_places(guest, cpu_loads) for guest in scenario.guests):
        policy = POLICIES["none"]
    rates = settled_rates(host, specs, policy, source_named(source), SPAN_NS, FREE)
    return {
        guest.name: WORK_TOUCHES * misses_per_touch(guest) / rates[guest.name] / 1e9
        for guest in scenario.guests
    }


def slowness(scenario: Scenario, topology: LabTopology) -> float:
    """Return how many seconds guests take, as they declare, for what they do in one of emulated time.

    Guests declare what the emulator can follow, and are judged by how fast they can go in emulated time
    (scenario_meter.py).  ``DILATION`` where they declare nothing.
    """
    declared = sum(declared_rates(scenario).values())
    if not declared:
        return scenario.time.dilation or DILATION
    times = forecast_run_times(scenario, topology, "none", {})
    return sum(WORK_TOUCHES / seconds for seconds in times.values()) / declared


def is_pinned(guest: Guest, manager: ManagerName) -> bool:
    """Return whether the guest keeps the operator's pins: numad starts without them."""
    return not guest.floats and manager != "numad"


def numad_places(guest: Guest, cpu_loads: Mapping[str, float]) -> bool:
    """Return whether numad considers the guest at all."""
    return guest.memory_mib * MIB > NUMAD_LEAST_BYTES and cpu_loads.get(guest.name, np.inf) > NUMAD_LEAST_LOAD


def misses_per_touch(guest: Guest) -> float:
    """Return how many lines a touch fetches: of a burst within a page, only those not drawn before."""
    return _mean_by_rate(guest, lambda touch: _distinct_lines(touch) / touch.burst)


def dirty_share(guest: Guest) -> float:
    """Return which share of the fetched lines is written, and goes back to memory when the cache drops it."""

    def share(touch: Touch) -> float:
        touches_per_line = touch.burst / _distinct_lines(touch)
        return 1 - float((1 - touch.write_percent / 100) ** touches_per_line)

    return _mean_by_rate(guest, share)


def can_forecast(scenario: Scenario) -> bool:
    """Return whether patterns alone tell what the guests do: no programs, no phases, fixed rates."""
    return not any(
        guest.workload.run
        or guest.workload.phases_ms
        or guest.workload.arena_mib is None
        or any(touch.rate == "max" for touch in guest.workload.touch)
        for guest in scenario.guests
    )


def _distinct_lines(touch: Touch) -> float:
    if touch.order == "sequential" or touch.burst == 1:
        return float(touch.burst)
    return PAGE_LINES * (1 - (1 - 1 / PAGE_LINES) ** touch.burst)


def _mean_by_rate(guest: Guest, of: Callable[[Touch], float]) -> float:
    touches = guest.workload.touch
    rates = [float(touch.rate) * len(touch.vcpu_ids()) for touch in touches]
    return sum(rate * of(touch) for rate, touch in zip(rates, touches, strict=True)) / sum(rates)


def _host(topology: LabTopology, dirty: float) -> SimulatedHost:
    """Return the emulated host; what is written back takes its part of controllers and links."""
    memory = np.array([node.memory_bytes for node in topology.nodes], float)
    bandwidth = np.array(topology.bandwidth_mib_per_s, float) / (1 + dirty)
    distances = np.array(topology.distances, float)
    system = described_memory(topology.nids, distances, bandwidth, memory / MIB)
    cpus = np.array([node.cpus for node in topology.nodes], float)
    return SimulatedHost(topology.name, system, cpus, memory // PAGE_BYTES)


def _spec(guest: Guest, topology: LabTopology, pinned: bool) -> GuestSpec:
    by_vcpu = _touched(guest)
    first = by_vcpu.argmax(axis=0)
    starts = np.array([topology.nids.index(nid) for nid in guest.start_nids], np.int8)
    nodes = tuple(topology.nids.index(nid) for nid in guest.vcpu_nids)
    return GuestSpec(guest.name, _trace(guest, by_vcpu), nodes, len(nodes), starts[first], pinned=pinned)


def _touched(guest: Guest) -> Matrix:
    """Return by vCPU and page the share of the vCPU's touches that go there."""
    pages = (guest.workload.arena_mib or 0) * MIB // PAGE_BYTES
    shares = np.zeros((len(guest.vcpu_nids), pages))
    for touch in guest.workload.touch:
        where = np.concatenate([_pages(text) for text in touch.ranges])
        shares[np.ix_(np.array(touch.vcpu_ids()), where)] += float(touch.rate) * _weights(touch, len(where))
    totals = shares.sum(axis=1, keepdims=True)
    relative: Matrix = shares / np.maximum(totals, np.finfo(float).tiny)
    return relative


def _pages(text: str) -> Indexes:
    offset, length = (int(mib) * MIB // PAGE_BYTES for mib in text.split("+"))
    return np.arange(offset, offset + length)


def _weights(touch: Touch, pages: int) -> Matrix:
    """Return how the touches fall on the pages of the ranges, in their order."""
    if touch.order != "zipf":
        return np.full(pages, 1 / pages)
    steps = PAGE_BYTES // touch.stride_bytes
    ends = (np.arange(pages + 1) * steps + 1.0) ** (1 - ZIPF_EXPONENT)
    weights: Matrix = np.diff(ends) / (ends[-1] - ends[0])
    return weights


def _trace(guest: Guest, by_vcpu: Matrix) -> Trace:
    """Return a trace of one long window in which each vCPU makes TOUCHES touches."""
    thread, page = np.nonzero(by_vcpu)
    dram = np.maximum(by_vcpu[thread, page] * TOUCHES * misses_per_touch(guest), 1).astype(np.int64)
    stores = (dram * dirty_share(guest)).astype(np.int64)
    vcpus, pages = by_vcpu.shape
    zeros = np.zeros(pages, np.int64)
    busy = (by_vcpu.sum(axis=1) > 0).astype(np.int64)
    return Trace(
        name=guest.name,
        threads=vcpus,
        first_worker=0,
        workers=vcpus,
        first_touch_thread=by_vcpu.argmax(axis=0),
        first_touch_window=zeros,
        first_touch_rank=np.arange(pages),
        free_window=zeros + NEVER,
        page=page,
        thread=thread,
        loads=dram - stores,
        stores=stores,
        dram=dram,
        sampled=np.zeros(len(page)),
        # Emulated time passes at DRAM accesses only: instructions take none.
        raw=busy[None, :],
        window_starts=np.array([0, len(page)]),
        near=tuple(np.arange(pages) // max(size * TRACE_PAGE_BYTES // PAGE_BYTES, 1) for size in NEAR_PAGES),
        frame=np.arange(pages),
    )
