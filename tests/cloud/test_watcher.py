"""The strategy in Watcher's own loader and models, with figures of a real Prometheus and the shipped rules.

The exporter's code makes the text that is scraped; what four agents would tell is made up.
"""

import http.server
import json
import os
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import msgspec
import pytest

pytest.importorskip("watcher", reason="make test-cloud sets up the services of clouds")
from oslo_config import cfg
from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import generate_latest
from watcher import conf as _watcher_conf  # noqa: F401 (its options)
from watcher.common import exception, utils
from watcher.decision_engine.loading import default as loading
from watcher.tests.unit.decision_engine.model import faker_cluster_state

from tests.unit.interfaces.real_prometheus import port_free
from vmplace.agent.state import AgentStatus, GuestStatus
from vmplace.interfaces.metrics import families

ROOT = Path(__file__).parents[2]
RULES = ROOT / "vmplace/interfaces/prometheus/vmplace.rules.yml"
HOSTS: Mapping[str, Mapping[str, float]] = {
    "hostname_0": {"INSTANCE_0": 0.3, "INSTANCE_1": 0.6},
    "hostname_1": {"INSTANCE_3": 0.1},
    "hostname_2": {"INSTANCE_4": 0.45},
    "hostname_3": {"INSTANCE_5": 0.2},
}
"""What guests press, on the hosts of Watcher's scenario 8."""


def exposition(pressing: Mapping[str, float]) -> bytes:
    """Return what the exporter of one host says."""
    status = AgentStatus("1", 1, "kvm", "auto", False, guests=dict(map(named, pressing.items())))
    reported = msgspec.to_builtins(status, str_keys=True)
    registry = CollectorRegistry()
    registry.register(mock.Mock(collect=lambda: families(reported), describe=lambda: []))
    text: bytes = generate_latest(registry)
    return text


def named(pressing: tuple[str, float]) -> tuple[str, GuestStatus]:
    """Return a guest that presses node 0, and a quarter as much node 1."""
    uuid, value = pressing
    guest = GuestStatus(
        "auto", "settled", 1, "libvirt", (0,), 1 << 30, None, None, 0.9, 0, 0, {}, (), uuid=uuid,
        pressure_by_node={0: value, 1: value / 4},
    )  # fmt: skip
    return f"instance-{uuid}", guest


