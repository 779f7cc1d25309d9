"""How long does a decision for a full host take?  CPU seconds of one core for N guests of 1 TiB; JSON.

    python -m bench.bench_decision [GUESTS]

The guests' memory is 2 MiB blocks (5 GiB each for 200 guests): two thirds private to a node, a third shared.
``scattered_s``: all of it lies anywhere, and as much is moved at each look as the guard allows; ``home_s``:
private blocks lie where they belong.  Means of the looks after the first.  ``layout_s``: to think of other
nodes for the vCPUs, at most once in 100 ms of the simulator's clock.  Control: a tenth of the guests, each as
large.

Of the agent's ``auto``: what a plan takes after the first, evidence from pages included, by GiB of a guest
that spans four nodes (``auto_s_per_gib``). ``auto_s_of_gib_touched``: the same of a guest of 16 GiB that
touches one GiB; controls: every page of it (``auto_s_of_all_touched``: more than a plan tells apart, so
most of its blocks are placed as a whole), and every one of its huge pages (``auto_s_of_huge_touched``).
``auto_s_of_many``: of N guests that have a TiB together, a tenth of it random small pages; every tenth
guest spans four nodes, the others run on one each. ``auto_s_of_floating``: of as many that all span them and
whose vCPUs float; ``_most``: the longest plan, which compares layouts of these.  ``auto_s_of_sampled``: of
as many of huge pages of which only 25 sampled accesses each a window are known (IBS), for as long as samples
count.  Figures in MiB are what each
adds to the process at its peak, numpy's arrays included.
"""

import argparse
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt

import vmplace.simulate
from bench.record import Figures, Part, add_record_options, measure
from bench.sampled_guests import sampled_guest
from vmplace.model.memory_system import MemorySystem
from vmplace.model.page_windows import absorbed
from vmplace.model.pages import HISTORY_WINDOWS, GuestPages, RangePages
from vmplace.policy.host_plan import HostPlanner
from vmplace.policy.host_view import Counters, GuestEvidence, HostView, NodeIndexes, traffic
from vmplace.policy.plan import CostSample, GuestView, Snapshot
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.policy.vcpu_plan import better_layout
from vmplace.sampling.sample import NodeBits, RangeSample, SampleBatch, SourceCoverage
from vmplace.simulate.host_file import read_host
from vmplace.topology.guest import GuestTopology, Movability, RamRange, Vcpu
from vmplace.topology.host import HostTopology, Node

HOST = Path(vmplace.simulate.__file__).parent / "hosts" / "asymmetric-8.toml"
BLOCKS = (1 << 19) // 200
LOOKS = 6
FLOATING_LOOKS = 14
"""So many until layouts were compared twice."""
GIB_PAGES = 1 << 18
LARGE_GIB = 16
LOOK_NS = 1e9
MOVE_NS = 2000.0 * 512
"""A block of 512 pages, at the simulator's price of each."""


def guest(number: int, system: MemorySystem, node: NodeIndexes | None, *, home: bool) -> GuestEvidence:
    """Return a guest on one or two nodes, the same at every look but for where its memory is."""
    chance, nodes = np.random.default_rng(number), len(system.nids)
    workers = chance.choice(nodes, size=1 + number % 2, replace=False)
    worker = np.isin(np.arange(nodes), workers)
    heat = np.zeros((BLOCKS, nodes))
    owner = chance.choice(workers, size=BLOCKS)
    heat[np.arange(BLOCKS), owner] = chance.exponential(1e5, BLOCKS)
    shared = chance.random(BLOCKS) < 1 / 3
    heat[shared] = worker * chance.exponential(1e5, (int(shared.sum()), 1))
    if node is None:
        anywhere = chance.choice(np.flatnonzero(system.controller > 0), size=BLOCKS)
        node = (owner if home else anywhere).astype(np.int8)
    rates = traffic(heat, node) / heat.sum() * 5e-4
    return GuestEvidence(
        name=f"g{number}",
        heat=heat,
        written=chance.random(BLOCKS) < 0.6,
        node=node,
        worker=worker,
        windows=np.ones(BLOCKS, np.int64),
        read_ratio=None,
        parallelism=2.0,
        think_ns=3000.0,
        mlp=2.5,
        recent=heat * 0.1,
        counters=Counters(rates, 300.0, 0.5, 0.9, 0.0),
    )


def seconds(guests: int, *, home: bool) -> float:
    """Return the mean CPU seconds of a look after the first."""
    system, planner = read_host(HOST).system, HostPlanner()
    places: list[NodeIndexes | None] = [None] * guests
    took = []
    for look in range(LOOKS):
        some = tuple(guest(number, system, node, home=home) for number, node in enumerate(places))
        view = HostView(system, np.full(len(system.nids), 1e9), some, MOVE_NS, now_ns=look * LOOK_NS)
        started = time.process_time()
        places = [*planner.plan(view).pages]
        took.append(time.process_time() - started)
    return float(np.mean(took[1:]))


