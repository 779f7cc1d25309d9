"""QEMU's machine protocol (QMP), as far as the lab needs it."""

import time
from pathlib import Path
from typing import Any

from lab.errors import LabError, LabTimeoutError
from lab.json_socket import JsonSocket, connect


class Monitor:
    """A QMP connection; events are skipped."""

    def __init__(self, path: Path, *, timeout: float = 30.0) -> None:
        self._socket = JsonSocket(connect(path, timeout=timeout), "the emulator's monitor")
        self._socket.receive(timeout=timeout)
        self.command("qmp_capabilities")

    def command(self, name: str, *, timeout: float = 120.0, **arguments: Any) -> Any:
        """Run a command (underscores in argument names stand for dashes) and return its result.

        Raises LabTimeoutError if QEMU does not answer, LabError if it refuses.
        """
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        with self._socket.lock:
            self._socket.send({"execute": name, "arguments": named})
            while True:
                try:
                    answer = self._socket.receive(timeout=timeout)
                except TimeoutError as err:
                    raise LabTimeoutError(f"QEMU did not answer {name} in {timeout:.0f} s") from err
                if "return" in answer:
                    return answer["return"]
                if "error" in answer:
                    raise LabError(
                        f"QEMU refused {name}: {answer['error']['desc']}",
                        hint="take the QEMU that the lab builds",
                    )

    def wait_for_migration(self, *, timeout: float) -> None:
        """Wait until the running migration (to or from a file) is complete."""
        deadline = time.monotonic() + timeout
        while True:
            state = self.command("query-migrate")
            if state.get("status") == "completed":
                return
            if state.get("status") in ("failed", "cancelled"):
                raise LabError(
                    f"machine state: {state.get('error-desc', state['status'])}",
                    hint="free disk space for it, and boot again",
                )
            if time.monotonic() > deadline:
                raise LabTimeoutError(f"machine state: still {state.get('status')} after {timeout:.0f} s")
            time.sleep(0.02)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
