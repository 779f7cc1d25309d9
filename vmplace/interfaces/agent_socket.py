"""Where does the agent listen, and how much may it say?  Without a library, for commands that start fast."""

import os
import socket
import struct
from pathlib import Path

from vmplace.outside import parse_toml, read_text

CONFIG = Path("/etc/vmplace/vmplace.toml")
DEFAULT_SOCKET = "/run/vmplace/control.sock"
MAX_RESPONSE_BYTES = 16 << 20


def socket_path(config: Path = CONFIG) -> Path:
    """Return where the agent listens: as configured, where the file can be read, else the default.

    What is wrong with the file is the agent's to say; a client just looks in the usual place.
    """
    try:
        reported = parse_toml(read_text(config)).get("socket", DEFAULT_SOCKET)
    except (OSError, ValueError):
        reported = DEFAULT_SOCKET
    return Path(reported if isinstance(reported, str) and "\0" not in reported else DEFAULT_SOCKET)


def roots_path(path: Path) -> Path:
    """Return where the agent at ``path`` listens for root alone."""
    return path.parent / f"root-{path.name}"


def connected(path: Path, timeout_s: float) -> socket.socket:
    """Return a connection to the agent at ``path``, with that timeout; raises OSError.

    Root has a queue of its own: whoever may look can keep the common one full.
    """
    if os.geteuid() == 0:
        try:
            return _connected(roots_path(path), timeout_s)
        except (FileNotFoundError, ConnectionRefusedError):
            # No agent, or one of an earlier version.
            pass
    return _connected(path, timeout_s)


def _connected(path: Path, timeout_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Python's own timeout would have connect(2) fail at once while the queue is full.
        seconds, rest = divmod(timeout_s, 1)
        timeval = struct.pack("ll", int(seconds), int(rest * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        sock.connect(str(path))
        sock.settimeout(timeout_s)
    except BlockingIOError:
        sock.close()
        raise TimeoutError from None
    except BaseException:
        sock.close()
        raise
    return sock