class Exporters(http.server.BaseHTTPRequestHandler):
    """/HOST is that host's exporter."""

    def do_GET(self) -> None:
        body = exposition(HOSTS[self.path.strip("/")])
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def asked(port: int, query: str) -> list[Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={query}", timeout=10) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
        return found


@dataclass
class Prometheus:
    """One server; ``start`` and ``kill`` as often as wanted, its data stays."""

    port: int
    argv: list[str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start it, and wait until its rules have figures."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=log)
        wait_for_rules(self.port)

    def kill(self) -> None:
        """End it as a crash does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run Prometheus on the four exporters."""
    binary = shutil.which("prometheus", path=f"{ROOT}/build/tools:{os.environ['PATH']}")
    if binary is None:
        pytest.skip("prometheus is missing: make promtool")
    folder = tmp_path_factory.mktemp("prometheus")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporters)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    jobs = [
        {
            "job_name": host, "metrics_path": f"/{host}",
            "static_configs": [
                {
                    "targets": [f"127.0.0.1:{server.server_port}"],
                    "labels": {"fqdn": host, "instance": host, "node": host},
                },
            ],
        }
        for host in HOSTS
    ]  # fmt: skip
    every = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config = {"global": every, "rule_files": [str(RULES)], "scrape_configs": jobs}
    # JSON is YAML, too.
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = port_free()
    argv = [binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    running = Prometheus(port, [*argv, f"--web.listen-address=127.0.0.1:{port}"], folder / "log")
    running.start()
    try:
        yield running
    finally:
        running.kill()
        # No shutdown(): eventlet, which Watcher brings, makes its wait one without end.
        server.server_close()


def wait_for_rules(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if len(asked(port, "vmplace:guest_pressure:ratio")) == sum(map(len, HOSTS.values())):
                return
        except OSError:
            pass
        time.sleep(0.3)
    raise AssertionError("no recorded pressure")


@pytest.fixture
def strategy(prometheus: Prometheus) -> Any:
    """Return the strategy as Watcher's decision engine loads it, over scenario 8."""
    cfg.CONF([], project="watcher", default_config_files=[])
    cfg.CONF.set_override("host", "127.0.0.1", "prometheus_client")
    cfg.CONF.set_override("port", str(prometheus.port), "prometheus_client")
    cfg.CONF.set_override("datasources", ["prometheus"], "watcher_datasources")
    found = loading.DefaultStrategyLoader().load("vmplace_pressure", osc=mock.Mock())
    found._compute_model = faker_cluster_state.FakerModelCollector().generate_scenario_8_with_4_nodes()
    return found


def run(strategy: Any, **asked_for: Any) -> list[tuple[str, str, str]]:
    strategy.input_parameters = utils.Struct()
    strategy.input_parameters.update({"threshold": 0.8, "target": 0.75, "migrations": 5, **asked_for})
    solution = strategy.execute()
    reported = (one["input_parameters"] for one in solution.actions)
    return [(one["resource_id"], one["source_node"], one["destination_node"]) for one in reported]


def test_the_guest_that_is_enough_leaves_the_host_that_queues_most(strategy: Any) -> None:
    """Host 0 is at 0.9 of its bandwidth.  Either guest takes it below 0.75; the smaller burdens others less.

    Host 1 is least pressed: with all that the guest takes of both nodes, its 0.1 + 0.375 stay below 0.75.
    """
    assert run(strategy) == [("INSTANCE_0", "hostname_0", "hostname_1")]


def test_the_efficacy_is_stated(strategy: Any) -> None:
    run(strategy)
    reported = {one["name"]: one["value"] for one in strategy.solution.efficacy_indicators}
    assert reported["instance_migrations_count"] == 1
    assert reported["standard_deviation_before_audit"] == pytest.approx(0.309, abs=0.01)
    assert reported["standard_deviation_after_audit"] < reported["standard_deviation_before_audit"] / 1.5
    [overall] = strategy.solution.global_efficacy
    assert overall["name"] == "live_migrations_count"


def test_nobody_moves_where_no_host_is_pressed(strategy: Any) -> None:
    assert run(strategy, threshold=0.95) == []


def test_a_host_without_room_takes_nobody(strategy: Any) -> None:
    """The next best host takes a guest that presses less."""
    strategy.compute_model.get_node_by_name("hostname_1").memory = 1
    assert run(strategy) == [("INSTANCE_0", "hostname_0", "hostname_3")]


def test_a_disabled_host_is_left_alone(strategy: Any) -> None:
    strategy.compute_model.get_node_by_name("hostname_1").status = "disabled"
    assert not [one for one in run(strategy) if "hostname_1" in one]


def test_what_an_audit_may_ask_is_checked(strategy: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"threshold": 3}, strategy.get_schema())


def test_the_deschedulers_query_gives_one_share_for_each_node(prometheus: Prometheus) -> None:
    """The query of the shipped profile; the descheduler wants values from 0 to 1, by node name."""
    profile = (ROOT / "kubernetes/descheduler/policy.yaml").read_text()
    [query] = [line.partition("query:")[2].strip() for line in profile.splitlines() if "query:" in line]
    found = {
        one["metric"]["instance"]: float(one["value"][1]) for one in asked(prometheus.port, quote(query))
    }
    assert found.keys() == HOSTS.keys()
    assert all(0 <= value <= 1 for value in found.values())


def test_without_prometheus_nothing_is_planned_and_the_next_audit_goes_on(
    strategy: Any, prometheus: Prometheus
) -> None:
    """An audit that fails is Watcher's to repeat; half the figures would be worse than none."""
    prometheus.kill()
    try:
        # Watcher's own word for a data source that does not answer.
        with pytest.raises(exception.MetricNotAvailable):
            run(strategy)
        assert strategy.solution.actions == []
    finally:
        prometheus.start()
    assert run(strategy) == [("INSTANCE_0", "hostname_0", "hostname_1")]
