"""Which share of a CPU does each vCPU get, where vCPUs outnumber the CPUs of a node?

Guests weigh the same, and a guest's vCPUs share its weight: they are control groups under libvirt
(Documentation/admin-guide/cgroup-v2.rst, cpu.weight), and so the one with fewer vCPUs gets more for each.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vmplace.model.metrics import Matrix


def cpu_shares(vcpu_nodes: Sequence[npt.NDArray[np.intp]], cpus: Matrix) -> Matrix:
    """Return each guest's mean share of a CPU [G]; 1 for a guest of which no vCPU is known.

    ``vcpu_nodes``: the index of the node of each vCPU, by guest; ``cpus[N]``: CPUs of each node.
    """
    if not len(vcpu_nodes):
        return np.ones(0)
    vcpus = np.array([np.bincount(nodes, minlength=len(cpus)) for nodes in vcpu_nodes], float)
    weights = 1 / np.maximum(vcpus.sum(axis=1), 1.0)
    share = np.array([fair_shares(on, weights, count) for on, count in zip(vcpus.T, cpus, strict=True)])
    means = [share[nodes, guest].mean() if len(nodes) else 1.0 for guest, nodes in enumerate(vcpu_nodes)]
    return np.array(means)


def fair_shares(vcpus: Matrix, weights: Matrix, cpus: float) -> Matrix:
    """Return the share of a CPU that a vCPU of each guest gets on a node, by weight, and never more than one.

    ``vcpus[g]``: how many of guest g are there; ``weights[g]``: of each of them.
    """
    shares, waiting = np.zeros(len(vcpus)), vcpus > 0
    while waiting.any():
        offered = weights * max(cpus, 0.0) / (vcpus * weights)[waiting].sum()
        sated = waiting & (offered >= 1)
        if not sated.any():
            shares[waiting] = offered[waiting]
            break
        shares[sated] = 1.0
        cpus -= vcpus[sated].sum()
        waiting &= ~sated
    return shares
