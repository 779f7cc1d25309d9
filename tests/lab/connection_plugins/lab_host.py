"""Ansible's way into the emulated host, which has no network: the socket of tests/lab/ansible_host.py.

Run by Ansible's own Python, so nothing of this project is imported.
"""

import base64
import json
import os
import socket
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: lab_host
short_description: run commands in the emulated host of vmplace's lab
description: Through a socket whose path is in VMPLACE_LAB_HOST.
author: vmplace
options: {}
"""


class Connection(ConnectionBase):  # type: ignore[misc]
    """One request, one answer; each by a connection of its own."""

    transport = "lab_host"
    has_pipelining = True

    def _connect(self) -> "Connection":
        self._connected = True
        return self

    def close(self) -> None:
        """Close nothing: no connection lasts."""
        self._connected = False

    def exec_command(
        self, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        """Run a command by the shell."""
        del sudoable
        answer = self._ask(run=cmd, stdin=base64.b64encode(in_data or b"").decode())
        return answer["rc"], answer["out"].encode(), answer["err"].encode()

    def put_file(self, in_path: str, out_path: str) -> None:
        """Copy a file to the host."""
        self._ask(put=out_path, data=base64.b64encode(Path(in_path).read_bytes()).decode())

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Copy a file from the host."""
        Path(out_path).write_bytes(base64.b64decode(self._ask(get=in_path)["data"]))

    def _ask(self, **request: str) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.environ["VMPLACE_LAB_HOST"])
            with connection.makefile("rwb") as stream:
                stream.write(json.dumps(request).encode() + b"\n")
                stream.flush()
                answer: dict[str, Any] = json.loads(stream.readline())
        if "error" in answer:
            raise AnsibleConnectionFailure(answer["error"])
        return answer
