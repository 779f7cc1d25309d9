"""What does an operator see in Grafana?  Panels for one host, and for all hosts together, as code.

Run ``make dashboard`` after a change: it writes *.dashboard.json, which are what is shipped.  Only
that needs grafana-foundation-sdk.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHT, WIDTH = 8, 12
HOST = 'instance=~"$instance"'
INTERVAL_KEYS = ("auto", "auto_count", "auto_min", "id")
"""The SDK gives them to each variable; Grafana's schema has them of intervals alone, or no more."""


@dataclass(frozen=True)
class View:
    """One panel: a query, the name of its lines, and what it means."""

    title: str
    query: str
    legend: str
    unit: str
    meaning: str


VIEWS = (
    View(
        "Local access ratio by guest, by pages",
        f"vmplace_guest_local_access_ratio{{{HOST}}}",
        "{{domain}}",
        "percentunit",
        "Share of accesses that stay on the vCPU's node, estimated by pages. 1 is best.",
    ),
    View(
        "Local access ratio by guest, by counters",
        f"vmplace_guest_counted_local_access_ratio{{{HOST}}}",
        "{{domain}}",
        "percentunit",
        "Share of DRAM accesses that the vCPU's node served, where the CPU tells them apart.",
    ),
    View(
        "Imbalance of memory controllers",
        f"vmplace_memory_controller_imbalance_ratio{{{HOST}}}",
        "{{instance}}",
        "short",
        "Standard deviation of the nodes' traffic over its mean. 0 is balanced.",
    ),
    View(
        "Guest memory by node",
        f"sum by (instance, numa_node) (vmplace_guest_memory_bytes{{{HOST}}})",
        "{{instance}} node {{numa_node}}",
        "bytes",
        "Guest memory present on each node.",
    ),
    View(
        "Hot guest memory by node",
        f"sum by (instance, numa_node) (vmplace_guest_hot_memory_bytes{{{HOST}}})",
        "{{instance}} node {{numa_node}}",
        "bytes",
        "Guest memory that was touched lately.",
    ),
    View(
        "DRAM accesses by node",
        f"sum by (instance, numa_node) (vmplace_guest_node_dram_accesses_per_second{{{HOST}}})",
        "{{instance}} node {{numa_node}}",
        "short",
        "Accesses of all guests that each node serves, a second. By node it is an estimate.",
    ),
    View(
        "Moved",
        f"instance:vmplace_moved_bytes:rate5m{{{HOST}}}",
        "{{instance}}",
        "Bps",
        "Guest memory moved between nodes.",
    ),
    View(
        "Copies",
        f"sum by (instance, domain) (vmplace_guest_replica_bytes{{{HOST}}})",
        "{{domain}}",
        "bytes",
        "Copies of read-only pages on other nodes.",
    ),
    View(
        "Guests by state",
        f"sum by (instance, state) (vmplace_guest_state{{{HOST}}})",
        "{{state}}",
        "short",
        "What the agent does with each guest.",
    ),
    View(
        "Expected local access ratio by guest",
        f"vmplace_guest_expected_local_access_ratio{{{HOST}}}",
        "{{domain}}",
        "percentunit",
        "What the last plan promised: compare it with the ratio by pages.",
    ),
    View(
        "Cycles per instruction since the last move",
        f"vmplace_guest_cost_ratio{{{HOST}}}",
        "{{domain}}",
        "percentunit",
        "Against those before it, by the CPU's counters. Below 100 % is faster.",
    ),
    View(
        "Not moved, by reason",
        f"sum by (instance, reason) (rate(vmplace_guest_refused_bytes_total{{{HOST}}}[5m]))",
        "{{reason}}",
        "Bps",
        "Guest memory that was to be moved or copied and was not.",
    ),
    View(
        "Use of the budget",
        f"instance:vmplace_budget_use:ratio5m{{{HOST}}}",
        "{{instance}}",
        "percentunit",
        "Moved and copied, as a share of what may be.",
    ),
    View(
        "Stalls on other nodes' memory",
        f"vmplace_guest_remote_stall_cycles_per_second{{{HOST}}}",
        "{{domain}}",
        "short",
        "Estimated cycles that vCPUs wait for other nodes beyond what their own would take.",
    ),
    View(
        "Copies dropped",
        f"sum by (instance, domain) (rate(vmplace_guest_collapsed_bytes_total{{{HOST}}}[5m]))",
        "{{domain}}",
        "Bps",
        "Pages that lost their copies to a write, a move, or lack of memory.",
    ),
    View(
        "Time of a harvest",
        f"instance:vmplace_harvest_seconds:mean5m{{{HOST}}}",
        "{{instance}}",
        "s",
        "In each window, of all guests.",
    ),
    View(
        "Time of a plan",
        f"instance:vmplace_plan_seconds:mean5m{{{HOST}}}",
        "{{instance}}",
        "s",
        "In each window, for all guests.",
    ),
    View(
        "Cost of the agent",
        f"instance:vmplace_cpu:rate5m{{{HOST}}}",
        "{{instance}}",
        "percentunit",
        "Share of one CPU that the agent takes.",
    ),
)


