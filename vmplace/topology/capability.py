"""One thing that a host can do for vmplace, or cannot, and where that is looked up."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Capability:
    """One thing the host has (``answer`` True), lacks (False) or hides (None).

    ``cure`` is None with True, and for what nobody needs.
    """

    name: str
    answer: bool | None
    why: str
    cure: str | None = None
    needed: bool = False


def cure_of(err: OSError, cure: str) -> str:
    """Return what helps against an error: rights where these lack, else ``cure``."""
    is_root = os.geteuid() == 0
    if err.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "run it with CAP_SYS_ADMIN, outside of a container without it" if is_root else "run as root"
    return cure if is_root else f"{cure}, and run as root"


@dataclass(frozen=True)
class Roots:
    """Where the kernel's trees are; tests put their own here."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    run: Path = Path("/run/vmplace")
    root: Path = Path("/")
