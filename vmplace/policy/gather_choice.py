"""Whose vCPUs are to be tied next, and what is expected of it?"""

from dataclasses import replace

from vmplace.model.heat_horizon import HORIZON_S
from vmplace.model.metrics import Matrix
from vmplace.policy.gather_trial import GatherTrial
from vmplace.policy.gathering import SETTLE_S, Gathering, Tie
from vmplace.policy.host_view import HostView
from vmplace.policy.options import COLD_NS, GATHER, Option, Weighing
from vmplace.policy.plan import GuestView, Snapshot, VcpuMove
from vmplace.policy.vcpu_plan import following_ns, worth_gathering
from vmplace.policy.vcpu_ties import cpus_on

LONGEST_SETTLE_S = 300.0
"""The longest while until the next layout is thought of, as long as nothing is new and none is worth it."""


def chosen(
    before: Gathering, snapshot: Snapshot, view: HostView, lived_ns: Matrix, price: float
) -> Gathering:
    """Return the ties with those that are worth asking for now.

    ``view``: its first guests are of the snapshot, by name; ``lived_ns[G]``: for how long each was watched.
    ``price``: what a change costs in the planner's time, of its price in real ns.
    """
    now_s = snapshot.now_ns / 1e9
    candidates = frozenset(guest.name for guest in view.guests)
    is_same = candidates == before.candidates
    due_s = before.next_s if is_same else min(before.next_s, before.tried_s + SETTLE_S)
    is_nobody = all(guest.may_tie is None for guest in view.guests)
    if before.is_busy or is_nobody or now_s < due_s:
        return before
    worth = worth_gathering(view, lived_ns)
    known = {guest.topology.name: guest for guest in snapshot.guests}
    evidence = {guest.name: guest for guest in view.guests}
    ties = {
        known[name].topology.identity: Tie(
            tie(snapshot, known[name], node, saved, following_ns(view, evidence[name]) / price),
            {vcpu.vcpu_id: vcpu.cpus for vcpu in known[name].topology.vcpus},
            now_s,
            now_s,
            now_s,
            trial=_trial(snapshot, known[name], node, now_s),
        )
        for name, (node, saved) in worth.items()
    }
    settle_s = min(2 * before.settle_s, LONGEST_SETTLE_S) if is_same and not ties else SETTLE_S
    return replace(
        before,
        ties=dict(before.ties) | ties,
        candidates=candidates,
        tried_s=now_s,
        settle_s=settle_s,
    )


def _trial(snapshot: Snapshot, guest: GuestView, node: int, now_s: float) -> GatherTrial:
    nid = snapshot.host.nids[node]
    others = [
        one
        for one in snapshot.guests
        if one is not guest and any(cpus_on(snapshot.host, vcpu, nid) for vcpu in one.topology.vcpus)
    ]
    return GatherTrial.of(guest, others, now_s)


def tie(snapshot: Snapshot, guest: GuestView, node: int, saved: float, following_ns: float) -> VcpuMove:
    """Return the move that ties all vCPUs to a node, by its index.

    ``saved``: the share of the guest's time that it saves; ``following_ns``: how long the memory that follows
    holds the guest up.
    """
    host, topology, nid = snapshot.host, guest.topology, snapshot.host.nids[node]
    cpus = {vcpu.vcpu_id: cpus_on(host, vcpu, nid) for vcpu in topology.vcpus}
    before = host.nids_of_cpus(tuple({cpu for vcpu in topology.vcpus for cpu in vcpu.cpus}))
    reason = f"all its vCPUs fit on the cores of node {nid}: with its memory there, {_words(saved)}"
    windows = guest.pages.windows if guest.pages else 0
    ahead_s = min(max(guest.known_s, windows * snapshot.window_s), HORIZON_S)
    option = Option(GATHER, 0, 0, 0, COLD_NS + following_ns, saved * ahead_s * 1e9, saved, nid=nid)
    weighing = Weighing(topology.name, option, ahead_s=ahead_s)
    return VcpuMove(topology.name, cpus, before, nid, reason, weighing)


def _words(saved: float) -> str:
    if saved >= 0:
        return f"it is expected to take {saved:.0%} less time"
    return f"others gain, and it is expected to take {-saved:.1%} more time"
