"""How do we talk JSON with QEMU's monitor and with the guest agent, both on a UNIX socket?"""

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from lab.errors import GoneError

Json = dict[str, Any]
GONE_CURE = "the host's console log may tell why; boot it again"


def connect(path: Path, *, timeout: float) -> socket.socket:
    """Connect to a UNIX socket that may not be there yet, whose path may exceed the 107 bytes that fit."""
    deadline = time.monotonic() + timeout
    while True:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
            try:
                stream.connect(f"/proc/self/fd/{folder}/{path.name}")
            finally:
                os.close(folder)
            return stream
        except (FileNotFoundError, ConnectionRefusedError):
            stream.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class JsonSocket:
    """A stream of one JSON object per line in each direction; one request at a time."""

    def __init__(self, stream: socket.socket, peer: str) -> None:
        self._stream = stream
        self._peer = peer
        self._buffer = b""
        self.lock = threading.RLock()

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def send(self, message: Json, *, prefix: bytes = b"") -> None:
        """Send one object."""
        try:
            self._stream.sendall(prefix + json.dumps(message).encode() + b"\n")
        except OSError as err:
            raise GoneError(f"{self._peer} is gone: {err}", hint=GONE_CURE) from err

    def receive(self, *, timeout: float) -> Json:
        """Return the next object; raises TimeoutError, or LabError when the peer is gone."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            self._fill(deadline)
        line, _, self._buffer = self._buffer.partition(b"\n")
        # The guest agent puts 0xff before an answer to a delimited sync.
        line = line.rpartition(b"\xff")[2]
        if not line.strip():
            return self.receive(timeout=max(0.001, deadline - time.monotonic()))
        message: Json = json.loads(line)
        return message

    def _fill(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer from {self._peer}")
        self._stream.settimeout(left)
        try:
            data = self._stream.recv(1 << 20)
        except TimeoutError as err:
            raise TimeoutError(f"no answer from {self._peer}") from err
        except OSError as err:
            raise GoneError(f"{self._peer} is gone: {err}", hint=GONE_CURE) from err
        if not data:
            raise GoneError(f"{self._peer} closed the connection", hint=GONE_CURE)
        self._buffer += data
