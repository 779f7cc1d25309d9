"""How are commands run in the emulated host, and files put there and got back, without a network?

Through the QEMU guest agent on a virtio-serial port.  Output is collected inside and comes with the end of
the command; ``spawn`` writes it to a file inside that can be read at any time.
"""

import base64
import itertools
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.errors import LabCommandError, LabError, LabTimeoutError
from lab.json_socket import JsonSocket, connect

# virtio-serial moves a few hundred kB/s to 30 MB/s under emulation; chunks keep each request short.
CHUNK_BYTES = 1 << 20
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = [PATH, "HOME=/root", "LANG=C.UTF-8"]


@dataclass(frozen=True)
class GuestResult:
    """How a command in the emulated host ended; a signal N is returncode -N."""

    returncode: int
    stdout: str
    stderr: str


def _argv(command: str | Sequence[str]) -> list[str]:
    return ["sh", "-c", command] if isinstance(command, str) else [str(part) for part in command]


class Channel:
    """The connection to the guest agent of one emulated host; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = JsonSocket(connect(path, timeout=30.0), "the emulated host")
        self._serial = itertools.count(1)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def wait_ready(self, *, timeout: float) -> bool:
        """Synchronise with the agent inside; return whether it answered in time."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            if self._sync(min(2.0, left)):
                return True
        return False

    def _sync(self, timeout: float) -> bool:
        # 0xff makes the agent drop what half-sent requests left in its parser.
        token = int.from_bytes(os.urandom(4), "big")
        with self._socket.lock:
            self._socket.send({"execute": "guest-sync-delimited", "arguments": {"id": token}}, prefix=b"\xff")
            deadline = time.monotonic() + timeout
            try:
                while (left := deadline - time.monotonic()) > 0:
                    if self._socket.receive(timeout=left).get("return") == token:
                        return True
            except TimeoutError:
                pass
        return False

    def request(self, name: str, *, timeout: float = 60.0, **arguments: Any) -> Any:
        """Run one guest agent command and return its result."""
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        with self._socket.lock:
            self._socket.send({"execute": name, "arguments": named})
            try:
                answer = self._socket.receive(timeout=timeout)
            except TimeoutError as err:
                raise LabTimeoutError(f"the emulated host did not answer {name} in {timeout:.0f} s") from err
        if "error" in answer:
            hint = "`journalctl -u qemu-guest-agent` in the host may tell more"
            raise LabError(f"the emulated host refused {name}: {answer['error']['desc']}", hint=hint)
        return answer["return"]

    def start(
        self, command: str | Sequence[str], *, stdin: str | bytes | None = None, capture: bool = True
    ) -> int:
        """Start a command and return its pid inside."""
        argv = _argv(command)
        arguments: dict[str, Any] = {
            "path": argv[0],
            "arg": argv[1:],
            "env": ENVIRONMENT,
            "capture_output": capture,
        }
        if stdin is not None:
            data = stdin.encode() if isinstance(stdin, str) else stdin
            arguments["input_data"] = base64.b64encode(data).decode()
        pid: int = self.request("guest-exec", **arguments)["pid"]
        return pid

    def poll(self, pid: int) -> GuestResult | None:
        """Return the result of a started command, once; None while it runs."""
        status = self.request("guest-exec-status", pid=pid)
        if not status["exited"]:
            return None
        code = status.get("exitcode", -status.get("signal", 0))
        texts = (
            base64.b64decode(status.get(f"{name}-data", "")).decode(errors="replace")
            for name in ("out", "err")
        )
        return GuestResult(code, *texts)

    def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float = 120.0,
        check: bool = True,
        stdin: str | bytes | None = None,
    ) -> GuestResult:
        """Run a command (a string is for the shell) to its end; a timeout kills it and raises LabError."""
        argv = _argv(command)
        pid = self.start(argv, stdin=stdin)
        result = self._wait(pid, timeout)
        if result is None:
            self.start(["kill", "-KILL", str(pid)])
            raise LabTimeoutError(f"in the emulated host: {shlex.join(argv)[:200]} took over {timeout:.0f} s")
        if check and result.returncode:
            what = f"in the emulated host: {shlex.join(argv)[:200]}"
            raise LabCommandError(what, returncode=result.returncode, output=result.stderr or result.stdout)
        return result

    def _wait(self, pid: int, timeout: float) -> GuestResult | None:
        deadline = time.monotonic() + timeout
        pause = 0.005
        while (result := self.poll(pid)) is None and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
        return result

    def put(self, data: bytes, remote: str) -> None:
        """Write a file inside."""
        handle = self.request("guest-file-open", path=remote, mode="w")
        try:
            for offset in range(0, len(data), CHUNK_BYTES):
                chunk = base64.b64encode(data[offset : offset + CHUNK_BYTES]).decode()
                self.request("guest-file-write", handle=handle, buf_b64=chunk)
        finally:
            self.request("guest-file-close", handle=handle)

    def get(self, remote: str, *, offset: int = 0) -> bytes:
        """Return a file's content from an offset on."""
        handle = self.request("guest-file-open", path=remote, mode="r")
        parts = []
        try:
            if offset:
                self.request("guest-file-seek", handle=handle, offset=offset, whence="set")
            while True:
                part = self.request("guest-file-read", handle=handle, count=CHUNK_BYTES)
                parts.append(base64.b64decode(part["buf-b64"]))
                if part["eof"]:
                    return b"".join(parts)
        finally:
            self.request("guest-file-close", handle=handle)


class GuestProcess:
    """A command running in the emulated host; its output (both streams) is in a file there."""

    def __init__(self, channel: Channel, command: str | Sequence[str], name: str) -> None:
        self._channel = channel
        self._log = f"/run/{name}.log"
        # Readable from the start on, even before the shell has run.
        channel.put(b"", self._log)
        # The shell's exec keeps the pid, so kill() reaches the command itself.
        argv = ["sh", "-c", 'exec >"$0" 2>&1; exec "$@"', self._log, *_argv(command)]
        self.pid = channel.start(argv, capture=False)
        self._returncode: int | None = None

    def poll(self) -> int | None:
        """Return the return code, or None while the command runs."""
        if self._returncode is None:
            result = self._channel.poll(self.pid)
            self._returncode = result.returncode if result else None
        return self._returncode

    def wait(self, timeout: float = 120.0) -> int:
        """Wait for the end and return the return code."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise LabTimeoutError(
                    f"process {self.pid} in the emulated host still runs after {timeout:.0f} s"
                )
            time.sleep(0.05)
        return code

    def kill(self, signal: str = "TERM") -> None:
        """Send a signal."""
        self._channel.run(["kill", f"-{signal}", str(self.pid)], check=False)

    def output(self) -> str:
        """Return what the command has written so far."""
        return self._channel.get(self._log).decode(errors="replace")
