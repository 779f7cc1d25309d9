"""Where do pages go without any knowledge of who uses them?  The baselines that every policy must beat.

none: where they were first touched.  interleave-all: page by page over all nodes with memory.
interleave-workers: over the nodes with memory that the guest's vCPUs run on (numactl --interleave).
"""

import numpy as np
import numpy.typing as npt

from vmplace.policy.host_view import ABSENT, GuestEvidence, HostView, NodeIndexes

Indexes = npt.NDArray[np.intp]


def plan_none(view: HostView) -> list[NodeIndexes]:
    """Return each guest's pages where they are."""
    return [guest.node for guest in view.guests]


def plan_interleave_all(view: HostView) -> list[NodeIndexes]:
    """Return each guest's pages distributed over all nodes with memory."""
    return [_distributed(guest, view.memory) for guest in view.guests]


def plan_interleave_workers(view: HostView) -> list[NodeIndexes]:
    """Return each guest's pages distributed over its worker nodes; over all if none of these has memory."""
    return [_distributed(guest, worker_memory(view, guest)) for guest in view.guests]


def worker_memory(view: HostView, guest: GuestEvidence) -> Indexes:
    """Return the indexes of the guest's worker nodes that have memory, or of all memory without such."""
    near = view.memory[guest.worker[view.memory]]
    return near if len(near) else view.memory


def _distributed(guest: GuestEvidence, nodes: Indexes) -> NodeIndexes:
    turn = nodes[np.arange(len(guest.node)) % len(nodes)]
    return np.where(guest.node == ABSENT, guest.node, turn).astype(np.int8)
