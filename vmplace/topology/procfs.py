"""Read what one process is made of from procfs: identity, threads, descriptors, mappings.

Processes end while they are read: every reader raises GuestGoneError then, and UnsupportedHostError
where the kernel refuses to show the file, so that a caller skips this one process.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vmplace.errors import GuestGoneError, UnsupportedHostError

T = TypeVar("T")

PROC = Path("/proc")
MAPS_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) [0-9a-f]+ \S+ \d+ *(.*)")


@dataclass(frozen=True)
class Vma:
    """One mapping ``[start, end)``; ``flags`` are the two-letter VmFlags of smaps, empty from maps."""

    start: int
    end: int
    perms: str
    path: str
    page_size_bytes: int = 4096
    flags: frozenset[str] = frozenset()

    @property
    def size_bytes(self) -> int:
        """Return the length in bytes."""
        return self.end - self.start

    @property
    def is_shared(self) -> bool:
        """Tell whether writes go to memory that others may map, too."""
        return self.perms.endswith("s")


def iter_pids(proc: Path = PROC) -> Iterator[int]:
    """Yield the pids of all processes."""
    for path in proc.iterdir():
        if path.name.isdigit():
            yield int(path.name)


def parse_start_time(text: str) -> int:
    """Parse /proc/PID/stat: field 22, clock ticks since boot."""
    # The second field, the command in brackets, may hold blanks and brackets.
    return int(text.rpartition(")")[2].split()[19])


def read_start_time(pid: int, proc: Path = PROC) -> int:
    """Return when the process started, in clock ticks since boot."""
    return parse_start_time(_read(pid, "stat", proc))


def read_cpu_seconds(pid: int, proc: Path = PROC) -> float:
    """Return the CPU seconds that the process has used, those of its children not counted."""
    user, system = _read(pid, "stat", proc).rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def read_command_line(pid: int, proc: Path = PROC) -> list[str]:
    """Return the arguments of the process, as it shows them now."""
    return _read(pid, "cmdline", proc).split("\0")[:-1]


def read_comm(pid: int, proc: Path = PROC) -> str:
    """Return the name of the process (15 characters at most)."""
    return _read(pid, "comm", proc).rstrip("\n")


def read_status(pid: int, proc: Path = PROC, *, tid: int | None = None) -> dict[str, str]:
    """Return the lines of /proc/PID/status, or those of one thread."""
    text = _read(pid, "status" if tid is None else f"task/{tid}/status", proc)
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def read_thread_names(pid: int, proc: Path = PROC) -> dict[int, str]:
    """Return the names of all threads by tid; threads that end meanwhile are left out."""
    names = {}
    for path in _guarded(pid, lambda: list((proc / f"{pid}/task").iterdir())):
        try:
            names[int(path.name)] = (path / "comm").read_text(errors="replace").rstrip("\n")
        except OSError:
            continue
    return names


def read_descriptors(pid: int, proc: Path = PROC) -> dict[int, str]:
    """Return what each open descriptor is, e.g. ``anon_inode:kvm-vm``."""
    root = proc / f"{pid}/fd"
    targets = {}
    for name in _guarded(pid, lambda: os.listdir(root)):  # noqa: PTH208 - a Path per descriptor is slow
        try:
            targets[int(name)] = os.readlink(f"{root}/{name}")  # noqa: PTH115
        except FileNotFoundError:
            continue
        except OSError as err:
            raise _translate(pid, err) from err
    return targets


def read_maps(pid: int, proc: Path = PROC) -> list[Vma]:
    """Return the mappings without page size and flags; cheap, no page table is walked."""
    return [vma for line in _read(pid, "maps", proc).splitlines() if (vma := _parse_maps_line(line))]


def read_smaps(pid: int, proc: Path = PROC) -> list[Vma]:
    """Return the mappings with page size and flags; the kernel walks all page tables for it."""
    return parse_smaps(_read(pid, "smaps", proc))


def parse_smaps(text: str) -> list[Vma]:
    """Parse /proc/PID/smaps."""
    vmas: list[Vma] = []
    head: Vma | None = None
    page_size = 4096
    for line in text.splitlines():
        if line.startswith("KernelPageSize:"):
            page_size = int(line.split()[1]) << 10
        elif line.startswith("VmFlags:") and head is not None:
            flags = frozenset(line.split()[1:])
            vmas.append(Vma(head.start, head.end, head.perms, head.path, page_size, flags))
        elif vma := _parse_maps_line(line):
            head = vma
    return vmas


def _parse_maps_line(line: str) -> Vma | None:
    if match := MAPS_LINE.fullmatch(line):
        return Vma(int(match[1], 16), int(match[2], 16), match[3], match[4])
    return None


def _read(pid: int, name: str, proc: Path) -> str:
    return _guarded(pid, lambda: (proc / f"{pid}/{name}").read_text(errors="replace"))


def _guarded(pid: int, read: Callable[[], T]) -> T:
    try:
        return read()
    except OSError as err:
        raise _translate(pid, err) from err


def _translate(pid: int, err: OSError) -> GuestGoneError | UnsupportedHostError:
    # ESRCH: the process ended between open and read.
    if isinstance(err, FileNotFoundError | ProcessLookupError):
        return GuestGoneError(f"process {pid} ended")
    return UnsupportedHostError(
        f"process {pid} cannot be read: {err.strerror}", hint="run as root, or with CAP_SYS_PTRACE"
    )
