"""The strategy in Watcher's own loader and models, with figures of a real Prometheus and the shipped rules.

The exporter's code makes the text that is scraped; what four agents would tell is made up.
"""

import http.server
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import msgspec
import pytest

pytest.importorskip("watcher", reason="make test-cloud sets up the services of clouds")
from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import generate_latest
from watcher.common import exception

from tests.cloud.prometheus_service import Prometheus, Target, prometheus_service
from tests.cloud.watcher_process import loaded, run
from vmplace.agent.state import AgentStatus, GuestStatus
from vmplace.interfaces.metrics import families

ROOT = Path(__file__).parents[2]
HOSTS: Mapping[str, Mapping[str, float]] = {
    "hostname_0": {"INSTANCE_0": 0.3, "INSTANCE_1": 0.6},
    "hostname_1": {"INSTANCE_3": 0.1},
    "hostname_2": {"INSTANCE_4": 0.45},
    "hostname_3": {"INSTANCE_5": 0.2},
}
"""What guests press, on the hosts of Watcher's scenario 8."""
STRANGER = ("INSTANCE_0", 0.62)
"""QEMU that somebody starts by hand, with an instance's uuid."""


def exposition(pressing: Mapping[str, float], *, has_stranger: bool = False) -> bytes:
    """Return what the exporter of one host says."""
    guests = dict(map(named, pressing.items()))
    if has_stranger:
        guests["stranger"] = replace(named(STRANGER)[1], origin="kvm")
    status = AgentStatus("1", 1, "kvm", "auto", False, guests=guests)
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
    """/HOST is that host's exporter, /HOST+ the same with a stranger."""

    def do_GET(self) -> None:
        path = self.path.strip("/")
        body = exposition(HOSTS[path.rstrip("+")], has_stranger=path.endswith("+"))
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def scraping(folder: Path, stranger_at: str = "") -> Iterator[Prometheus]:
    """Run Prometheus on the four exporters, one of which may have a stranger."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporters)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    paths = {host: f"/{host}+" if host == stranger_at else f"/{host}" for host in HOSTS}
    targets = {host: Target(f"127.0.0.1:{server.server_port}", path) for host, path in paths.items()}
    guests = sum(map(len, HOSTS.values())) + bool(stranger_at)
    with prometheus_service(folder, targets, guests) as running:
        yield running
    # No shutdown(): eventlet, which Watcher brings, makes its wait one without end.
    server.server_close()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run Prometheus on the four exporters."""
    with scraping(tmp_path_factory.mktemp("prometheus")) as running:
        yield running


@pytest.fixture
def strategy(prometheus: Prometheus) -> Any:
    return loaded(prometheus.port)


def test_the_guest_that_is_enough_leaves_the_host_that_queues_most(strategy: Any) -> None:
    """Host 0 is at 0.9 of its bandwidth.  Either guest takes it below 0.75; the smaller burdens others less.

    Host 1 is least pressed: with all that the guest takes of both nodes, its 0.1 + 0.375 stay below 0.75.
    """
    assert run(strategy) == [("INSTANCE_0", "hostname_0", "hostname_1")]


@pytest.mark.parametrize("host", ["hostname_0", "hostname_1"])
def test_who_starts_qemu_with_an_instances_uuid_does_not_choose_who_moves(tmp_path: Path, host: str) -> None:
    """With what the stranger presses counted as instance 0's, instance 1 would be the smaller one."""
    with scraping(tmp_path, stranger_at=host) as running:
        moves = run(loaded(running.port), migrations=1)
    assert [(uuid, source) for uuid, source, _ in moves] == [("INSTANCE_0", "hostname_0")]


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


def test_a_guest_that_is_on_no_host_ends_no_audit(strategy: Any) -> None:
    """Watcher's model keeps one whose boot failed: Nova names no host for it."""
    from watcher.decision_engine.model import element

    strategy.compute_model.add_instance(element.Instance(uuid="INSTANCE_9", state="error"))
    assert run(strategy) == [("INSTANCE_0", "hostname_0", "hostname_1")]


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
    reported = prometheus.asked(quote(query))
    found = {one["metric"]["instance"]: float(one["value"][1]) for one in reported}
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
