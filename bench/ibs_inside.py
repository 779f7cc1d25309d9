"""Runs inside the emulated host: samples loads and stores of all CPUs for a while.

usage: ibs_inside.py PERIOD SECONDS BEGUN ENDED OUT
       OUT (npz): frames of the samples, their CPUs; of each guest's RAM the frames, and the 2 MiB block that
       each is in; prints JSON

PERIOD 0: all the same, but without sampling.  The meter (docs/meter.md) is switched on for that while only,
as Python would take its time to start; its mark becomes BEGUN when sampling begins, ENDED when it has ended.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, "/opt/vmplace")

from vmplace.sampling.page_frames import FrameChunk, FrameReader
from vmplace.sampling.perf_rings import DISABLE, ENABLE, PerfRings, PerfSamples
from vmplace.sampling.source_ibs import PMU, event_config
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES, GuestTopology, RamRange
from vmplace.topology.guest_finder import GuestFinder
from vmplace.topology.sysfs import read_host

DRAIN_S = 0.5
SETTLE_S = 3.0
"""After this time most of what the guests do has been translated anew, with the meter's calls in it."""


def meter(*words: str) -> None:
    """Tell the meter something."""
    subprocess.run(["vmp-meter", *words], check=True)


def frames_of(guest: GuestTopology) -> npt.NDArray[np.uint64]:
    """Return the frames that back the guest's RAM now, and the number of the 2 MiB block each is in."""
    reader = FrameReader()
    with reader.opened(guest) as pagemap:
        parts = [blocks_of(ram, chunk) for ram in guest.ram for chunk in reader.chunks(pagemap, ram)]
    frames = np.concatenate(parts, axis=1)
    present: npt.NDArray[np.uint64] = frames[:, frames[0] != 0]
    return present


def blocks_of(ram: RamRange, chunk: FrameChunk) -> npt.NDArray[np.uint64]:
    """Return the chunk's frames, and their blocks."""
    hva = ram.hva + (chunk.first + np.arange(len(chunk.pfns))) * PAGE_BYTES
    return np.stack([chunk.pfns, (hva // HUGE_BYTES).astype(np.uint64)])


def taken(rings: PerfRings, seconds: float, begun: str, ended: str) -> tuple[list[PerfSamples], float]:
    """Return what is sampled from now on, and the seconds between the marks."""
    parts: list[PerfSamples] = []
    meter("on")
    time.sleep(SETTLE_S)
    meter("mark", begun)
    started = time.monotonic()
    rings.control(ENABLE)
    ends = started + seconds
    while time.monotonic() < ends:
        time.sleep(min(DRAIN_S, max(ends - time.monotonic(), 0)))
        parts += rings.drain()
    rings.control(DISABLE)
    meter("mark", ended)
    passed = time.monotonic() - started
    meter("off")
    return parts + rings.drain(), passed


def sampled(period: int, seconds: float, marks: tuple[str, str], out: str) -> dict[str, float]:
    """Sample, keep what came, return how much it was and what it cost this process."""
    cpus = [cpu for node in read_host().nodes for cpu in node.cpus] if period else []
    sysfs = Path("/sys")
    rings = PerfRings(int((sysfs / PMU / "type").read_text()), event_config(sysfs), period, cpus)
    used = time.process_time()
    parts, passed = taken(rings, seconds, *marks)
    used = time.process_time() - used
    addresses, cpu = (
        np.concatenate([np.zeros(0, np.uint64), *(getattr(part, name) for part in parts)])
        for name in ("phys_addrs", "cpus")
    )
    guests = [frames_of(guest) for guest in GuestFinder().find().guests]
    np.savez(out, addresses // np.uint64(PAGE_BYTES), cpu, *guests)
    lost, throttled = (sum(getattr(part, name) for part in parts) for name in ("lost", "throttled"))
    return {"samples": len(cpu), "seconds": passed, "cpu_s": used, "lost": lost, "throttled": throttled}


if __name__ == "__main__":
    print(json.dumps(sampled(int(sys.argv[1]), float(sys.argv[2]), (sys.argv[3], sys.argv[4]), sys.argv[5])))
