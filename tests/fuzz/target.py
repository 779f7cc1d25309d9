"""What a target is: a function of bytes, with real seeds: captured from kernels, QEMU, libvirt and perf
(tests/data), or written by vmplace itself.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
SCRATCH = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))


@dataclass(frozen=True)
class Target:
    """``feed`` takes one input; ``seeds`` are inputs that are as they ought to be."""

    feed: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]


def text_of(data: bytes) -> str:
    """Return the text as the gate decodes it."""
    return data.decode(errors="replace")


def captured(*paths: Path) -> Callable[[], list[bytes]]:
    """Return what reads these files."""
    return lambda: [path.read_bytes() for path in paths]


def first_lines(path: Path, count: int) -> Callable[[], list[bytes]]:
    """Return what reads the first lines of a file."""
    return lambda: [b"\n".join(path.read_bytes().split(b"\n")[:count])]


def just(*seeds: bytes) -> Callable[[], list[bytes]]:
    """Return what returns these."""
    return lambda: list(seeds)
