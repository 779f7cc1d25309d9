"""How does a command ask the running agent?"""

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

import msgspec

from vmplace.errors import VmplaceError
from vmplace.interfaces.agent_socket import MAX_RESPONSE_BYTES, connected, socket_path
from vmplace.interfaces.exit_codes import EXIT_NO_AGENT, EXIT_NOTHING
from vmplace.interfaces.options import NothingError
from vmplace.interfaces.protocol import Kind, Request, Response, Size
from vmplace.outside import printable

REFUSALS = {"request": "bad-request", "denied": "denied", "busy": "busy", "guest": "nothing"}
"""The codes of errors by the ``kind`` of a refusal (protocol.py)."""


class NoAgentError(VmplaceError):
    """No agent answers; callers may do without one."""

    code = "no-agent"
    exit_code = EXIT_NO_AGENT


class RefusedError(VmplaceError):
    """The agent said no; ``kind`` says why (protocol.py)."""

    def __init__(self, message: str, *, kind: Kind | None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.code = REFUSALS.get(kind or "", self.code)
        self.exit_code = EXIT_NOTHING if kind == "guest" else 1


def ask(
    command: str,
    guest: str | None = None,
    *,
    size: Size | None = None,
    path: Path | None = None,
    timeout_s: float = 30,
) -> Any:
    """Return the data that the agent answers; ``size`` of a guest that is to come.

    Raises NoAgentError where none answers, RefusedError where it refuses, NothingError for a guest whose
    name is no text.
    """
    path = path or socket_path()
    try:
        request = msgspec.json.encode(Request(command, guest, size)) + b"\n"
    except UnicodeEncodeError as err:
        hint = "`vmplace status` lists the guests: their names are UTF-8"
        raise NothingError(f"no guest {printable(guest or '')!r}", hint=hint) from err
    try:
        with connected(path, timeout_s) as sock:
            # An agent with too many clients answers at once and closes, perhaps before the request is sent.
            with contextlib.suppress(BrokenPipeError):
                sock.sendall(request)
            line = _read_line(sock)
        response: Response = msgspec.json.decode(line, type=Response)
    except PermissionError as err:
        hint = "run it as root, or join the group vmplace to look"
        raise RefusedError(f"you may not open {path}", kind="denied", hint=hint) from err
    except TimeoutError as err:
        raise NoAgentError(f"the agent at {path} does not answer", hint="see its log") from err
    except (OSError, msgspec.DecodeError) as err:
        reported = os.strerror(err.errno) if isinstance(err, OSError) and err.errno else str(err)
        hint = "start it: systemctl start vmplace, or vmplace agent"
        raise NoAgentError(f"no agent at {path}: {reported}", hint=hint) from err
    if not response.ok:
        raise RefusedError(response.error or "refused", kind=response.kind, hint=response.hint)
    return response.data


def _read_line(sock: socket.socket) -> bytes:
    heard = bytearray()
    while not heard.endswith(b"\n"):
        part = sock.recv(65536)
        if not part:
            raise ConnectionResetError("the agent hung up")
        heard += part
        if len(heard) > MAX_RESPONSE_BYTES:
            raise ConnectionAbortedError("the answer is too long")
    return bytes(heard)
