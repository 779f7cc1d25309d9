"""The real Placement service on a database in a folder, for tests; tokens without Keystone (noauth2)."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CONFIG = """\
[api]
auth_strategy = noauth2
[placement_database]
connection = sqlite:///{folder}/placement.db
sync_on_startup = True
"""
READY_S = 90.0
# Keystone takes the arguments of the process for its own.
SERVE = "import sys; from waitress import runner; argv, sys.argv[1:] = sys.argv[:], []; runner.run(argv)"


@dataclass
class PlacementService:
    """One service; ``start`` and ``kill`` as often as wanted, the database stays."""

    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None
    config: str = CONFIG
    application: str = "placement.wsgi.api:application"
    settings: str = "OS_PLACEMENT_CONFIG_DIR"

    @property
    def url(self) -> str:
        """Return where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.write_config()
        argv = [
            sys.executable,
            "-c",
            SERVE,
            f"--listen=127.0.0.1:{self.port}",
            self.application,
        ]
        env = dict(os.environ, **{self.settings: str(self.folder)})
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self.process.poll() is None:
            if self.answers():
                return
            time.sleep(0.1)
        raise AssertionError((self.folder / "log").read_text()[-3000:])

    def answers(self) -> bool:
        """Return whether somebody answers there, be it that there are several versions."""
        try:
            urllib.request.urlopen(self.url, timeout=10).close()  # noqa: S310 - our own server
        except urllib.error.HTTPError as err:
            return err.code == 300
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def write_config(self) -> None:
        """Write the settings."""
        (self.folder / "placement.conf").write_text(self.config.format(folder=self.folder))

    def kill(self) -> None:
        """End it as a machine that lost its power does."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def clouds(self, token: str | None = "admin") -> Path:  # noqa: S107 - noauth2's word for who may all
        """Return a clouds.yaml with one cloud, vmplace."""
        auth = {"endpoint": self.url} | ({"token": token} if token else {})
        cloud = {
            "auth_type": "admin_token" if token else "none",
            "auth": auth,
            "placement_endpoint_override": self.url,
        }
        path = self.folder / f"clouds-{token}.yaml"
        # JSON is YAML, too.
        path.write_text(json.dumps({"clouds": {"vmplace": cloud}}))
        return path


def free_port() -> int:
    """Return a port that nobody has now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def placement_service(folder: Path) -> Iterator[PlacementService]:
    """Run a service for a while."""
    service = PlacementService(folder, free_port())
    service.start()
    try:
        yield service
    finally:
        service.kill()
