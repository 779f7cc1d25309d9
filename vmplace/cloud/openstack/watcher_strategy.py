"""A strategy for Watcher: move guests that press a full node off the hosts that queue most.

Watcher's decision engine loads it by the entry point ``watcher_strategies``; nothing else imports it.
Figures are vmplace's recording rules, asked of the Prometheus (or Aetos) that Watcher has as a data source;
what is decided is vmplace/fleet/rebalance.py.  Hosts are known by Watcher's ``fqdn_label``, guests by uuid.
"""

from statistics import pstdev
from typing import Any

from watcher._i18n import _
from watcher.common import exception
from watcher.decision_engine.model import element
from watcher.decision_engine.strategy.strategies import base

from vmplace.fleet.rebalance import (
    MOST,
    TARGET,
    THRESHOLD,
    Limits,
    Migration,
    PressingGuest,
    Rebalance,
    plan_rebalance,
)

HOST_QUERY = "max by ({label}, numa_node) (numa_node:vmplace_memory_pressure:ratio)"
GUEST_QUERY = "max by (uuid, {label}, numa_node) (vmplace:guest_node_pressure:ratio{{origin='libvirt'}})"
"""By host, too: whoever may run QEMU on another host may give it the uuid of an instance."""
NODE = "numa_node"
SHARE = {"type": "number", "minimum": 0, "maximum": 1}


class VmplacePressure(base.WorkloadStabilizationBaseStrategy):  # type: ignore[misc]
    """Live migrations from hosts whose memory is pressed to hosts that have bandwidth and room."""

    # What makes Watcher's manager choose a data source of Prometheus' kind.
    DATASOURCE_METRICS = ("host_cpu_usage",)

    @classmethod
    def get_name(cls) -> str:
        """Return the name by which audits ask for it."""
        return "vmplace_pressure"

    @classmethod
    def get_display_name(cls) -> str:
        """Return the name for people."""
        return str(_("vmplace: relieve hosts whose guests queue for memory"))

    @classmethod
    def get_translatable_display_name(cls) -> str:
        """Return the same, to be translated."""
        return "vmplace: relieve hosts whose guests queue for memory"

    @classmethod
    def get_schema(cls) -> dict[str, Any]:
        """Return what an audit may ask for."""
        most = {"type": "integer", "minimum": 1, "maximum": 1000, "default": MOST}
        return {
            "properties": {
                "threshold": SHARE | {"default": THRESHOLD, "description": "Pressure of hosts to relieve."},
                "target": SHARE | {"default": TARGET, "description": "Pressure not to exceed elsewhere."},
                "migrations": most | {"description": "Migrations of one audit at the most."},
            }
        }

    def pre_execute(self) -> None:
        """Check that there is a model of the cluster."""
        self._pre_execute()

    def do_execute(self, audit: Any = None) -> None:
        """Plan, and add the migrations to the solution."""
        nodes, instances = self._nodes(), self._instances()
        self._instances_count = len(instances)
        label = self.datasource_backend.prometheus_fqdn_label
        loads = self._asked(HOST_QUERY.format(label=label), label)
        self._loads = {name: by_node for (name,), by_node in loads.items() if name in nodes}
        taken = self._asked(GUEST_QUERY.format(label=label), "uuid", label)
        guests = [
            PressingGuest(uuid, host, taken.get((uuid, host), {}))
            for uuid, (instance, host) in instances.items()
            if instance.state == element.InstanceState.ACTIVE.value
        ]
        self._plan = self._planned(guests, nodes, instances)
        for move in self._plan.migrations:
            instance = instances[move.uuid][0]
            self.add_action_migrate(instance, "live", nodes[move.source], nodes[move.destination])

    def post_execute(self) -> None:
        """State the efficacy: how unlike the hosts' pressures are, and are expected to be."""
        expected = self._plan.expected
        before = [max(by_node.values()) for by_node in self._loads.values()]
        self.solution.model = self.compute_model
        self.solution.set_efficacy_indicators(
            instance_migrations_count=len(self._plan.migrations),
            instances_count=self._instances_count,
            standard_deviation_before_audit=pstdev(before) if before else 0.0,
            standard_deviation_after_audit=pstdev(expected.values()) if expected else 0.0,
        )

    def _planned(self, guests: list[PressingGuest], nodes: Any, instances: Any) -> Rebalance:
        def has_room(uuid: str, host: str, before: tuple[Migration, ...]) -> bool:
            free = dict(self.compute_model.get_node_free_resources(nodes[host]))
            # What leaves the host is not counted: nobody knows which migration ends first.
            for move in before:
                if move.destination == host:
                    free = {name: room - _size(instances[move.uuid][0], name) for name, room in free.items()}
            return all(_size(instances[uuid][0], name) <= room for name, room in free.items())

        asked = self.input_parameters
        limits = Limits(
            asked.get("threshold", THRESHOLD), asked.get("target", TARGET), asked.get("migrations", MOST)
        )
        return plan_rebalance(self._loads, guests, has_room, limits)

    def _nodes(self) -> dict[str, Any]:
        """Return the hosts that guests may come to, or leave, by name."""
        enabled, up = element.ServiceState.ENABLED.value, element.ServiceState.ONLINE.value
        return {
            node.hostname: node
            for node in self.compute_model.get_all_compute_nodes().values()
            if node.status == enabled and node.state == up
        }

    def _instances(self) -> dict[str, tuple[Any, str]]:
        """Return all guests of the audit that are on a host, with that host."""
        instances = self.compute_model.get_all_instances().values()
        included = [one for one in instances if not getattr(one, "watcher_exclude", False)]
        return {one.uuid: (one, host) for one in included if (host := self._host_of(one.uuid)) is not None}

    def _host_of(self, uuid: str) -> str | None:
        """Return the host of a guest, None for one that is on none: Nova found none, or it was shelved."""
        try:
            return str(self.compute_model.get_node_by_instance_uuid(uuid).hostname)
        except exception.ComputeResourceNotFound:
            return None

    def _asked(self, query: str, *names: str) -> dict[tuple[str, ...], dict[int, float]]:
        """Return what a query finds by node, by the labels of these names."""
        found: dict[tuple[str, ...], dict[int, float]] = {}
        for one in self.datasource_backend.prometheus.query(query):
            node, labels = one.labels.get(NODE, ""), tuple(str(one.labels.get(name, "")) for name in names)
            if all(labels) and node.isdecimal():
                found.setdefault(labels, {})[int(node)] = float(one.value)
        return found


def _size(instance: Any, resource: str) -> int:
    """Return what an instance takes of a resource, as the model of the cluster names them."""
    return int(getattr(instance, "vcpus" if resource == "vcpu" else resource))
