"""A real Prometheus (make promtool) with the shipped rules, which tests start and kill at will."""

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.interfaces.real_prometheus import port_free

ROOT = Path(__file__).parents[2]
RULES = ROOT / "vmplace/interfaces/prometheus/vmplace.rules.yml"
READY_S = 60.0


@dataclass(frozen=True)
class Target:
    """What is scraped of one host: ``address`` and ``path``."""

    address: str
    path: str = "/metrics"


@dataclass
class Prometheus:
    """One server; ``start`` and ``kill`` as often as wanted, its data stays.

    ``guests``: of how many the rules have figures once they work.
    """

    port: int
    guests: int
    argv: list[str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start it, and wait until its rules have figures."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=log)
        self._wait_for_rules()

    def kill(self) -> None:
        """End it as a crash does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def asked(self, query: str) -> list[Any]:
        """Return what a query finds."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?query={query}"
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own server
            found: list[Any] = json.load(answer)["data"]["result"]
            return found

    def _wait_for_rules(self) -> None:
        end = time.monotonic() + READY_S
        while time.monotonic() < end:
            try:
                if len(self.asked("vmplace:guest_pressure:ratio")) == self.guests:
                    return
            except OSError:
                pass
            time.sleep(0.3)
        raise AssertionError(f"no recorded pressure: {self.log.read_text()[-2000:]}")


@contextmanager
def prometheus_service(folder: Path, targets: Mapping[str, Target], guests: int) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes these hosts, with their names as the labels that schedulers ask for."""
    binary = shutil.which("prometheus", path=f"{ROOT}/build/tools:{os.environ['PATH']}")
    if binary is None:
        pytest.skip("prometheus is missing: make promtool")
    every = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    jobs = [_job(host, target) for host, target in targets.items()]
    config = {"global": every, "rule_files": [str(RULES)], "scrape_configs": jobs}
    # JSON is YAML, too.
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = port_free()
    argv = [binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    found = Prometheus(port, guests, [*argv, f"--web.listen-address=127.0.0.1:{port}"], folder / "log")
    try:
        found.start()
        yield found
    finally:
        found.kill()


def _job(host: str, target: Target) -> dict[str, Any]:
    labels = {"fqdn": host, "instance": host, "node": host}
    static = [{"targets": [target.address], "labels": labels}]
    return {"job_name": host, "metrics_path": target.path, "static_configs": static}
