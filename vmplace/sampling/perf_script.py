"""What did somebody's ``perf record`` sample?  Asked of the perf tool itself, whose file format changes.

``perf script`` prints a line for each sample, ``--header-only -I`` what the recording machine was made of.
Both are parsed here; the file is not.  Source: perf-script(1), perf-mem(1); tools/perf/builtin-script.c and
tools/perf/util/header.c (6.12) for the form of the lines.
"""

import re
import shutil
import subprocess
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import numpy.typing as npt

from vmplace.errors import RecordingError, UnsupportedHostError
from vmplace.outside import MOST_BITS, printable, within
from vmplace.topology.cpulist import parse_cpulist

MAGIC = b"PERFILE2"
FIELDS = "comm,pid,tid,cpu,time,data_src,phys_addr"
SAMPLE_OPTIONS = ("--ns", "-F", FIELDS, "--guestkallsyms=/proc/kallsyms")
"""perf leaves out what it sampled in guests unless it is given symbols for them, whatever these are."""
RECORD_HINT = "perf record -a -d --phys-data -e ibs_op// (Intel: perf mem record -a --phys-data)"
NO_MEM_OP = 1
"""PERF_MEM_OP_NA: IBS also samples ops that are no loads or stores."""

NAMELESS = ":"
_SAMPLE = re.compile(
    r"\s*(?P<comm>\S.{0,63}?)\s+(?P<pid>-?[0-9]{1,10})/(?P<tid>-?[0-9]{1,10})\s+\[(?P<cpu>[0-9]{1,5})\]"
    r"\s+(?P<s>[0-9]{1,9})\.(?P<ns>[0-9]{9}):"
    r"\s+(?P<data_src>[0-9a-f]{1,16}) \|.*\s(?P<phys_addr>[0-9a-f]{1,14})\s*"
)
_MEMORY = re.compile(r"# node([0-9]{1,5}) meminfo  : total = ([0-9]{1,13}) kB, free = ([0-9]{1,13}) kB")
_CPUS = re.compile(r"# node([0-9]{1,5}) cpu list : (\S*)")
_BLOCK = re.compile(r"# memory nodes \(nr [0-9]+, block size 0x([0-9a-f]{1,12})\):")
_BLOCKS = re.compile(r"# +([0-9]{1,5}) \[[^]]*\]: (\S+)")
MOST_BLOCKS = 1 << 20
LEAST_BLOCK_BYTES = 1 << 20
LONGEST_LINE = 1024


@dataclass(frozen=True)
class RecordedNode:
    """A node as the header tells it: its CPUs, memory in bytes, and memory blocks by number."""

    nid: int
    cpus: tuple[int, ...] = ()
    memory_bytes: int = 0
    free_bytes: int = 0
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class RecordedHeader:
    """The machine that was recorded: nodes, ascending; memory blocks of ``block_bytes``."""

    nodes: tuple[RecordedNode, ...]
    block_bytes: int


@dataclass(frozen=True)
class RecordedSamples:
    """Loads and stores, an entry each, in the order of perf: times in ns of the recording's clock.

    ``data_srcs``: union perf_mem_data_src.  ``comms`` are the names of threads, by tid.
    """

    times_ns: npt.NDArray[np.int64]
    pids: npt.NDArray[np.int64]
    tids: npt.NDArray[np.int64]
    cpus: npt.NDArray[np.int64]
    data_srcs: npt.NDArray[np.int64]
    phys_addrs: npt.NDArray[np.int64]
    comms: dict[int, str]


def is_perf_data(path: Path) -> bool:
    """Return whether the file was written by ``perf record``."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> RecordedHeader:
    """Ask perf for the machine; raises RecordingError where the file lacks what is needed."""
    header = parse_header(_iter_perf(path, "--header-only", "-I"))
    if not header.nodes or not header.block_bytes:
        raise RecordingError(f"{path} does not tell the nodes of its machine", hint=RECORD_HINT)
    return header


def read_samples(path: Path) -> RecordedSamples:
    """Ask perf for the samples that have an address; raises RecordingError if there are none."""
    samples = parse_samples(_iter_perf(path, *SAMPLE_OPTIONS))
    if not len(samples.times_ns):
        raise RecordingError(f"{path} holds no sample with a physical address", hint=RECORD_HINT)
    return samples


def parse_header(lines: Iterable[str]) -> RecordedHeader:
    """Parse what ``perf script --header-only -I`` prints; what is not there is empty."""
    reported: dict[int, dict[str, object]] = {}
    block_bytes = 0
    for line in lines:
        if match := _MEMORY.match(line):
            nid, total, free = map(int, match.groups())
            reported.setdefault(nid, {}).update(memory_bytes=total << 10, free_bytes=free << 10)
        elif match := _CPUS.match(line):
            reported.setdefault(int(match[1]), {})["cpus"] = parse_cpulist(match[2])
        elif match := _BLOCK.match(line):
            block_bytes = within(int(match[1], 16), LEAST_BLOCK_BYTES, MOST_BITS, "size of memory blocks")
        elif block_bytes and (match := _BLOCKS.match(line)):
            reported.setdefault(int(match[1]), {})["blocks"] = parse_cpulist(match[2], MOST_BLOCKS)
    nodes = tuple(RecordedNode(nid, **reported[nid]) for nid in sorted(reported))  # type: ignore[arg-type]
    return RecordedHeader(nodes, block_bytes)


def parse_samples(lines: Iterable[str]) -> RecordedSamples:
    """Parse what ``perf script`` prints for FIELDS; lines of samples without an address are left out."""
    columns = [array("q") for _ in range(6)]
    comms: dict[int, str] = {}
    for line in lines:
        # Longer ones are no samples; to match them could take long.
        match = _SAMPLE.fullmatch(line.rstrip("\n")) if len(line) <= LONGEST_LINE else None
        if match is None or not (phys_addr := int(match["phys_addr"], 16)):
            continue
        tid, data_src = int(match["tid"]), int(match["data_src"], 16) & MOST_BITS
        if data_src & NO_MEM_OP:
            continue
        # For what ran in the guest perf has no name but the thread's number.
        if comms.get(tid, NAMELESS).startswith(NAMELESS):
            comms[tid] = printable(match["comm"])
        time_ns = int(match["s"]) * 10**9 + int(match["ns"])
        row = (time_ns, int(match["pid"]), tid, int(match["cpu"]), data_src, phys_addr)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    times_ns, pids, tids, cpus, data_srcs, phys_addrs = (np.array(one, np.int64) for one in columns)
    return RecordedSamples(times_ns, pids, tids, cpus, data_srcs, phys_addrs, comms)


def _iter_perf(path: Path, *options: str) -> Iterator[str]:
    """Yield the lines that ``perf script`` prints; raises what keeps it from that."""
    perf = shutil.which("perf")
    if perf is None:
        raise UnsupportedHostError("the perf tool is not installed", hint="apt-get install linux-perf")
    argv = [perf, "script", "-i", str(path), *options]
    with (
        TemporaryFile("w+", errors="replace") as said,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=said) as process,
    ):
        # Names of threads may be no UTF-8 and hold \r, which is no end of a line here.
        yield from (line.decode(errors="replace") for line in process.stdout or ())
        if process.wait():
            said.seek(0)
            why = printable(said.read().strip()[-300:], 300)
            raise RecordingError(f"perf cannot read {path}: {why}", hint=RECORD_HINT)
