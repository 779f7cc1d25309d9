"""The command ``vmplace``: a fast path for JSON of the agent's state, and cli.py for all else.

Scripts call ``status --json`` often, and most of its time went to imports.  Here the agent sends the lines
that are printed, and no library is imported.  Every other command, and every error, is left to cli.py.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vmplace.interfaces.agent_socket import MAX_RESPONSE_BYTES, connected, socket_path

NAMED = {"status": False, "show": True, "why": True}
"""The commands that are answered here, and whether one names a guest."""
LATEST_S = 2.0
"""cli.py waits longer for an agent that is busy."""


def main() -> None:
    """Run the command line."""
    lines = quick_answer(sys.argv[1:])
    if lines is not None:
        try:
            sys.stdout.write(lines + "\n")
            sys.stdout.flush()
            return
        except OSError:
            # The reader closed the pipe, or a disk is full; cli.py ends as it does then.
            pass
    from vmplace.interfaces.cli import main as run_command_line

    run_command_line()


def quick_answer(words: Sequence[str]) -> str | None:
    """Return what the command prints; None for one that is not answered here, or not with success."""
    request = parsed(words)
    if request is None or sys.stdout is None or sys.stdout.encoding.lower() != "utf-8":
        return None
    command, guest, path = request
    asked = {"command": command, "guest": guest, "as_text": True, "version": 1}
    try:
        reported = answered(path or socket_path(), json.dumps(asked, ensure_ascii=False).encode() + b"\n")
        lines: str = reported["text"]
        # An answer without guests is an error, with its own exit code.
        is_state = bool(json.loads(lines)["guests" if command == "status" else "name"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return lines if is_state and reported["ok"] is True else None


def parsed(words: Sequence[str]) -> tuple[str, str | None, Path | None] | None:
    """Return command, guest and socket of a plain command line, None for any other."""
    if not words or words[0] not in NAMED or words.count("--json") != 1:
        return None
    rest = [word for word in words[1:] if word != "--json"]
    path = os.environ.get("VMPLACE_SOCKET")
    if "--socket" in rest[:-1]:
        at = rest.index("--socket")
        path = rest[at + 1]
        del rest[at : at + 2]
    if any(not word or word.startswith("-") for word in (*rest, path or "none")):
        return None
    if len(rest) != NAMED[words[0]]:
        return None
    return words[0], rest[0] if rest else None, Path(path) if path else None


def answered(path: Path, request: bytes) -> dict[str, Any]:
    """Return the agent's answer; raises OSError, ValueError or TypeError."""
    heard = bytearray()
    with connected(path, LATEST_S) as sock:
        sock.sendall(request)
        while not heard.endswith(b"\n") and len(heard) <= MAX_RESPONSE_BYTES:
            part = sock.recv(1 << 18)
            if not part:
                break
            heard += part
    return dict(json.loads(heard))
