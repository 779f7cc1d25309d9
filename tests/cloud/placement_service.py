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


@dataclass
class PlacementService:
    """One service; ``start`` and ``kill`` as often as wanted, the database stays."""

    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        """Return where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        (self.folder / "placement.conf").write_text(CONFIG.format(folder=self.folder))
        argv = [
            sys.executable,
            "-m",
            "waitress",
            f"--listen=127.0.0.1:{self.port}",
            "placement.wsgi.api:application",
        ]
        env = dict(os.environ, OS_PLACEMENT_CONFIG_DIR=str(self.folder))
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(self.url, timeout=10).close()  # noqa: S310 - our own server
                return
            time.sleep(0.1)
        raise AssertionError((self.folder / "log").read_text()[-3000:])

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


@contextlib.contextmanager
def placement_service(folder: Path) -> Iterator[PlacementService]:
    """Run a service for a while."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        service = PlacementService(folder, sock.getsockname()[1])
    service.start()
    try:
        yield service
    finally:
        service.kill()
