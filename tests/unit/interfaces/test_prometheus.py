"""A real Prometheus scrapes the real exporter of a running agent: each panel and each rule finds its series.

Only the agent's host and sensor are made up.  Takes some 10 s, most of it Prometheus' own start.
"""

import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.agent_world import World, guest
from tests.unit.interfaces.real_prometheus import PANELS, asked, found_soon, scraping
from tests.unit.interfaces.served_agent import running
from vmplace.actuation.result import ActuationResult, Copies
from vmplace.sampling.guest_cost import MemoryRate
from vmplace.sampling.served import ServedAccesses
from vmplace.topology.guest import GuestTopology
from vmplace.topology.host import HostTopology

ROOT = Path(__file__).parents[3]


class Faster:
    """Counters that see a guest run faster once its memory is on node 1."""

    name = "faster"

    def __init__(self, world: World) -> None:
        self._world = world

    def cost(self, of: GuestTopology) -> float | None:
        return 1.0 if self._world.nid_of.get(of.name) == 1 else 2.0

    def rate(self, of: GuestTopology) -> MemoryRate | None:
        return MemoryRate(1.0, 10.0, lar=0.75)

    def forget(self, of: GuestTopology) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class Refusing(World):
    """A world in which a page of each move is in use by the kernel."""

    def apply(self, *args: Any) -> ActuationResult:
        """Move, and refuse one page."""
        done = super().apply(*args)
        some = tuple(replace(one, busy=1) for one in done.outcomes)
        return replace(done, outcomes=some)

    def host(self) -> HostTopology:
        """Return a host whose bandwidths were measured: of the 6,400 MB/s that each guest asks a tenth."""
        return replace(super().host(), bandwidths=dict.fromkeys(((0, 0), (1, 1)), 6_400_000_000))


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run agent and exporter; return where it listens."""
    path = tmp_path_factory.mktemp("agent") / "s"
    served = ServedAccesses(1_000_000, (0, 0, 50, 150, 0), (0, 0, 100, 300, 0), (0, 0, 10_000, 60_000, 0))
    world = Refusing([guest("db1"), guest("web")], served=served, copied={"db1": Copies(8192, 4096)})
    world.counters = Faster(world)
    agent = world.agent(window_ms=50)
    argv = [sys.executable, "-c", "from vmplace.interfaces.cli import main; main()", "metrics", "serve"]
    with running(world, agent, path):
        process = subprocess.Popen(
            [*argv, "--listen", "127.0.0.1:0", "--socket", str(path)],
            stderr=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert process.stderr
        yield urllib.parse.urlsplit(process.stderr.readline().split()[-1]).netloc
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.fixture(scope="module")
def prometheus(exporter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a Prometheus that has scraped the exporter several times; return its URL."""
    with scraping(tmp_path_factory.mktemp("prometheus"), exporter, every_s=0.5) as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("title", PANELS)
def test_each_panel_has_a_series(prometheus: str, title: str) -> None:
    assert found_soon(prometheus, PANELS[title]), PANELS[title]


def test_each_rule_works_on_what_is_exported(prometheus: str) -> None:
    groups = asked(prometheus, "/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    names = set(asked(prometheus, "/api/v1/label/__name__/values"))
    recorded = {rule["name"] for rule in rules if rule["type"] == "recording"}
    assert recorded <= names
    alerts = [rule["query"] for rule in rules if rule["type"] == "alerting"]
    asked_for = {word for query in alerts for word in query.replace("{", " ").split() if "vmplace_" in word}
    assert asked_for and asked_for <= names


def test_two_guests_that_ask_a_tenth_each_press_their_host_by_a_fifth(prometheus: str) -> None:
    """Ten cache lines a microsecond are 640 MB/s; both guests end on node 1."""
    query = 'sum(vmplace_guest_memory_pressure_ratio{numa_node="1"}) == 0.2'
    assert found_soon(prometheus, query)
    mean = float(found_soon(prometheus, "vmplace:host_pressure:ratio")[0]["value"][1])
    assert 0 < mean < 0.2001


def test_the_states_and_labels_are_those_of_the_agent(prometheus: str) -> None:
    reported = found_soon(prometheus, 'vmplace_guest_info{domain="db1"}')
    assert reported[0]["metric"]["origin"] == "libvirt"
    refused = found_soon(prometheus, "sum by (reason) (vmplace_guest_refused_bytes_total) > 0")
    assert "busy" in {one["metric"]["reason"] for one in refused}
