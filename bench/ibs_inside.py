"""Runs inside the emulated host: samples loads and stores of all CPUs for a while.

usage: ibs_inside.py PERIOD SECONDS OUT    OUT (npz): frames, CPUs, stores of the samples; prints JSON counts
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, "/opt/vmplace")

from vmplace.sampling.perf_rings import DISABLE, ENABLE, PerfRings
from vmplace.sampling.source_ibs import COUNT_OPS, MEM_OP_STORE, PMU
from vmplace.topology.sysfs import read_host

DRAIN_S = 0.5


def sampled(period: int, seconds: float, out: str) -> dict[str, float]:
    """Sample, keep what came, return how much it was and what it cost this process."""
    cpus = [cpu for node in read_host().nodes for cpu in node.cpus]
    rings = PerfRings(int((Path("/sys") / PMU / "type").read_text()), COUNT_OPS, period, cpus)
    parts, started, used = [], time.monotonic(), time.process_time()
    rings.control(ENABLE)
    while time.monotonic() < started + seconds:
        time.sleep(DRAIN_S)
        parts += rings.drain()
    rings.control(DISABLE)
    used, passed = time.process_time() - used, time.monotonic() - started
    frames, cpu, stores = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("phys_addrs", "cpus", "data_srcs")
    )
    np.savez(out, frames=frames // np.uint64(4096), cpus=cpu, stores=(stores & MEM_OP_STORE) != 0)
    lost, throttled = (sum(getattr(part, name) for part in parts) for name in ("lost", "throttled"))
    return {"samples": len(frames), "seconds": passed, "cpu_s": used, "lost": lost, "throttled": throttled}


if __name__ == "__main__":
    print(json.dumps(sampled(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])))
