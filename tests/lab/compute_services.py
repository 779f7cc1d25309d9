"""OpenStack of Debian for one compute node: Nova, Placement, Glance, RabbitMQ and MariaDB.

They run in the lab's tree, in a network of their own.  Keystone's middleware is replaced by one that trusts
everybody, and Neutron by one that has no networks.
"""

import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import trees
from lab.newer_nova import newer_nova
from lab.private_network import PrivateNetwork
from lab.progress import Progress
from lab.toolbox import enter_command, started

FILES = Path(__file__).parent / "compute_node"
MICROVERSION = "2.96"
NOVA, GLANCE, PLACEMENT = 8774, 9292, 8778
READY_S = 300


def until(is_so: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Wait until it is so."""
    end = time.monotonic() + timeout_s
    with Progress().step(what):
        while not is_so():
            assert time.monotonic() < end, f"not in time: {what}"
            time.sleep(1)


@dataclass(frozen=True)
class Services:
    """The services as they run; ``folder`` has their data, and a log of each in ``logs``."""

    folder: Path
    network: PrivateNetwork
    process: "subprocess.Popen[bytes]"

    def ask(self, method: str, port: int, path: str, body: Any = None, *, raw: bytes = b"") -> Any:
        """Return a service's answer; a JSON body, or raw bytes."""
        data = raw or (json.dumps(body).encode() if body is not None else None)
        kind = "application/octet-stream" if raw else "application/json"
        headers = {"Content-Type": kind, "OpenStack-API-Version": f"compute {MICROVERSION}"}
        if port == PLACEMENT:
            headers |= {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.36"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
        answer = self.network.call(lambda: urllib.request.urlopen(request, timeout=120).read())  # noqa: S310
        return json.loads(answer) if answer else None

    def nova(self, method: str, path: str, body: Any = None) -> Any:
        """Return Nova's answer."""
        return self.ask(method, NOVA, f"/v2.1{path}", body)

    def answers(self) -> bool:
        """Tell whether Nova's API is up."""
        assert self.process.poll() is None, self.last_words()
        with contextlib.suppress(OSError):
            return bool(self.nova("GET", "/flavors"))
        return False

    def last_words(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(
            f"== {log.name}\n{log.read_text(errors='replace')[-1500:]}"
            for log in sorted(self.folder.glob("logs/*.log"))
        )

    def kill(self) -> None:
        """End all of them, as a machine that lost its power does."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def compute_services(folder: Path, network: PrivateNetwork) -> Iterator[Services]:
    """Run the services for the length of the block."""
    progress = Progress()
    tree = newer_nova(trees.cloud_services(progress), progress)
    shutil.copytree(FILES, folder, dirs_exist_ok=True)
    (folder / "etc-hosts").write_text("127.0.0.1 localhost\n")
    binds = {folder: Path("/run/services"), folder / "etc-hosts": Path("/etc/hosts")}
    command = network.command(enter_command(tree, ["sh", "/run/services/services.sh"], binds=binds))
    with (folder / "log").open("wb") as log, started(command, stdout=log, stderr=log) as process:
        services = Services(folder, network, process)
        until(services.answers, "OpenStack's services answer", READY_S)
        yield services
