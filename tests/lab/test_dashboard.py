"""A real Prometheus scrapes the real agent of the emulated host: each panel's query gives a series.

The agent samples by KVM and by IBS, has what stands for counters there, and moves a guest's memory home.
Prometheus runs outside, where it is no burden: what the exporter inside answers is relayed as it is.
"""

import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import prometheus_client
import pytest

from lab.machine import LabHost, boot_host
from lab.progress import Progress
from lab.scenario import read_scenario
from lab.scenario_prepare import prepare_stage
from tests.lab.test_agent import until
from tests.unit.interfaces.test_prometheus import PANELS, prometheus, series

__all__ = ["prometheus"]
pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

SCENARIO = read_scenario("one-guest")
CLIENT = Path(prometheus_client.__file__).parent
FILES = {
    f"/usr/lib/python3/dist-packages/prometheus_client/{path.relative_to(CLIENT)}": path
    for path in CLIENT.rglob("*.py")
}
# Slowly: a guest's cost is judged against that of four windows before its pages moved.
CONFIG = """
source = "kvm+ibs"
window_ms = 500
longest_rest_ms = 500
[budget]
mb_per_s = 8
[trial]
counters = "meter"
meter_guests = { small = 1 }
"""
CALIBRATE = """set -e; kill -STOP $(pidof qemu-system-x86_64)
vmplace calibrate --duration-ms 200
kill -CONT $(pidof qemu-system-x86_64)"""
# Python would take a second of the emulated CPU to begin, each time.
SCRAPE = """my $exporter = IO::Socket::INET->new("127.0.0.1:9755") or exit 1;
print $exporter "GET /metrics HTTP/1.0\\r\\n\\r\\n"; local $/; print <$exporter> =~ /\\r\\n\\r\\n(.*)/s"""
PANEL_S = 480.0


def scrape(host: LabHost) -> str:
    """Return what the exporter inside answers, or nothing."""
    return host.run(["perl", "-MIO::Socket::INET", "-e", SCRAPE], check=False, timeout=120).stdout


class Relay(http.server.ThreadingHTTPServer):
    """Answers each request with what the exporter inside answered last."""

    def __init__(self, host: LabHost) -> None:
        self._host, self.text = host, ""
        super().__init__(("127.0.0.1", 0), Answer)

    def look(self, done: threading.Event) -> None:
        """Ask the exporter again and again."""
        while not done.is_set():
            self.text = scrape(self._host) or self.text
            done.wait(2)


class Answer(http.server.BaseHTTPRequestHandler):
    """Passes on what the exporter said."""

    def do_GET(self) -> None:
        """Answer a scrape."""
        assert isinstance(self.server, Relay)
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(self.server.text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    """Boot a host whose guest has its memory on the wrong node, with figures of its memory."""
    stage = prepare_stage(SCENARIO, Progress())
    files = {**stage.files, **FILES}
    with boot_host(stage.topology, meter=True, snapshot=stage.snapshot, files=files) as booted:
        booted.run("mkdir -p /etc/vmplace; echo 0 >/proc/sys/kernel/numa_balancing")
        booted.run(CALIBRATE, timeout=300)
        booted.run("vmp-meter time")
        booted.put(CONFIG.encode(), "/etc/vmplace/vmplace.toml")
        yield booted


@pytest.fixture(scope="module")
def exporter(host: LabHost) -> Iterator[str]:
    """Run agent and exporter; return where the relay listens."""
    agent = host.spawn(["vmplace", "agent"])
    host.spawn(["vmplace", "metrics", "serve"])
    relay, done = Relay(host), threading.Event()
    threads = [
        threading.Thread(target=relay.serve_forever),
        threading.Thread(target=relay.look, args=(done,)),
    ]
    for thread in threads:
        thread.start()
    try:
        until(lambda: "vmplace_up 1.0" in relay.text, "a scrape of the agent came", agent)
        yield f"127.0.0.1:{relay.server_address[1]}"
    finally:
        done.set()
        relay.shutdown()
        for thread in threads:
            thread.join()
        relay.server_close()
    agent.kill("TERM")
    assert agent.wait(timeout=120) == 0


def test_each_panel_has_a_series_of_the_labs_agent(prometheus: str) -> None:
    """What each query finds comes and goes with the guest's accesses: once is enough."""
    end, lacking = time.monotonic() + PANEL_S, list(PANELS)
    while lacking and time.monotonic() < end:
        lacking = [title for title in lacking if not series(prometheus, PANELS[title])]
        time.sleep(1)
    assert lacking == []
