"""What would kMAF do?  Page and vCPU affinity from page faults, as a baseline.

1. Each page has a vector of faults per node; if the highest count is more than twice the second plus one,
   the page moves to that node, and the vector is halved (eq. 6, section 3.3).
2. Each pair of vCPUs has its accesses to the same pages; every 100 ms vCPUs are mapped to the nodes so that
   those who share run together, and the matrix is aged by 0.75 (section 3.4).
3. Where vCPUs move, the pages' vectors go with them: the paper counts faults by node, and would learn anew.

Source: kMAF (PACT'14), eq. 6, section 3.
Differs: the traces know pages, not blocks of 1 KiB, so sharing is counted per page: per huge page where a
guest has such, though a fault tells the exact address, so vCPUs that use parts of their own seem to share.
The paper names no threshold for a new mapping, here it must keep a tenth of all sharing more on one node
(``GAIN``).  The mapping is dual recursive bipartitioning, with METIS (pymetis) instead of Scotch for each
cut.  vCPUs fill physical cores only.  A guest's vCPUs stay on the nodes where it has been given CPUs.
"""

from dataclasses import dataclass, field

import numpy as np

from vmplace.errors import VmplaceError
from vmplace.extras import extra_cure
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import (
    ABSENT,
    Bools,
    GuestEvidence,
    HostPlacement,
    HostView,
    Indexes,
    NodeIndexes,
)
from vmplace.policy.vcpu_moves import vcpu_shift

GAIN = 0.1
"""vCPUs are mapped anew only if that keeps so much more of all sharing on one node.

Less is noise: at 0.02 of what was kept, programs whose vCPUs all share alike were mapped anew 12 to 16 times
in a run, and lost what locality they had.
"""


def moves(vectors: Matrix) -> Bools:
    """Return which pages ought to move to their highest node (eq. 6)."""
    ordered = np.partition(vectors, -2, axis=1)
    apart: Bools = ordered[:, -1] > 2 * ordered[:, -2] + 1
    return apart


def mapped(sharing: Matrix, slots: list[int]) -> Indexes:
    """Return the node index (into ``slots``) of each vCPU; ``slots[n]`` vCPUs may run on node n.

    Recursive bipartitioning: vCPUs and nodes are cut in two halves together, until a node is left.
    """
    answer = np.zeros(len(sharing), np.intp)
    _bipartition(sharing, np.arange(len(sharing)), list(range(len(slots))), slots, answer)
    return answer


def _bipartition(
    sharing: Matrix, vcpus: Indexes, nodes: list[int], slots: list[int], answer: Indexes
) -> None:
    if len(nodes) == 1 or not len(vcpus):
        answer[vcpus] = nodes[0]
        return
    left, right = nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]
    room = sum(slots[n] for n in left), sum(slots[n] for n in right)
    wanted = round(len(vcpus) * room[0] / max(sum(room), 1))
    side = _cut(sharing[np.ix_(vcpus, vcpus)], wanted)
    _bipartition(sharing, vcpus[side], left, slots, answer)
    _bipartition(sharing, vcpus[~side], right, slots, answer)


def _cut(sharing: Matrix, wanted: int) -> Bools:
    """Return which ``wanted`` vertices go left, so that little sharing is cut."""
    try:
        import pymetis
    except ImportError as err:
        raise VmplaceError("kmaf needs pymetis", hint=extra_cure("plan")) from err
    count = len(sharing)
    if wanted in (0, count):
        return np.full(count, wanted > 0)
    weights = np.rint(sharing / max(float(sharing.max()), 1e-300) * 10_000).astype(int)
    neighbours = [np.flatnonzero((weights[v] > 0) & (np.arange(count) != v)) for v in range(count)]
    eweights = [int(weights[v, n]) for v in range(count) for n in neighbours[v]]
    _, part = pymetis.part_graph(
        2,
        adjacency=neighbours,
        eweights=eweights,
        tpwgts=[wanted / count, 1 - wanted / count],
        recursive=True,
    )
    side = np.array(part) == 0
    return _exactly(sharing, side, wanted)


