"""The strategy as Watcher's decision engine loads it, over Watcher's own model of four hosts (scenario 8).

As a process of its own, ``python -m tests.cloud.watcher_process PORT`` audits once with figures of the
Prometheus at that port, and prints the plan.
"""

import json
import sys
from typing import Any
from unittest import mock

from oslo_config import cfg
from watcher import conf as _watcher_conf  # noqa: F401 (its options)
from watcher.common import utils
from watcher.decision_engine.loading import default as loading
from watcher.tests.unit.decision_engine.model import faker_cluster_state


def loaded(port: int) -> Any:
    """Return the strategy, whose data source is the Prometheus at ``port``."""
    cfg.CONF([], project="watcher", default_config_files=[])
    cfg.CONF.set_override("host", "127.0.0.1", "prometheus_client")
    cfg.CONF.set_override("port", str(port), "prometheus_client")
    cfg.CONF.set_override("datasources", ["prometheus"], "watcher_datasources")
    found = loading.DefaultStrategyLoader().load("vmplace_pressure", osc=mock.Mock())
    found._compute_model = faker_cluster_state.FakerModelCollector().generate_scenario_8_with_4_nodes()
    return found


def run(strategy: Any, **asked_for: Any) -> list[tuple[str, str, str]]:
    """Audit once; return the migrations: guest, from, to."""
    strategy.input_parameters = utils.Struct()
    strategy.input_parameters.update({"threshold": 0.8, "target": 0.75, "migrations": 5, **asked_for})
    solution = strategy.execute()
    reported = (one["input_parameters"] for one in solution.actions)
    return [(one["resource_id"], one["source_node"], one["destination_node"]) for one in reported]


if __name__ == "__main__":
    print(json.dumps(run(loaded(int(sys.argv[1])))))
