"""What traffic does a guest's page statistics imply, where the source cannot see who touched a page?

An estimate, and called so: each hot page counts once, shared out over the nodes of the guest's vCPUs
in proportion to how many run there (with vNUMA cells: the vCPUs of the page's own cell).
"""

import numpy as np

from vmplace.model.metrics import Matrix, TrafficMatrix
from vmplace.model.pages import GuestPages
from vmplace.topology.guest import GuestTopology, Vcpu
from vmplace.topology.host import HostTopology


def vcpu_shares(host: HostTopology, vcpus: tuple[Vcpu, ...]) -> dict[int, float]:
    """Return each nid's share of ``vcpus``; a vCPU allowed on several nodes is spread evenly over them."""
    weights: dict[int, float] = {}
    for vcpu in vcpus:
        nids = host.nids_of_cpus(vcpu.cpus)
        for nid in nids:
            weights[nid] = weights.get(nid, 0.0) + 1 / len(nids)
    total = sum(weights.values())
    return {nid: weight / total for nid, weight in sorted(weights.items())} if total else {}


def estimated_traffic(host: HostTopology, guest: GuestTopology, pages: GuestPages) -> TrafficMatrix:
    """Return the traffic that the guest's hot pages imply, in touched pages of the last window."""
    accesses = np.zeros((len(pages.nids), len(pages.nids)))
    for one in pages.ranges:
        vcpus = tuple(v for v in guest.vcpus if one.ram.cell is None or v.cell in (one.ram.cell, None))
        served = one.by_node(len(pages.nids), hot_only=True).astype(np.float64)
        accesses += np.outer(_by_nid(pages.nids, vcpu_shares(host, vcpus)), served)
    return TrafficMatrix(pages.nids, accesses)


def _by_nid(nids: tuple[int, ...], shares: dict[int, float]) -> Matrix:
    return np.array([shares.get(nid, 0.0) for nid in nids])
