"""Which nodes does the host's scheduler choose for vCPUs that may run on several?

A thread stays on its node as long as it may run there and a CPU is left; else it goes to the node that has
most left of those where it may run.  Threads that have one node come first.
"""

from collections.abc import Sequence

import numpy as np

from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import Indexes
from vmplace.simulate.guest_run import GuestRun, share_cpus
from vmplace.simulate.host_file import SimulatedHost

Thread = tuple[int, Sequence[int]]
"""The index of the node on which it runs, and of those on which it may run."""


def next_nodes(threads: Sequence[Thread], cpus: Matrix) -> list[int]:
    """Return the node on which each thread runs next; ``cpus[N]``: of each node."""
    left, nodes = cpus.astype(np.float64), [node for node, _ in threads]
    for number in sorted(range(len(threads)), key=lambda one: len(threads[one][1]) > 1):
        nodes[number] = _next(*threads[number], left)
        left[nodes[number]] -= 1
    return nodes


def _next(node: int, may_run: Sequence[int], left: Matrix) -> int:
    if node in may_run and left[node] >= 1:
        return node
    most = max(may_run, key=lambda one: float(left[one]))
    return node if node in may_run and left[most] <= left[node] else most


def scheduled(guests: Sequence[GuestRun], host: SimulatedHost) -> list[Indexes]:
    """Return the node of each vCPU by guest, as the scheduler has them next."""
    every = np.flatnonzero(host.cpus).tolist()
    threads = [
        (node, every if guest.may_run is None else guest.may_run[number])
        for guest in guests
        for number, node in enumerate(guest.vcpu_node.tolist())
    ]
    nodes, ends = next_nodes(threads, host.cpus), np.cumsum([len(guest.vcpu_node) for guest in guests])
    return [
        np.array(nodes[end - len(guest.vcpu_node) : end], np.intp)
        for guest, end in zip(guests, ends, strict=True)
    ]


def started(guests: Sequence[GuestRun], host: SimulatedHost) -> None:
    """Let guests begin where there are CPUs for their vCPUs, as far as these are not pinned."""
    for guest, nodes in zip(guests, scheduled(guests, host), strict=True):
        if guest.may_run is not None:
            continue
        # Neighbours stay together: threads of a program are in the order of their work.
        nodes.sort()
        if (nodes != guest.vcpu_node).any():
            guest.run_on(nodes)
    share_cpus(list(guests), host)
