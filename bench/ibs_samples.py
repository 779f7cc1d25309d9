"""Samples of IBS, and what the meter counted exactly while they were taken."""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.channel import GuestProcess
from lab.counters_meter import MeterCounters, MeterReading
from lab.machine import LabHost
from lab.page_counts import PageCounts, read_page_counts
from lab.topology import cpu_nids
from vmplace.errors import VmplaceError

INSIDE = "/root/ibs_inside.py"
OUT = "/root/samples.npz"
BEGUN, ENDED = 1, 2
"""Marks of the sampling process."""
POLL_S = 0.005
START_S = 300.0
"""Within this time Python has started, and the meter has said so, however busy the machine is."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class GuestRam:
    """The pages that back a guest's RAM: indexes into ``PageCounts.frames``, and each one's 2 MiB block."""

    pages: Ints
    blocks: Ints

    @property
    def units(self) -> dict[str, Ints]:
        """Return which unit each page is in, by the size of the units."""
        return {"4 KiB": np.arange(len(self.pages)), "2 MiB": np.unique(self.blocks, return_inverse=True)[1]}


@dataclass(frozen=True)
class Samples:
    """What was sampled in ``seconds``, and what was done meanwhile.

    ``counts``: samples of loads and stores by [cpu, page], as ``exact.counts`` are of accesses.  ``lost`` had
    no place in a ring.
    """

    counts: Ints
    exact: PageCounts
    guests: tuple[GuestRam, ...]
    meter: MeterReading
    lost: int
    seconds: float

    @property
    def accesses(self) -> int:
        """Return the samples of loads and stores."""
        return int(self.counts.sum())


def sampled(host: LabHost, period: int, seconds: float) -> Samples:
    """Sample for a while; the exact counts are of just that while."""
    process = host.spawn(sampler(host, period, seconds))
    with MeterCounters(host.shared_memory) as meter:
        _await_mark(process, lambda: meter.read().mark, BEGUN, START_S)
        exact, reading = read_page_counts(host), meter.read()
        _await_mark(process, lambda: meter.read().mark, ENDED, seconds + START_S)
        exact, reading = read_page_counts(host).since(exact), meter.read().since(reading)
    if process.wait(timeout=START_S):
        raise VmplaceError(f"the sampling process failed: {process.output()}")
    reported = json.loads(process.output())
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        Path(file.name).write_bytes(host.get(OUT))
        frames, cpus, *guests = (array.astype(np.int64) for array in np.load(file.name).values())
    counts = _by_cpu_and_page(frames, cpus, exact)
    rams = tuple(GuestRam(np.searchsorted(exact.frames, frames), blocks) for frames, blocks in guests)
    return Samples(counts, exact, rams, reading, reported["lost"], reported["seconds"])


def sampler(host: LabHost, period: int, seconds: float) -> list[str]:
    """Return the command of the sampling process, on the last CPU: its own cost is not the samples'."""
    last = str(len(cpu_nids(host.topology)) - 1)
    return ["taskset", "-c", last, "python3", INSIDE, str(period), str(seconds), str(BEGUN), str(ENDED), OUT]


def _await_mark(process: GuestProcess, read: Callable[[], int], mark: int, timeout_s: float) -> None:
    ends = time.monotonic() + timeout_s
    while read() != mark:
        if time.monotonic() > ends or process.poll() is not None:
            raise VmplaceError(f"no mark {mark} of the sampling process: {process.output()}")
        time.sleep(POLL_S)


def _by_cpu_and_page(frames: Ints, cpus: Ints, exact: PageCounts) -> Ints:
    # Frame 0: an op that neither loads nor stores.
    known = (frames != 0) & np.isin(frames, exact.frames)
    counts = np.zeros_like(exact.counts)
    np.add.at(counts, (cpus[known], np.searchsorted(exact.frames, frames[known])), 1)
    return counts
