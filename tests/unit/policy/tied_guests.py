"""Guests whose vCPUs float or are tied to a node, made up for tests of ties."""

from dataclasses import replace

import numpy as np

from tests.unit.policy.views import GIB, guest_view
from vmplace.policy.gather_choice import tie
from vmplace.policy.gather_ties import followed
from vmplace.policy.gather_trial import GatherTrial
from vmplace.policy.gathering import Gathering, Stage, Tie
from vmplace.policy.plan import CostSample, GuestSettings, GuestView, Snapshot
from vmplace.topology.host import HostTopology, Node

EVERY = tuple(range(8))
HOST = HostTopology(
    tuple(Node(nid, tuple(range(4 * nid, 4 * nid + 4)), 4 * GIB, 3 * GIB) for nid in (0, 1)),
    {(a, b): 10 if a == b else 20 for a in (0, 1) for b in (0, 1)},
)
ON_1 = (4, 5, 6, 7)
Costs = list[float]


def view(
    cpus: tuple[int, ...] = EVERY,
    *,
    name: str = "g",
    pid: int = 42,
    costs: Costs | None = None,
    until_s: float = 100.0,
    there: float = 0.0,
    accesses: float = 1.0,
    waits: float | None = 0.0,
    vcpus: int = 2,
    settings: GuestSettings | None = None,
) -> GuestView:
    """Return a guest whose samples end at ``until_s``, with a share of its memory on node 1."""
    nodes = (np.arange(4096) < there * 4096).astype(np.int8)
    one = guest_view([0] * vcpus, nodes, settings=settings)
    threads = tuple(replace(vcpu, cpus=cpus) for vcpu in one.topology.vcpus)
    topology = replace(one.topology, name=name, pid=pid, vcpus=threads)
    assert one.pages
    known = [1.0] * 4 if costs is None else costs
    samples = tuple(
        CostSample(until_s - len(known) + 1 + i, cost, accesses, waits) for i, cost in enumerate(known)
    )
    pages = replace(one.pages, guest=name, nids=(0, 1))
    return replace(one, topology=topology, pages=pages, costs=samples, dram_per_us=10.0, cpus=2.0)


def at(now_s: float, *guests: GuestView, host: HostTopology = HOST) -> Snapshot:
    return Snapshot(host, guests, now_ns=now_s * 1e9)


def asked(guest: GuestView, *others: GuestView, now_s: float = 100.0) -> Gathering:
    """Return what is asked for: the guest's vCPUs on node 1."""
    move = tie(at(now_s, guest, *others), guest, 1, 0.1, 1e6)
    before = {vcpu.vcpu_id: vcpu.cpus for vcpu in guest.topology.vcpus}
    trial = GatherTrial.of(guest, others, now_s)
    return Gathering({guest.topology.identity: Tie(move, before, now_s, now_s, now_s, trial=trial)})


def stage_of(state: Gathering, guest: GuestView) -> Stage | None:
    one = state.ties.get(guest.topology.identity)
    return one.stage if one else None


def tried(guest: GuestView, *others: GuestView) -> Gathering:
    """Return the tie as its memory has followed, at 102 s."""
    state = asked(guest, *others)
    for now_s in (101.0, 102.0):
        state = followed(state, at(now_s, moved(guest), *others))
    return state


def moved(guest: GuestView, there: float = 1.0, **more: object) -> GuestView:
    """Return the guest with its vCPUs on node 1, and its memory."""
    return view(ON_1, name=guest.topology.name, pid=guest.topology.pid, there=there, **more)  # type: ignore[arg-type]
