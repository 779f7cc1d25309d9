"""How much does a guest use memory, and how long does it wait, as samples of its accesses tell?

1. DRAM accesses a microsecond (MAPTU of Carrefour, ASPLOS'13, table 2) are loads that a node served,
   and stores that missed the L2, of which nothing further is known.
2. Of the loads that DRAM served, the share that the own node served is the LAR.
3. What loads from other nodes waited longer than those from the own one is what placement can gain at most.

Limits: what a prefetcher loads is not sampled.  Waits of a CPU overlap: they can be more cycles than pass.
"""

from dataclasses import dataclass

from vmplace.sampling.served import Served, ServedAccesses

NS_PER_US = 1000
LEAST_SAMPLES = 30
"""A share of fewer has an error of more than 18 points (two standard errors)."""


@dataclass(frozen=True)
class MemoryUse:
    """What samples imply; None: too few of that kind.

    ``l1_per_us``: hits of the L1, 0 where the CPU was asked to leave them out.  Latencies are of loads, in
    cycles.  ``remote_wait_per_us``: cycles a microsecond that the guest's vCPUs together waited for other
    nodes longer than they would have for their own.
    """

    dram_per_us: float
    l1_per_us: float
    local_access_ratio: float | None
    local_latency: float | None
    remote_latency: float | None
    remote_wait_per_us: float | None


def memory_use(served: ServedAccesses) -> MemoryUse | None:
    """Return what the samples imply, or None of no time at all."""
    us = served.window_ns / NS_PER_US
    if not us:
        return None
    local, remote = served.accesses[Served.LOCAL], served.accesses[Served.REMOTE]
    near, far = _latency(served, Served.LOCAL), _latency(served, Served.REMOTE)
    loads = served.samples[Served.LOCAL] + served.samples[Served.REMOTE]
    return MemoryUse(
        dram_per_us=(local + remote + served.accesses[Served.UNKNOWN]) / us,
        l1_per_us=served.accesses[Served.L1] / us,
        local_access_ratio=local / (local + remote) if loads >= LEAST_SAMPLES else None,
        local_latency=near,
        remote_latency=far,
        remote_wait_per_us=None if near is None or far is None else remote * (far - near) / us,
    )


def _latency(served: ServedAccesses, kind: Served) -> float | None:
    is_enough = served.samples[kind] >= LEAST_SAMPLES
    return served.waited[kind] / served.accesses[kind] if is_enough else None
