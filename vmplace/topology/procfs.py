"""Read what one process is made of from procfs: identity, threads, descriptors, mappings.

Processes end while they are read: then every reader raises GuestGoneError.  If the kernel refuses to show the
file, it raises UnsupportedHostError.  Either way the caller skips this one process.  A process chooses what
is read of it (file names, thread names, arguments): sizes are bounded, and OutsideError says what is out of
bounds.
"""

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

from vmplace import held
from vmplace.errors import GuestGoneError, OutsideError, UnsupportedHostError
from vmplace.held import HeldError
from vmplace.outside import MOST_BYTES, Reading, lines, read_text, whole

T = TypeVar("T")

PROC = Path("/proc")
PAGE_BYTES = 4096
# The path may hold anything but a line's end; what is before it is the kernel's.
MAPS_LINE = re.compile(
    r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([rwxsp-]{4}) [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ [0-9]+ *(.*)"
)
HEX_DIGITS = frozenset("0123456789abcdef")
MOST_MAPPINGS = 10_000
"""QEMU has some hundreds; the kernel allows 65,530 (vm.max_map_count), which take seconds to read."""
MOST_SMAPS_BYTES = 32 << 20
MOST_COMMAND_LINE_BYTES = 1 << 20
MOST_DESCRIPTORS = 1 << 16
MOST_THREADS = 1 << 15
MOST_PAGE_KIB = 1 << 24
PF_KTHREAD = 0x00200000
"""<linux/sched.h>: a thread of the kernel, in field 9 of /proc/PID/stat."""
NORMAL_BALANCING = 1
"""NUMA_BALANCING_NORMAL, a bit of kernel.numa_balancing (include/linux/sched/sysctl.h)."""
WAITS_FOR_NOBODY = frozenset({"comm", "cgroup"})
"""Read without a bound: of 6.12 and 6.18, the kernel takes spinlocks alone (comm_show, proc_cgroup_show).

To read "status" takes part in the memory map.  If the process ends meanwhile, who reads ends the map in its
place, and waits for its I/O in a way that no kill ends (mmput, exit_aio).
"""


@dataclass(frozen=True)
class Vma:
    """One mapping ``[start, end)``; ``flags`` are the two-letter VmFlags of smaps, empty from maps."""

    start: int
    end: int
    perms: str
    path: str
    page_size_bytes: int = PAGE_BYTES
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
    return _stat_field(text, 22)


def read_start_time(pid: int, proc: Path = PROC) -> int:
    """Return when the process started, in clock ticks since boot."""
    return parse_start_time(_read(pid, "stat", proc))


def read_start(pid: int, proc: Path = PROC) -> tuple[int, bool]:
    """Return when the process started, as above, and whether it is a thread of the kernel."""
    text = _read(pid, "stat", proc)
    return parse_start_time(text), bool(_stat_field(text, 9) & PF_KTHREAD)


def read_cpu_seconds(pid: int, proc: Path = PROC) -> float:
    """Return the CPU seconds that the process has used, those of its children not counted."""
    text = _read(pid, "stat", proc)
    return (_stat_field(text, 14) + _stat_field(text, 15)) / os.sysconf("SC_CLK_TCK")


def read_guest_ticks(pid: int, tid: int, proc: Path = PROC) -> int:
    """Return for how many clock ticks a thread ran its guest, 0 for one that ended."""
    try:
        return _stat_field(read_text(proc / f"{pid}/task/{tid}/stat"), 43)
    except OSError:
        return 0


def read_command_line(pid: int, proc: Path = PROC) -> list[str]:
    """Return the arguments of the process, as it shows them now."""
    return _read(pid, "cmdline", proc, MOST_COMMAND_LINE_BYTES).split("\0")[:-1]


def read_comm(pid: int, proc: Path = PROC) -> str:
    """Return the name of the process (15 characters at most)."""
    return _read(pid, "comm", proc).rstrip("\n")


def read_cgroup(pid: int, proc: Path = PROC, *, tid: int | None = None) -> str:
    """Return the control groups of the process, or of one thread, a line for each hierarchy."""
    return _read(pid, "cgroup" if tid is None else f"task/{tid}/cgroup", proc)


def read_status(pid: int, proc: Path = PROC, *, tid: int | None = None) -> dict[str, str]:
    """Return the lines of /proc/PID/status, or those of one thread."""
    text = _read(pid, "status" if tid is None else f"task/{tid}/status", proc)
    return parse_status(text)


def parse_status(text: str) -> dict[str, str]:
    """Parse /proc/PID/status; of two lines of one name the first counts."""
    fields: dict[str, str] = {}
    for line in lines(text):
        name, _, value = line.partition(":")
        fields.setdefault(name, value.strip())
    return fields


def status_bytes(status: Mapping[str, str], name: str) -> int:
    """Return a figure of /proc/PID/status that is given in kB, in bytes; 0 where it is not given."""
    value, _, unit = status.get(name, "0 kB").partition(" ")
    if unit.strip() != "kB":
        raise OutsideError(f"{name} of a process is not in kB")
    return whole(value, most=1 << 52, what=name) << 10


def status_uid(status: Mapping[str, str]) -> int | None:
    """Return the real user of a process, None where it is not given."""
    # "Uid:" real, effective, saved, of file systems (proc_pid_status(5)).
    uids = status.get("Uid", "").split()
    return whole(uids[0], most=(1 << 32) - 1, what="user") if uids else None


def read_thread_names(pid: int, proc: Path = PROC) -> dict[int, str]:
    """Return the names of all threads by tid; threads that end meanwhile are left out."""
    names = {}
    for path in _guarded(pid, lambda: list(islice((proc / f"{pid}/task").iterdir(), MOST_THREADS + 1))):
        try:
            names[int(path.name)] = read_text(path / "comm").rstrip("\n")
        except OSError:
            continue
    if len(names) > MOST_THREADS:
        raise OutsideError(f"process {pid} has more than {MOST_THREADS} threads")
    return names


def read_descriptors(pid: int, proc: Path = PROC) -> dict[int, str]:
    """Return what each open descriptor is, e.g. ``anon_inode:kvm-vm``; the first MOST_DESCRIPTORS."""
    targets: dict[int, str] = {}
    given_up = threading.Event()
    try:
        held.bounded(pid, lambda: _guarded(pid, lambda: _read_descriptors(pid, proc, targets, given_up)))
    except HeldError:
        # The step that waits keeps nothing of them.
        given_up.set()
        targets.clear()
        raise
    return targets


def _read_descriptors(pid: int, proc: Path, targets: dict[int, str], given_up: threading.Event) -> None:
    root = f"{proc}/{pid}/fd"
    # Not listdir: a process may have half a million descriptors, and a Path for each is slow.
    with os.scandir(root) as entries:
        for entry in islice(entries, MOST_DESCRIPTORS):
            if given_up.is_set():
                return
            with contextlib.suppress(FileNotFoundError):
                targets[int(entry.name)] = os.readlink(f"{root}/{entry.name}")  # noqa: PTH115


def read_maps(pid: int, proc: Path = PROC) -> list[Vma]:
    """Return the mappings without page size and flags; cheap, no page table is walked."""
    return parse_maps(_read(pid, "maps", proc))


def read_smaps(pid: int, proc: Path = PROC) -> list[Vma]:
    """Return the mappings with page size and flags; the kernel walks all page tables for it."""
    return parse_smaps(_read(pid, "smaps", proc, MOST_SMAPS_BYTES))


def parse_maps(text: str) -> list[Vma]:
    """Parse /proc/PID/maps."""
    reported = lines(text)
    _check_count(len(reported))
    return [_parse_head(line) for line in reported]


def parse_smaps(text: str) -> list[Vma]:
    """Parse /proc/PID/smaps: of each mapping its line of maps, then lines with names, the flags last."""
    vmas: list[Vma] = []
    head: Vma | None = None
    page_size = PAGE_BYTES
    for line in lines(text):
        # Names begin with a capital letter: only the kernel's own lines begin with a digit.
        if line[:1] in HEX_DIGITS:
            head = _parse_head(line)
        elif line.startswith("KernelPageSize:"):
            page_size = _parse_page_size(line)
        elif line.startswith("VmFlags:") and head is not None:
            vmas.append(replace(head, page_size_bytes=page_size, flags=frozenset(line.split()[1:])))
            _check_count(len(vmas))
            head = None
    return vmas


def _parse_head(line: str) -> Vma:
    """Parse a line of maps, which are the first lines of the mappings in smaps, too."""
    match = MAPS_LINE.fullmatch(line)
    if match is None:
        raise OutsideError("a line of maps is not understood")
    start, end = int(match[1], 16), int(match[2], 16)
    if not start < end or start % PAGE_BYTES or end % PAGE_BYTES:
        raise OutsideError(f"a mapping is from {start:#x} to {end:#x}")
    return Vma(start, end, match[3], match[4])


def _parse_page_size(line: str) -> int:
    _, kib, *_ = (*line.split(), "")
    size = whole(kib, least=4, most=MOST_PAGE_KIB, what="page size") << 10
    if size & (size - 1):
        raise OutsideError(f"a mapping has pages of {size} bytes")
    return size


def _check_count(mappings: int) -> None:
    if mappings > MOST_MAPPINGS:
        raise OutsideError(f"it has more than {MOST_MAPPINGS} mappings", hint="guests have some hundreds")


def _stat_field(text: str, number: int) -> int:
    """Return a field of /proc/PID/stat, counted from 1 as in proc_pid_stat(5)."""
    # The second field, the command in brackets, may hold blanks and brackets.
    fields = text.rpartition(")")[2].split()
    if len(fields) < number - 2:
        raise OutsideError(f"a stat of a process has no field {number}")
    return whole(fields[number - 3], what=f"field {number} of stat")


def _read(pid: int, name: str, proc: Path, most: int = MOST_BYTES) -> str:
    """Read a file of a process; HeldError if it holds that up (held.py)."""

    reading = Reading(most)

    def read() -> str:
        return reading.read(proc / f"{pid}/{name}").decode(errors="replace")

    try:
        return _guarded(
            pid, read if name.rpartition("/")[2] in WAITS_FOR_NOBODY else lambda: held.bounded(pid, read)
        )
    except HeldError:
        # The step that waits keeps nothing of what it has read: that may be tens of megabytes.
        reading.give_up()
        raise


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