def _exactly(sharing: Matrix, side: Bools, wanted: int) -> Bools:
    """Return the cut with exactly ``wanted`` vertices left: METIS keeps the balance only about."""
    while (count := int(side.sum())) != wanted:
        gain = sharing[:, ~side].sum(axis=1) - sharing[:, side].sum(axis=1)
        gain = gain if count > wanted else -gain
        movable = side if count > wanted else ~side
        side[int(np.where(movable, gain, -np.inf).argmax())] = count < wanted
    return side


def kept_together(sharing: Matrix, vcpu_node: Indexes) -> float:
    """Return the share of the sharing that is between vCPUs of one node."""
    same = vcpu_node[:, None] == vcpu_node[None, :]
    return float(sharing[same].sum()) / max(float(sharing.sum()), 1e-300)


@dataclass
class KmafPlanner:
    """kMAF at work: pages at every look, vCPUs every 100 ms on the traces' clock."""

    clock_scale: float = 1.0
    next_ns: float = 0.0
    vectors: dict[str, Matrix] = field(default_factory=dict)

    def plan(self, view: HostView) -> HostPlacement:
        """Return where pages and vCPUs ought to be."""
        vcpus: list[Indexes | None] = [None] * len(view.guests)
        if view.now_ns >= self.next_ns:
            self.next_ns = view.now_ns + 100e6 / self.clock_scale
            vcpus = [_remapped(guest) for guest in view.guests]
            for guest, nodes in zip(view.guests, vcpus, strict=True):
                self._carry(guest, nodes)
        return HostPlacement([self._pages(view, guest) for guest in view.guests], vcpus)

    def _carry(self, guest: GuestEvidence, nodes: Indexes | None) -> None:
        """Let the vectors of a guest's pages follow its vCPUs to ``nodes``."""
        vector = self.vectors.get(guest.name)
        if nodes is not None and guest.vcpu_node is not None and vector is not None:
            self.vectors[guest.name] = vector @ vcpu_shift(guest.vcpu_node, nodes, vector.shape[1])

    def _pages(self, view: HostView, guest: GuestEvidence) -> NodeIndexes:
        vector = self.vectors.setdefault(guest.name, np.zeros_like(guest.heat))
        faults = guest.samples_recent if guest.samples_recent is not None else guest.recent
        if faults is None:
            return guest.node
        vector += faults
        target = vector.argmax(axis=1)
        memory = view.system.controller[target] > 0
        chosen = moves(vector) & (guest.node != ABSENT) & (target != guest.node) & memory
        plan = guest.node.copy()
        plan[chosen] = target[chosen]
        vector[chosen] /= 2
        return plan


def _remapped(guest: GuestEvidence) -> Indexes | None:
    if guest.sharing is None or guest.vcpu_node is None or not guest.sharing.any():
        return None
    nodes, slots = np.unique(guest.vcpu_node, return_counts=True)
    if len(nodes) < 2:
        return None
    new: Indexes = nodes[mapped(guest.sharing, slots.tolist())]
    new = _least_moved(new, guest.vcpu_node, nodes)
    better = kept_together(guest.sharing, new) > GAIN + kept_together(guest.sharing, guest.vcpu_node)
    return new if better else None


def _least_moved(new: Indexes, old: Indexes, nodes: Indexes) -> Indexes:
    """Return ``new`` with its groups named so that few vCPUs change their node (groups of one size only)."""
    answer, taken = new.copy(), set()
    sizes = {int(n): int((new == n).sum()) for n in nodes}
    for group in nodes:
        fits = [n for n in nodes if n not in taken and sizes[int(n)] == sizes[int(group)]]
        best = max(fits, key=lambda n: int(((new == group) & (old == n)).sum()))
        taken.add(best)
        answer[new == group] = best
    return answer
