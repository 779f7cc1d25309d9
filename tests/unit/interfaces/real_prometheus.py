"""A real Prometheus (make promtool) that scrapes an exporter, with the rules that are shipped."""

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "vmplace/interfaces/prometheus"
DASHBOARDS = [json.loads(path.read_text()) for path in sorted(SHIPPED.glob("*.dashboard.json"))]
PANELS = {
    f"{one['title']}: {panel['title']}": panel["targets"][0]["expr"]
    for one in DASHBOARDS
    for panel in one["panels"]
}
CONFIG = """
global: {{scrape_interval: {every_ms}ms, scrape_timeout: {every_ms}ms, evaluation_interval: {every_ms}ms}}
rule_files: [{rules}]
scrape_configs:
  - job_name: vmplace
    static_configs: [{{targets: ["{target}"]}}]
"""
READY_S = 200.0


@contextmanager
def scraping(folder: Path, target: str, *, every_s: float) -> Iterator[str]:
    """Yield the URL of a Prometheus that has scraped ``target`` (HOST:PORT) several times."""
    binary = shutil.which("prometheus", path=f"{ROOT}/build/tools:{os.environ['PATH']}")
    if binary is None and os.environ.get("CI"):
        pytest.fail("prometheus is missing: make promtool")
    if binary is None:
        pytest.skip("prometheus is missing: make promtool")
    text = CONFIG.format(rules=SHIPPED / "vmplace.rules.yml", target=target, every_ms=int(every_s * 1000))
    (config := folder / "prometheus.yml").write_text(text)
    listen = f"127.0.0.1:{port_free()}"
    argv = [binary, f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*argv, f"--web.listen-address={listen}"], stderr=log, stdout=log)
    try:
        wait_for_rates(f"http://{listen}", process, folder / "log")
        yield f"http://{listen}"
    finally:
        process.terminate()
        process.wait(60)


def port_free() -> int:
    """Return a port that nobody listens on."""
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def asked(url: str, path: str, **words: str) -> Any:
    """Return what Prometheus answers."""
    query = urllib.parse.urlencode(words)
    with urllib.request.urlopen(f"{url}{path}?{query}", timeout=60) as answer:  # noqa: S310 - our own server
        return json.loads(answer.read())["data"]


def wait_for_rates(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until recorded rates are there: two scrapes, and a rule's evaluation after them."""
    end = time.monotonic() + READY_S
    while time.monotonic() < end and process.poll() is None:
        try:
            if asked(url, "/api/v1/query", query="instance:vmplace_budget_use:ratio5m")["result"]:
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.2)
    raise AssertionError(log.read_text()[-3000:])


def series(url: str, query: str) -> list[Mapping[str, Any]]:
    """Return what a query finds, with the dashboard's choice of hosts on all."""
    words = query.replace("$instance", ".*")
    found: list[Mapping[str, Any]] = asked(url, "/api/v1/query", query=words)["result"]
    return found


def found_soon(url: str, query: str, seconds: float = 60) -> list[Mapping[str, Any]]:
    """Return what a query finds within a while: some series begin after a few windows."""
    end = time.monotonic() + seconds
    while not (found := series(url, query)) and time.monotonic() < end:
        time.sleep(0.3)
    return found
