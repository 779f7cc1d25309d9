"""One thing that a host can do for vmplace, or cannot, and where that is looked up."""

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


def as_root(cure: str) -> str:
    """Return a cure that asks to be root, too, where this process is not."""
    return cure if os.geteuid() == 0 else f"{cure}, and run as root"


@dataclass(frozen=True)
class Roots:
    """Where the kernel's trees are; tests put their own here."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    run: Path = Path("/run/vmplace")
    root: Path = Path("/")