FLEET = (
    View(
        "Most pressed hosts",
        "topk(20, vmplace:host_pressure:ratio)",
        "{{instance}}",
        "percentunit",
        "What guests take of the memory bandwidth of a host's most pressed node. They queue from about 80 %.",
    ),
    View(
        "Hosts by pressure",
        "count(vmplace:host_pressure:ratio > 0.8) or vector(0)",
        "above 80 %",
        "short",
        "Hosts whose guests queue for memory.",
    ),
    View(
        "Guests that press most",
        "topk(20, vmplace:guest_pressure:ratio)",
        "{{domain}} on {{instance}}",
        "percentunit",
        "What a guest takes of the bandwidth of the node on which it takes most.",
    ),
    View(
        "Pressure of the whole fleet",
        "avg(vmplace:host_pressure:ratio)",
        "mean of hosts",
        "percentunit",
        "If it is low while some hosts are pressed, guests are spread unevenly.",
    ),
    View(
        "Hosts with the lowest local access ratio",
        "bottomk(20, instance:vmplace_guest_local_access:ratio)",
        "{{instance}}",
        "percentunit",
        "Mean of the guests' local access ratios. 1 is best.",
    ),
    View(
        "Moved by all agents",
        "sum(instance:vmplace_moved_bytes:rate5m)",
        "moved",
        "Bps",
        "Guest memory moved between nodes of hosts.",
    ),
    View(
        "Agents that do not answer",
        "count(vmplace_up == 0) or vector(0)",
        "down",
        "short",
        "Guests of these hosts run on where they are.",
    ),
    View(
        "Guests by state",
        "sum by (state) (vmplace_guest_state)",
        "{{state}}",
        "short",
        "What the agents do with all guests.",
    ),
)


def panel(view: View) -> timeseries.Panel:
    """Return the builder of one panel."""
    query = prometheus.Dataquery().expr(view.query).legend_format(view.legend).ref_id("A")
    found = timeseries.Panel().title(view.title).description(view.meaning).datasource(SOURCE)
    legend = common.VizLegendOptions().show_legend(True)
    # Without options of its own a panel would have "null" there, which Grafana's schema does not allow.
    return found.unit(view.unit).height(HEIGHT).span(WIDTH).legend(legend).with_target(query)


def one_host() -> str:
    """Return the dashboard of one host as JSON."""
    hosts = dashboard.QueryVariable("instance").query("label_values(vmplace_up, instance)")
    builder = _begun("vmplace").with_variable(hosts.datasource(SOURCE).multi(True).include_all(True))
    return _finished(builder, VIEWS)


def fleet() -> str:
    """Return the dashboard of all hosts as JSON."""
    return _finished(_begun("vmplace-fleet"), FLEET)


def _begun(name: str) -> dashboard.Dashboard:
    builder = dashboard.Dashboard(name).uid(name).tags(["kvm", "numa"]).refresh("30s")
    builder = builder.time("now-6h", "now").readonly()
    return builder.with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))


def _finished(builder: dashboard.Dashboard, views: tuple[View, ...]) -> str:
    for view in views:
        builder = builder.with_panel(panel(view))
    made = json.loads(JSONEncoder().encode(builder.build()))
    # Grafana has had no styles since version 10.
    made.pop("style", None)
    for variable in made["templating"]["list"]:
        for key in INTERVAL_KEYS:
            variable.pop(key, None)
    return json.dumps(made, sort_keys=True, indent=2) + "\n"


OUT = Path(__file__).parent
SHIPPED = {"vmplace.dashboard.json": one_host, "vmplace-fleet.dashboard.json": fleet}


if __name__ == "__main__":
    for name, made in SHIPPED.items():
        OUT.joinpath(name).write_text(made())
        sys.stdout.write(f"{name} written\n")
