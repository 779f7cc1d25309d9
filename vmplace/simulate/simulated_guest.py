"""One guest as a process that the agent finds: page frames by address, which its trace's pages use in turn.

A page of the trace may be huge (trace_units.py).  Then several frames are one *slot*, which holds one page,
and moves and is copied as a whole, whichever of its frames is asked for.
"""

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from vmplace.policy.host_view import ABSENT, HUGE_PAGES, REPLICATED, Bools, Indexes, NodeIndexes
from vmplace.simulate.guest_run import GuestRun
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES, GuestTopology, Movability, RamRange, Vcpu

HVA = 1 << 40
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 1024.0
"""How long KVM lets a page wait that lost its copies, doubling each time."""

Gfns = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int32]


@dataclass
class SimulatedGuest:
    """A guest; arrays are by slot (S).

    ``home[S]``: of a page with copies, the index of the node that it was on before them.
    """

    run: GuestRun
    pid: int
    home: NodeIndexes = field(init=False)
    wait_until_s: npt.NDArray[np.float64] = field(init=False)
    wait_s: npt.NDArray[np.float64] = field(init=False)
    held: Bools = field(init=False)
    replicated: int = 0
    collapsed: int = 0
    _found: tuple[int, Indexes] | None = None

    def __post_init__(self) -> None:
        """Begin with no copies."""
        slots = self.slots
        self.home = np.full(slots, ABSENT, np.int8)
        self.wait_until_s, self.wait_s = np.zeros(slots), np.full(slots, FIRST_WAIT_S)
        self.held = np.zeros(slots, np.bool_)

    @property
    def name(self) -> str:
        """Return the guest's name."""
        return self.run.spec.name

    @cached_property
    def slots(self) -> int:
        """Return how many pages the guest has room for, small or huge."""
        frame = self.run.spec.trace.frame
        return int(frame.max()) + 1 if len(frame) else 0

    @property
    def frames(self) -> int:
        """Return how many page frames of 4 KiB the guest has."""
        return self.slots * self.run.unit_pages

    def slots_of(self, hvas: Gfns) -> Indexes:
        """Return the slot of each address."""
        size = np.uint64(PAGE_BYTES * self.run.unit_pages)
        slots: Indexes = ((hvas - np.uint64(HVA)) // size).astype(np.intp)
        return slots

    def page_of(self) -> Indexes:
        """Return the trace's page in each slot now [S], ABSENT where there is none; not to be changed."""
        if self._found is None or self._found[0] != self.run.changes:
            pages = np.full(self.slots, ABSENT, np.intp)
            here = np.flatnonzero(self.run.node != ABSENT)
            pages[self.run.spec.trace.frame[here]] = here
            self._found = self.run.changes, pages
        return self._found[1]

    def nodes(self) -> NodeIndexes:
        """Return the index of the node of each slot [S], of one with copies that of the original."""
        pages = self.page_of()
        nodes = np.where(pages >= 0, self.run.node[np.maximum(pages, 0)], ABSENT)
        return np.where(nodes == REPLICATED, self.home, nodes).astype(np.int8)

    def frame_nodes(self) -> NodeIndexes:
        """Return the same of each frame [F]."""
        return np.repeat(self.nodes(), self.run.unit_pages)

    def huge_blocks(self) -> npt.NDArray[np.uint8]:
        """Return which blocks of 2 MiB are one huge page: a large page of another size is none."""
        if self.run.unit_pages == HUGE_PAGES:
            return (self.page_of() >= 0).astype(np.uint8)
        return np.zeros(-(-self.frames * PAGE_BYTES // HUGE_BYTES), np.uint8)

    def page_nids(self, hvas: Gfns, nids: tuple[int, ...]) -> Numbers:
        """Return each address' node, as move_pages(2) tells it."""
        nodes = self.nodes()[self.slots_of(hvas)]
        return np.where(nodes >= 0, np.array(nids)[nodes], -errno.ENOENT).astype(np.int32)

    @property
    def tids(self) -> range:
        """Return the thread of each vCPU."""
        return range(self.pid + 1, self.pid + 1 + self.run.spec.vcpus)

    def topology(self, cpus: Mapping[int, tuple[int, ...]]) -> GuestTopology:
        """Return the guest as the agent finds it, whose threads may run on ``cpus``."""
        vcpus = tuple(Vcpu(number, tid, cpus[tid]) for number, tid in enumerate(self.tids))
        ram = RamRange(HVA, self.frames, 0, PAGE_BYTES, Movability.MOVABLE, "anonymous memory")
        return GuestTopology(self.name, self.pid, self.pid, "kvm", vcpus, (ram,))

    def note_lost(self, now_s: float) -> None:
        """Let slots wait whose copies are gone since the last call."""
        pages = self.page_of()
        still = (pages >= 0) & (self.run.node[np.maximum(pages, 0)] == REPLICATED)
        lost = np.flatnonzero(self.held & ~still)
        self.collapsed += len(lost)
        self.wait_until_s[lost] = now_s + self.wait_s[lost]
        self.wait_s[lost] = np.minimum(2 * self.wait_s[lost], LONGEST_WAIT_S)
        self.held = still


def first_of_each(slots: Indexes) -> Indexes:
    """Return where each slot comes first, in the order in which they are asked for."""
    where: Indexes = np.sort(np.unique(slots, return_index=True)[1])
    return where
