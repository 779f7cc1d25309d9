"""Where does the agent listen, and how much may it say?  Without a library, for commands that start fast."""

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
