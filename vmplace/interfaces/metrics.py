"""What does Prometheus get to see?  The agent's status as metric families; pure.

Names follow Prometheus' conventions: base units, ``_total`` for counters, ratios from 0 to 1.  A guest is
named by ``domain`` as libvirt and its exporters name it, a NUMA node by ``numa_node`` (``node`` is the
machine for node_exporter's and KubeVirt's users).  ``vmplace_guest_info`` carries what is only joined with.

What the agent does not know has no sample: absent is not zero.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

PAGE_BYTES = 4096
STATES = ("new", "moving", "settled", "advised", "held", "migrating", "manual", "failed")
"""The states of vmplace/agent/state.py."""
CLOUD_NAMES = ("namespace", "name", "project", "flavour")


def families(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the metric families of one answer to ``status`` (JSON of agent.state.AgentStatus)."""
    yield from _agent(status)
    yield from _guests(status["guests"])


def families_without_agent() -> Iterator[Metric]:
    """Yield the one metric while no agent answers: that it is down."""
    yield _gauge("vmplace_up", "Whether the agent answers (1) or not (0).", 0)


def _agent(status: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge("vmplace_up", "Whether the agent answers (1) or not (0).", 1)
    reported = {name: str(status[name]) for name in ("version", "source", "policy")}
    yield InfoMetricFamily("vmplace_agent", "The agent's version, sensor and policy.", reported)
    yield _gauge("vmplace_paused", "Whether all moves are paused (1).", float(status["paused"]))
    yield _gauge("vmplace_notes", "Notes that a person should read: vmplace status.", len(status["notes"]))
    yield _counter("vmplace_windows", "Sampling windows since the agent began.", status["windows"])
    yield _counter("vmplace_moved_bytes", "Guest memory moved between nodes.", status["moved_bytes"])
    yield _counter("vmplace_cpu_seconds", "CPU time of the agent.", status["cpu_seconds"])
    yield from _work(status)
    yield from _nodes(status["nodes"])
    sampling = status["sampling_cpu_seconds"]
    yield _counter("vmplace_sampling_cpu_seconds", "CPU time of reading what guests touched.", sampling)
    longest = status["longest_move_call_ms"] / 1000
    yield _gauge("vmplace_longest_move_call_seconds", "Longest move call since the agent began.", longest)
    if status["rss_bytes"] is not None:
        yield _gauge("vmplace_resident_memory_bytes", "Resident memory of the agent.", status["rss_bytes"])
    if status["mc_imbalance_estimate"] is not None:
        yield _gauge(
            "vmplace_memory_controller_imbalance_ratio",
            "Estimated standard deviation of the nodes' memory traffic over its mean; 0 is balanced.",
            status["mc_imbalance_estimate"],
        )


def _work(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield what windows take and what the budget is: divide by vmplace_windows_total, or compare rates."""
    copied = status["replicated_bytes"]
    yield _counter("vmplace_replicated_bytes", "Guest memory that got copies on other nodes.", copied)
    harvest, plan = status["harvest_seconds"], status["plan_seconds"]
    yield _counter("vmplace_harvest_seconds", "Time that harvests took, of all windows.", harvest)
    yield _counter("vmplace_plan_seconds", "Time that plans took, of all windows.", plan)
    budget = status["budget_bytes_per_s"]
    yield _gauge("vmplace_budget_bytes_per_second", "What may be moved and copied a second.", budget)


def _nodes(nodes: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    size = GaugeMetricFamily("vmplace_node_memory_bytes", "Memory of a node.", labels=("numa_node",))
    free = GaugeMetricFamily(
        "vmplace_node_free_bytes",
        "Free memory of a node, without room kept for a guest to come.",
        labels=("numa_node",),
    )
    for node in nodes:
        size.add_metric((str(node["nid"]),), node["memory_bytes"])
        free.add_metric((str(node["nid"]),), node["free_bytes"])
    yield from (size, free)


def _guests(guests: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    yield _info(guests)
    yield _states(guests)
    yield from _by_guest(guests)
    yield from _gains(guests)
    yield from _uses(guests)
    yield _refused(guests)
    yield _by_node(
        guests, "pages_by_node", "vmplace_guest_memory_bytes", "Memory of a guest present on a node."
    )
    yield _by_node(
        guests,
        "hot_pages_by_node",
        "vmplace_guest_hot_memory_bytes",
        "Memory of a guest on a node that was touched lately.",
    )
    yield _pressure(guests)


def _info(guests: Mapping[str, Mapping[str, Any]]) -> Metric:
    family = GaugeMetricFamily(
        "vmplace_guest_info",
        "What a guest is, and what Nova or Kubernetes call it; join on domain.",
        labels=("domain", "uuid", "origin", "mode", *CLOUD_NAMES),
    )
    for domain, guest in guests.items():
        names = guest.get("names") or {}
        known = (domain, guest.get("uuid") or "", guest["origin"], guest["mode"])
        family.add_metric((*known, *(names.get(key, "") for key in CLOUD_NAMES)), 1)
    return family


def _states(guests: Mapping[str, Mapping[str, Any]]) -> Metric:
    family = GaugeMetricFamily(
        "vmplace_guest_state", "1 for the state that a guest is in.", labels=("domain", "state")
    )
    for name, guest in guests.items():
        for state in STATES:
            family.add_metric((name, state), float(guest["state"] == state))
    return family


def _by_guest(guests: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield the families with one sample for each guest."""
    lar = GaugeMetricFamily(
        "vmplace_guest_local_access_ratio",
        "Share of a guest's memory accesses that stay on the vCPU's node, estimated by pages.",
        labels=("domain",),
    )
    copies = GaugeMetricFamily(
        "vmplace_guest_replica_bytes", "Copies of a guest's pages on other nodes.", labels=("domain",)
    )
    collapsed = CounterMetricFamily(
        "vmplace_guest_collapsed_bytes", "Pages whose copies were dropped again.", labels=("domain",)
    )
    moved = CounterMetricFamily(
        "vmplace_guest_moved_bytes", "Memory of a guest moved between nodes.", labels=("domain",)
    )
    for name, guest in guests.items():
        if guest["estimated_lar"] is not None:
            lar.add_metric((name,), guest["estimated_lar"])
        copies.add_metric((name,), guest["replica_bytes"])
        collapsed.add_metric((name,), guest["collapsed_bytes"])
        moved.add_metric((name,), guest["moved_bytes"])
    yield from (lar, copies, collapsed, moved)
    yield _unmovable(guests)


def _gains(guests: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield what was promised, to be held against the local access ratio, and what came of it by counters."""
    counted = GaugeMetricFamily(
        "vmplace_guest_counted_local_access_ratio",
        "Share of a guest's DRAM accesses that its vCPUs' own node served, by counters of the CPU.",
        labels=("domain",),
    )
    expected = GaugeMetricFamily(
        "vmplace_guest_expected_local_access_ratio",
        "Local access ratio that the last plan with a change for the guest promised.",
        labels=("domain",),
    )
    cost = GaugeMetricFamily(
        "vmplace_guest_cost_ratio",
        "Cycles per instruction since a guest's memory last moved, over those before; below 1 is faster.",
        labels=("domain",),
    )
    for name, guest in guests.items():
        for family, key in ((counted, "counted_lar"), (expected, "expected_lar"), (cost, "cost_ratio")):
            # An agent of before an update has fewer.
            if guest.get(key) is not None:
                family.add_metric((name,), guest[key])
    yield from (counted, expected, cost)


def _uses(guests: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield what samples of accesses tell, where a source has them."""
    reported = (
        ("vmplace_guest_dram_accesses_per_second", "Estimated accesses to DRAM.", "dram_per_us"),
        (
            "vmplace_guest_remote_stall_cycles_per_second",
            "Estimated cycles that vCPUs wait for other nodes beyond what their own would take.",
            "remote_wait_per_us",
        ),
    )
    for name, text, key in reported:
        family = GaugeMetricFamily(name, text, labels=("domain",))
        for domain, guest in guests.items():
            use = guest["memory_use"]
            if use is not None and use[key] is not None:
                family.add_metric((domain,), use[key] * 1e6)
        yield family
    yield _accesses(guests)


def _accesses(guests: Mapping[str, Mapping[str, Any]]) -> Metric:
    family = GaugeMetricFamily(
        "vmplace_guest_node_dram_accesses_per_second",
        "Estimated DRAM accesses of a guest by the node that serves them; their sum is counted or sampled.",
        labels=("domain", "uuid", "numa_node"),
    )
    for domain, guest in guests.items():
        for nid, rate in (guest.get("dram_accesses_by_node") or {}).items():
            family.add_metric((domain, guest.get("uuid") or "", str(nid)), rate)
    return family


def _refused(guests: Mapping[str, Mapping[str, Any]]) -> Metric:
    family = CounterMetricFamily(
        "vmplace_guest_refused_bytes",
        "Memory of a guest that was to be moved or copied and was not, by reason.",
        labels=("domain", "reason"),
    )
    for name, guest in guests.items():
        for reason, size in guest["refused_bytes"].items():
            family.add_metric((name, reason), size)
    return family


def _unmovable(guests: Mapping[str, Mapping[str, Any]]) -> Metric:
    family = GaugeMetricFamily(
        "vmplace_guest_movability_bytes",
        "Memory of a guest by whether it may move, and if not, why not.",
        labels=("domain", "class"),
    )
    for name, guest in guests.items():
        for kind, size in guest["movability"].items():
            family.add_metric((name, kind), size)
    return family


def _by_node(guests: Mapping[str, Mapping[str, Any]], key: str, name: str, text: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=("domain", "numa_node"))
    for domain, guest in guests.items():
        for nid, pages in (guest[key] or {}).items():
            family.add_metric((domain, str(nid)), pages * PAGE_BYTES)
    return family


def _pressure(guests: Mapping[str, Mapping[str, Any]]) -> Metric:
    family = GaugeMetricFamily(
        "vmplace_guest_memory_pressure_ratio",
        "What a guest takes of the memory bandwidth of a node; 1 is all that was measured.",
        labels=("domain", "numa_node"),
    )
    for domain, guest in guests.items():
        for nid, share in (guest.get("pressure_by_node") or {}).items():
            family.add_metric((domain, str(nid)), share)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def names(metrics: Iterable[Metric]) -> tuple[str, ...]:
    """Return the names of all samples, each once, as queries spell them."""
    return tuple(dict.fromkeys(sample.name for metric in metrics for sample in metric.samples))
