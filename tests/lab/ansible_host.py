"""The role's playbooks, run by Ansible out here on the emulated host, through a socket that this serves."""

import base64
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer
from typing import Any

from lab.errors import LabError
from lab.machine import LabHost

ROOT = Path(__file__).parents[2]
PLAYBOOK = ROOT / ".venv-ansible/bin/ansible-playbook"
PLAYBOOKS = ROOT / "ansible/roles/vmplace/molecule/default"
COMMAND_S = 900
INVENTORY = """host1 ansible_connection=lab_host ansible_python_interpreter=/usr/bin/python3 \
ansible_remote_tmp=/tmp/.ansible
"""
RECAP = re.compile(r"^host1 +: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Ansible:
    """Ansible, with the emulated host as its ``host1``."""

    folder: Path
    environment: dict[str, str]

    def run(self, playbook: str) -> dict[str, int]:
        """Run one of the role's playbooks; return what it counted: ok, changed, failed …"""
        command = [str(PLAYBOOK), "-i", str(self.folder / "inventory"), str(PLAYBOOKS / f"{playbook}.yml")]
        log = self.folder / f"{playbook}.log"
        with log.open("wb") as sink:
            done = subprocess.run(
                command, env=self.environment, cwd=self.folder, check=False, stdout=sink, stderr=sink
            )
        printed = log.read_text()
        print(printed)
        recap = RECAP.search(printed)
        assert done.returncode == 0 and recap, f"{playbook}: {printed[-3000:]}"
        return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", recap[1])}


@contextmanager
def ansible_on(host: LabHost, folder: Path, package: Path) -> Iterator[Ansible]:
    """Serve the host to Ansible's connection plugin for the length of the block."""
    (folder / "inventory").write_text(INVENTORY)
    environment = {
        "ANSIBLE_CONNECTION_PLUGINS": str(ROOT / "tests/lab/connection_plugins"),
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_ROLES_PATH": str(ROOT / "ansible/roles"),
        "VMPLACE_DEB": str(package),
        "VMPLACE_LAB_HOST": str(folder / "host.sock"),
    }
    with _Server(str(folder / "host.sock"), _handler(host)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Ansible(folder, dict(os.environ) | environment)
        server.shutdown()


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


def _handler(host: LabHost) -> type[StreamRequestHandler]:
    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            try:
                answer = _answer(host, json.loads(self.rfile.readline()))
            except LabError as err:
                answer = {"error": str(err)}
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    return Handler


def _answer(host: LabHost, request: dict[str, str]) -> dict[str, Any]:
    if "put" in request:
        host.put(base64.b64decode(request["data"]), request["put"])
        return {}
    if "get" in request:
        return {"data": base64.b64encode(host.get(request["get"])).decode()}
    stdin = base64.b64decode(request["stdin"])
    done = host.run(["sh", "-c", request["run"]], timeout=COMMAND_S, check=False, input=stdin)
    return {"rc": done.returncode, "out": done.stdout, "err": done.stderr}
