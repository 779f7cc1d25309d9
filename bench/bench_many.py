"""What does a window of many guests cost the agent, beside sampling?  CPU seconds; JSON.

GUESTS of 4 GiB on four nodes, an eighth of each touched, as source "kvm" tells it; every tenth guest spans
all nodes, the others run where their memory is.  Kinds: ``small`` and ``huge`` pages that one node touches as
a whole; ``mixed``, small pages of which each node that the guest runs on touches half, at random.

Measured: taking the window in, a plan for guests that were planned for before, and what `vmplace status`
shows.  The control: a tenth of the guests; the ratio is of the cost per guest.

    python3 -m bench.bench_many 200
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from bench.record import add_record_options, measure
from vmplace.model.page_windows import absorbed
from vmplace.model.pages import HEAT_WINDOWS, GuestPages
from vmplace.model.traffic import estimated_traffic
from vmplace.policy.plan import GuestView, Snapshot
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.sampling.sample import NodeBits, RangeSample, SampleBatch, SourceCoverage
from vmplace.topology.guest import GuestTopology, Movability, RamRange, Vcpu
from vmplace.topology.host import HostTopology, Node

GIB, NODES, CPUS, VCPUS = 1 << 30, 4, 16, 4
NPAGES = 4 * GIB // 4096
SPANS = 10
RAM = RamRange(1 << 40, NPAGES, None, 4096, Movability.MOVABLE, "")
HOST = HostTopology(
    tuple(Node(n, tuple(range(CPUS * n, CPUS * n + CPUS)), 512 * GIB, 100 * GIB) for n in range(NODES)),
    {(a, b): 10 if a == b else 20 for a in range(NODES) for b in range(NODES)},
    bandwidths={(n, n): 10**10 for n in range(NODES)},
)


def batch(node: int, kind: str, *, spans: bool = False) -> SampleBatch:
    """Return a window in which the first eighth of a guest's memory on this node was touched and written."""
    bits, words = np.zeros((NODES + 1, NPAGES // 64), np.uint64), NPAGES // 64 // 8
    bits[node, :words] = ~np.uint64(0)
    if kind == "mixed":
        users = range(NODES) if spans else (node,)
        bits[users, :words] = np.random.default_rng(node).integers(0, 1 << 64, (len(users), words), np.uint64)
    blocks, seen = np.full(NPAGES // 512, kind == "huge", np.uint8), NodeBits(bits, bits)
    sample = RangeSample(RAM, seen.anywhere(NPAGES), np.full(NPAGES, node, np.int8), blocks, seen)
    return SampleBatch("g", "kvm", SourceCoverage(), 0, 10**9, tuple(range(NODES)), (sample,))


def topology(number: int) -> GuestTopology:
    """Return a guest of four vCPUs, on one node or on all."""
    nodes = [n if number % SPANS == 0 else number % NODES for n in range(VCPUS)]
    vcpus = tuple(Vcpu(i, i, (CPUS * node + i,), None) for i, node in enumerate(nodes))
    return GuestTopology(f"g{number}", number + 1, 1, "kvm", vcpus, (RAM,))


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of one run, the best of three."""
    taken = []
    for _ in range(3):
        before = time.process_time()
        work()
        taken.append(time.process_time() - before)
    return min(taken)


def measured(guests: int, kind: str) -> dict[str, float]:
    """Return CPU seconds for all guests together."""
    batches = [[batch(node, kind, spans=spans) for node in range(NODES)] for spans in (False, True)]
    known: dict[int, GuestPages] = {}

    def window() -> None:
        for n in range(guests):
            known[n] = absorbed(known.get(n), batches[n % SPANS == 0][n % NODES])

    for _ in range(HEAT_WINDOWS):
        window()
    views = tuple(
        GuestView(topology(n), known[n], dram_per_us=50.0, cpus=float(VCPUS), lar=0.75) for n in range(guests)
    )
    policy, now_s = AutoPolicy(), iter(range(1, 100))

    def plan() -> None:
        policy(Snapshot(HOST, views, GIB, 0.25, now_ns=next(now_s) * 1e9))

    plan()
    return {
        "absorb_s": seconds(window),
        "plan_s": seconds(plan),
        "status_s": seconds(lambda: [shown(v) for v in views]),
    }


def shown(view: GuestView) -> object:
    """Return what the status tells of a guest's pages."""
    pages = view.pages
    if pages is None:
        raise ValueError("nothing is known of the guest")
    counts = pages.pages_by_node(), pages.pages_by_node(hot_only=True)
    return counts, estimated_traffic(HOST, view.topology, pages)


def compared(guests: int, kind: str) -> dict[str, object]:
    """Return the figures, each with those of a tenth of the guests."""
    all_of_them, few = measured(guests, kind), measured(guests // 10, kind)
    return {name: ratio(value, few[name]) for name, value in all_of_them.items()}


def ratio(value: float, few: float) -> dict[str, float]:
    """Return the figure, its control, and the ratio of both per guest."""
    return {"value": round(value, 4), "control": round(few, 4), "ratio": round(value / few / 10, 2)}


def main() -> int:
    """Run the bench; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("guests", type=int, nargs="?", default=200)
    add_record_options(parser)
    options = parser.parse_args()
    parts = {kind: partial(compared, options.guests, kind) for kind in ("small", "huge", "mixed")}
    return measure("many", parts, options)


if __name__ == "__main__":
    sys.exit(main())
