"""On which nodes do vCPUs run that may run on several, and to which of them may they be tied?

1. A vCPU that may run on one node runs there.  The others of its guest are where touches of its pages came
   from, in proportion: nobody reports where the scheduler has each of them now.
2. vCPUs may be tied if all of them may run on several nodes, and if what is done can be judged: memory is to
   follow, so that must be allowed and fit, and counters must tell what an instruction takes before and after.
3. A node takes as many vCPUs as it has physical cores: a second thread on a core costs more than remote
   memory (kMAF, PACT'14, section 3.4).
"""

from collections.abc import Iterable

import numpy as np

from vmplace.model.metrics import Matrix
from vmplace.model.traffic import vcpu_shares
from vmplace.policy import home
from vmplace.policy.gather_trial import fresh
from vmplace.policy.host_view import Bools, Indexes
from vmplace.policy.plan import GuestSettings, GuestView, Mode
from vmplace.policy.trial import BEFORE
from vmplace.policy.vcpu_ties import cores_of
from vmplace.topology.guest import GuestTopology, Movability
from vmplace.topology.host import HostTopology

MAY_STAY = 0.01
"""Of a guest's memory, the share that may be unable to follow its vCPUs."""


def vcpu_nodes(host: HostTopology, guest: GuestTopology, heat: Matrix) -> Indexes:
    """Return the index of each vCPU's node; ``heat[P, N]``: touches of the guest's pages, by node."""
    may_run = [[host.nids.index(nid) for nid in host.nids_of_cpus(vcpu.cpus)] for vcpu in guest.vcpus]
    nodes = np.array([one[0] if one else 0 for one in may_run], np.intp)
    floating = [number for number, one in enumerate(may_run) if len(one) > 1]
    if not floating:
        return nodes
    touches = heat.sum(axis=0)
    tied = np.bincount(np.delete(nodes, floating), minlength=len(host.nids))
    some = sorted({node for number in floating for node in may_run[number]})
    weights = np.zeros(len(host.nids))
    weights[some] = touches[some] if touches[some].sum() > 0 else 1.0
    lacks = weights / max(weights.sum(), 1e-300) * len(may_run) - tied
    for number in floating:
        node = max(may_run[number], key=lambda one: lacks[one])
        nodes[number], lacks[node] = node, lacks[node] - 1
    nodes[floating] = np.sort(nodes[floating])
    return nodes


def may_tie(host: HostTopology, guest: GuestView, now_s: float) -> Bools | None:
    """Return the nodes [N] to which all of the guest's vCPUs may be tied, None if they are left alone."""
    vcpus = guest.topology.vcpus
    is_free = guest.may_change and guest.settings.mode is Mode.AUTO and is_allowed(guest.settings)
    if not vcpus or not is_free:
        return None
    if guest.dram_per_us is None or len(fresh(guest, now_s)) < BEFORE:
        return None
    if len({vcpu.cell for vcpu in vcpus}) > 1 or not _is_movable(guest.topology):
        return None
    if any(len(host.nids_of_cpus(vcpu.cpus)) < 2 for vcpu in vcpus):
        return None
    nids, masks = home.allowed_nids(host, guest), {vcpu.cpus for vcpu in vcpus}
    # Of all its CPUs: what a cpuset leaves of a node may be too few.
    return np.array([nid in nids and _is_whole(host.node(nid).cpus, masks) for nid in host.nids])


def _is_whole(cpus: tuple[int, ...], masks: Iterable[tuple[int, ...]]) -> bool:
    return bool(cpus) and all(set(cpus) <= set(mask) for mask in masks)


def is_allowed(settings: GuestSettings) -> bool:
    """Tell whether a guest's vCPUs may be gathered, and its memory may follow."""
    may_follow = settings.moves and settings.huge_pages and not settings.place_vcpus
    return settings.gathers and may_follow and not settings.protected


def _is_movable(guest: GuestTopology) -> bool:
    """Tell whether all memory may move, but for small parts such as firmware."""
    stays = sum(one.npages for one in guest.ram if one.movability is not Movability.MOVABLE)
    return stays <= MAY_STAY * sum(one.npages for one in guest.ram)


def free_cores(host: HostTopology, others: Iterable[GuestView]) -> Matrix:
    """Return the physical cores [N] that vCPUs of ``others`` leave; one that floats takes part of each."""
    cores = np.array([cores_of(host, host.node(nid).cpus) for nid in host.nids], float)
    for guest in others:
        vcpus = guest.topology.vcpus
        for nid, share in vcpu_shares(host, vcpus).items():
            cores[host.nids.index(nid)] -= share * len(vcpus)
    free: Matrix = np.maximum(cores, 0.0)
    return free
