"""Watcher is killed while it reads figures: agents keep their step, and the next Watcher has the same plan.

Agents, exporters, Prometheus, its rules and Watcher's own code are real, each Watcher in a process of its
own.  Only the agents' hosts and guests are made up.

A stand-in between Watcher and Prometheus holds an answer up once it has begun: Watcher waits, and so does the
connection to Prometheus, which the kill closes.  Nobody else is held up: answers are so small that Prometheus
has sent them whole by then, and it scrapes exporters at its own interval, whoever asks it.
"""

import contextlib
import http.server
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.cloud.prometheus_service import Prometheus, Target, prometheus_service
from tests.unit.agent.agent_world import World, guest
from tests.unit.interfaces.served_agent import running
from vmplace.agent.loop import Agent
from vmplace.sampling.guest_cost import MemoryRate
from vmplace.sampling.sample import SampleBatch
from vmplace.topology.guest import GuestTopology
from vmplace.topology.host import HostTopology

if importlib.util.find_spec("watcher") is None:
    pytest.skip("make test-cloud sets up the services of clouds", allow_module_level=True)

ROOT = Path(__file__).parents[2]
PRESSING = {"hostname_0": {"INSTANCE_0": 0.3, "INSTANCE_1": 0.6}, "hostname_1": {"INSTANCE_3": 0.1}}
"""What guests take of node 1, on two hosts of Watcher's scenario 8.  The others have no agent."""
PLAN = [["INSTANCE_0", "hostname_0", "hostname_1"]]
"""By hand: 0.9 is above 0.8; either guest takes it below 0.75, and the smaller burdens others less."""
LINE_BYTES, LIMIT = 64, 6_400_000_000
START_S = 120.0
BEGUN_BYTES = 20
"""Of an answer; each has more."""
READS, WITHIN_S = 10, 30.0
"""How often an agent has to read guests: windows of 50 ms make it half a second, where nobody is busy."""


class Rates:
    """Counters that see guests access memory as PRESSING says."""

    name = "made up"

    def cost(self, of: GuestTopology) -> float | None:
        return 1.0

    def rate(self, of: GuestTopology) -> MemoryRate | None:
        [share] = [guests[of.name] for guests in PRESSING.values() if of.name in guests]
        return MemoryRate(1.0, share * LIMIT / LINE_BYTES / 1e6)

    def forget(self, of: GuestTopology) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class PressedHost(World):
    """A host whose bandwidths are known; ``reads``: how often the agent read a guest."""

    reads: int = 0

    def host(self) -> HostTopology:
        return replace(super().host(), bandwidths=dict.fromkeys(((0, 0), (1, 1)), LIMIT))

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        self.reads += 1
        return super().harvest(guest)


class BegunAnswers(http.server.BaseHTTPRequestHandler):
    """In front of Prometheus: begins the answer to a query that has the word, and waits."""

    upstream, word = 0, ""
    has_begun, is_gone = threading.Event(), threading.Event()

    def do_GET(self) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.upstream}{self.path}", timeout=20) as answer:
            self.send_response(200)
            for name in {"Content-Type", "Content-Length"} & set(answer.headers):
                self.send_header(name, answer.headers[name])
            self.end_headers()
            if self.word in self.path:
                self.wfile.write(answer.read(BEGUN_BYTES))
                self._wait()
            else:
                shutil.copyfileobj(answer, self.wfile)

    def _wait(self) -> None:
        """Wait until who asked is gone; its kernel may reset the connection."""
        self.has_begun.set()
        with contextlib.suppress(ConnectionError):
            self.connection.recv(1)
        self.is_gone.set()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@dataclass(frozen=True)