def layout_seconds(guests: int) -> float:
    """Return the CPU seconds to compare layouts of the vCPUs: every other guest is on two nodes."""
    system = read_host(HOST).system
    some = [guest(number, system, None, home=True) for number in range(guests)]
    count = len(system.nids)
    anywhere = np.ones(count, np.bool_)
    placed = tuple(
        replace(one, vcpu_node=np.flatnonzero(one.worker).repeat(2), may_tie=anywhere) for one in some
    )
    cpus = np.full(count, float(-(-4 * guests // count)))
    view = HostView(system, np.full(count, 1e9), placed, MOVE_NS, now_ns=LOOK_NS, cpus=cpus)
    started = time.process_time()
    better_layout(view, LOOK_NS)
    return time.process_time() - started


def of_auto(gib: int, touched_gib: int, *, huge: bool = False) -> tuple[float, float]:
    """Return CPU seconds and MiB of a plan for a guest: four nodes share half of what it touches."""
    pages = spanning_range(gib * GIB_PAGES, touched_gib * GIB_PAGES, huge=huge)
    return of_plans(host_of_four(64 << 30), (view_of("g", known_of(pages), (0, 1, 2, 3)),))


def of_many(guests: int) -> tuple[float, float]:
    """Return CPU seconds and MiB of a plan for so many guests with a TiB together."""
    npages = 1024 * GIB_PAGES // guests
    return of_plans_for(guests, lambda nodes: known_of(random_range(npages, npages // 10, nodes)))


def of_sampled(guests: int) -> tuple[float, float]:
    """Return CPU seconds and MiB of a plan for so many guests with a TiB together, by samples alone."""
    npages = 1024 * GIB_PAGES // guests // 512 * 512
    return of_plans_for(guests, lambda nodes: sampled_guest(npages, nodes, len(nodes) + nodes[0]))


def of_plans_for(guests: int, known: Callable[[tuple[int, ...]], GuestPages]) -> tuple[float, float]:
    """Return what plans take: every tenth guest spans four nodes, the others run on one each."""
    every = [*((nid,) for nid in range(4)), (0, 1, 2, 3)]
    pages = {nodes: known(nodes) for nodes in every}
    of_guest = [every[4 if number % 10 == 0 else number % 4] for number in range(guests)]
    views = tuple(
        view_of(f"g{number}", pages[nodes], (nodes * 4)[:4]) for number, nodes in enumerate(of_guest)
    )
    return of_plans(host_of_four(512 << 30), views)


def of_floating(guests: int) -> Figures:
    """Return what plans take where the same guests' vCPUs float, and there are cores for all of them."""
    npages = 1024 * GIB_PAGES // guests
    pages = known_of(random_range(npages, npages // 10, (0, 1, 2, 3)))
    host = host_of_four(512 << 30, guests)
    every = tuple(range(4 * guests))
    policy, took = AutoPolicy(), []
    for look in range(1, FLOATING_LOOKS):
        costs = tuple(CostSample(float(second), 1.0, 1.0) for second in range(max(look - 8, 0), look))
        views = tuple(
            replace(floating(view_of(f"g{number}", pages, (0, 1, 2, 3)), every, number), costs=costs)
            for number in range(guests)
        )
        started = time.process_time()
        policy(Snapshot(host, views, 1 << 28, 0.25, now_ns=look * LOOK_NS))
        took.append(time.process_time() - started)
    return {"auto_s_of_floating": float(np.mean(took[1:])), "auto_s_of_floating_most": max(took[1:])}


def floating(view: GuestView, cpus: tuple[int, ...], number: int) -> GuestView:
    """Return the guest with vCPUs that may run anywhere."""
    vcpus = tuple(replace(vcpu, cpus=cpus) for vcpu in view.topology.vcpus)
    return replace(view, topology=replace(view.topology, pid=number + 1, vcpus=vcpus))


def host_of_four(memory_bytes: int, cpus: int = 1) -> HostTopology:
    """Return a host of four nodes with so many CPUs each, half of whose memory is free."""
    by_node = [tuple(range(nid * cpus, (nid + 1) * cpus)) for nid in range(4)]
    nodes = tuple(Node(nid, by_node[nid], memory_bytes, memory_bytes // 2) for nid in range(4))
    distances = {(a, b): 10 if a == b else 20 for a in range(4) for b in range(4)}
    return HostTopology(nodes, distances, bandwidths={(nid, nid): 10**10 for nid in range(4)})


def known_of(pages: RangePages) -> GuestPages:
    """Return what is known of a guest with this memory."""
    return GuestPages("g", (0, 1, 2, 3), 4, (pages,))


def view_of(name: str, known: GuestPages, vcpu_nids: tuple[int, ...]) -> GuestView:
    """Return a busy guest with a vCPU on each of these nodes."""
    vcpus = tuple(Vcpu(number, number, (nid,), None) for number, nid in enumerate(vcpu_nids))
    topology = GuestTopology(name, 1, 1, "kvm", vcpus, tuple(one.ram for one in known.ranges))
    return GuestView(topology, known, dram_per_us=50.0, cpus=4.0, lar=0.75)


def of_plans(host: HostTopology, views: tuple[GuestView, ...]) -> tuple[float, float]:
    """Return the mean CPU seconds of plans after the first, and the MiB that one takes at its peak."""
    policy, took = AutoPolicy(), []
    for look in range(1, LOOKS):
        started = time.process_time()
        policy(Snapshot(host, views, 1 << 28, 0.25, now_ns=look * LOOK_NS))
        took.append(time.process_time() - started)
    tracemalloc.start()
    policy(Snapshot(host, views, 1 << 28, 0.25, now_ns=LOOKS * LOOK_NS))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return float(np.mean(took[1:])), peak / (1 << 20)


def spanning_range(npages: int, touched: int, *, huge: bool) -> RangePages:
    """Return a range whose first pages were touched: the first half of these by four nodes, else by one."""
    chance, seen = np.random.default_rng(1), np.zeros((5, npages), np.bool_)
    seen[:4, :touched] = chance.random((4, touched), np.float32) < 0.7
    seen[1:, touched // 2 :] = False
    if huge:
        seen = seen.reshape(5, -1, 512).any(axis=2).repeat(512, axis=1)
    return range_of(seen, huge=huge)


def random_range(npages: int, touched: int, nodes: tuple[int, ...]) -> RangePages:
    """Return a range of small pages whose first ones were touched, each by seven in ten of the nodes."""
    chance, seen = np.random.default_rng(len(nodes)), np.zeros((5, npages), np.bool_)
    seen[nodes, :touched] = chance.random((len(nodes), touched), np.float32) < 0.7
    return range_of(seen, node=nodes[0])


def range_of(seen: npt.NDArray[np.bool_], *, huge: bool = False, node: int = 0) -> RangePages:
    """Return a range on one node whose pages were touched and written in each window: ``seen[5, pages]``."""
    npages = seen.shape[1]
    words = np.zeros((5, -(-npages // 64) * 64), np.bool_)
    words[:, :npages] = seen
    bits = np.packbits(words, axis=1, bitorder="little").view(np.uint64)
    ram = RamRange(1 << 40, npages, None, 4096, Movability.MOVABLE, "", None)
    nothing, whole = np.zeros(npages, np.uint8), np.full(-(-npages // 512), huge, np.uint8)
    sample = RangeSample(ram, nothing, np.full(npages, node, np.int8), whole, NodeBits(bits, bits))
    batch = SampleBatch("g", "kvm", SourceCoverage(), 0, 1, (0, 1, 2, 3), (sample,))
    pages = absorbed(None, batch)
    for _ in range(1, HISTORY_WINDOWS):
        pages = absorbed(pages, batch)
    return pages.ranges[0]


def measured(guests: int) -> dict[str, float]:
    """Return what decisions for so many guests cost."""
    return {
        "guests": guests,
        "scattered_s": seconds(guests, home=False),
        "home_s": seconds(guests, home=True),
        "layout_s": layout_seconds(guests),
    }


def by_gib() -> Figures:
    """Return what a plan takes for each GiB that is touched."""
    took_s, peak_mib = of_auto(1, 1)
    return {"auto_s_per_gib": took_s, "auto_mib_per_gib": peak_mib}


def by_many(guests: int) -> Figures:
    """Return what a plan takes for a host of many guests."""
    took_s, peak_mib = of_many(guests)
    return {"guests": guests, "auto_s_of_many": took_s, "auto_mib_of_many": peak_mib}


def by_sampled(guests: int) -> Figures:
    """Return what a plan takes for a host of many guests that are sampled."""
    took_s, peak_mib = of_sampled(guests)
    return {"guests": guests, "auto_s_of_sampled": took_s, "auto_mib_of_sampled": peak_mib}


def of_large_guest() -> Iterator[Figures]:
    """Yield what a plan takes for a large guest that touches a GiB, all, and all in huge pages."""
    for name, touched, huge in (("gib", 1, False), ("all", LARGE_GIB, False), ("huge", LARGE_GIB, True)):
        took_s, peak_mib = of_auto(LARGE_GIB, touched, huge=huge)
        yield {f"auto_s_of_{name}_touched": took_s, f"auto_mib_of_{name}_touched": peak_mib}


def main() -> int:
    """Run the bench; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("guests", type=int, nargs="?", default=200)
    add_record_options(parser)
    options = parser.parse_args()
    parts: dict[str, Part] = {
        "guests": partial(measured, options.guests),
        "control": partial(measured, options.guests // 10),
        "by_gib": by_gib,
        "many": partial(by_many, options.guests),
        "sampled": partial(by_sampled, options.guests),
        "floating": partial(of_floating, options.guests),
        "large_guest": of_large_guest,
    }
    return measure("decision", parts, options)


if __name__ == "__main__":
    sys.exit(main())