class Cloud:
    """Hosts with their agents and exporters, and a Prometheus that scrapes these."""

    hosts: dict[str, PressedHost]
    agents: dict[str, Agent]
    exporters: "dict[str, subprocess.Popen[str]]"
    prometheus: Prometheus


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    hosts, agents = dict[str, PressedHost](), dict[str, Agent]()
    exporters, targets = dict[str, "subprocess.Popen[str]"](), dict[str, Target]()
    with ExitStack() as stack:
        for name, guests in PRESSING.items():
            running_there = [replace(guest(uuid), uuid=uuid) for uuid in guests]
            world = PressedHost(running_there, nid_of=dict.fromkeys(guests, 1), counters=Rates())
            hosts[name], agents[name] = world, world.agent(window_ms=50)
            socket = stack.enter_context(running(world, agents[name], tmp_path / name))
            exporters[name], targets[name] = stack.enter_context(exporter(socket))
        count = sum(map(len, PRESSING.values()))
        prometheus = stack.enter_context(prometheus_service(tmp_path, targets, count))
        yield Cloud(hosts, agents, exporters, prometheus)


@contextmanager
def exporter(socket: Path) -> "Iterator[tuple[subprocess.Popen[str], Target]]":
    run = "from vmplace.interfaces.cli import main; main()"
    argv = [sys.executable, "-c", run, "metrics", "serve", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen([*argv, "--socket", str(socket)], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stderr
    try:
        yield process, Target(urllib.parse.urlsplit(process.stderr.readline().split()[-1]).netloc)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextmanager
def watcher(port: int, log: Path) -> "Iterator[subprocess.Popen[str]]":
    """Start a Watcher that asks the Prometheus at ``port``; it is gone at the end."""
    argv = [sys.executable, "-m", "tests.cloud.watcher_process", str(port)]
    with (
        log.open("w") as out,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=out, text=True, cwd=ROOT) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def planned(port: int, log: Path) -> list[list[str]]:
    """Return the plan of a new Watcher."""
    with watcher(port, log) as process:
        out, _ = process.communicate(timeout=START_S)
    assert process.returncode == 0, log.read_text()
    found: list[list[str]] = json.loads(out)
    return found


@contextmanager
def begun_answers(port: int, word: str) -> Iterator[int]:
    BegunAnswers.upstream, BegunAnswers.word = port, word
    BegunAnswers.has_begun.clear()
    BegunAnswers.is_gone.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), BegunAnswers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def go_on(cloud: Cloud) -> bool:
    """Return whether each agent reads its guests from now on; one that stopped does not, however long."""
    wanted = {name: host.reads + READS for name, host in cloud.hosts.items()}
    end = time.monotonic() + WITHIN_S
    while time.monotonic() < end:
        if all(host.reads >= wanted[name] for name, host in cloud.hosts.items()):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("word", ["vmplace_memory_pressure", "guest_node_pressure"])
def test_a_watcher_that_is_killed_while_it_reads_leaves_agents_alone_and_the_next_one_plans(
    cloud: Cloud, tmp_path: Path, word: str
) -> None:
    log = tmp_path / "watcher.log"
    with begun_answers(cloud.prometheus.port, word) as port, watcher(port, log) as process:
        assert BegunAnswers.has_begun.wait(START_S), log.read_text()
        assert go_on(cloud)
        assert process.poll() is None and not BegunAnswers.is_gone.is_set()
        process.send_signal(signal.SIGKILL)
        assert BegunAnswers.is_gone.wait(WITHIN_S) and go_on(cloud)
        assert process.communicate(timeout=WITHIN_S)[0] == "" and process.returncode == -signal.SIGKILL
    assert all(one.poll() is None for one in cloud.exporters.values())
    assert planned(cloud.prometheus.port, log) == PLAN


def test_a_new_watcher_plans_by_what_changed_while_there_was_none(cloud: Cloud, tmp_path: Path) -> None:
    """Without the larger guest its host is at 0.3, which nobody has to relieve."""
    assert planned(cloud.prometheus.port, tmp_path / "watcher.log") == PLAN
    cloud.hosts["hostname_0"].running[:] = [
        one for one in cloud.hosts["hostname_0"].running if one.name != "INSTANCE_1"
    ]
    end = time.monotonic() + 30
    while len(cloud.prometheus.asked("vmplace:guest_pressure:ratio")) > 2:
        assert time.monotonic() < end
        time.sleep(0.3)
    assert planned(cloud.prometheus.port, tmp_path / "watcher.log") == []
    assert set(cloud.agents["hostname_0"].status.guests) == {"INSTANCE_0"} and go_on(cloud)
