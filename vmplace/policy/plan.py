"""What a policy is given and what it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vmplace.model.pages import GuestPages
from vmplace.policy.options import Weighing
from vmplace.policy.schedule import Stretch
from vmplace.topology.domain_policy import Numatune
from vmplace.topology.guest import PAGE_BYTES, GuestTopology
from vmplace.topology.host import HostTopology


class Mode(Enum):
    """What vmplace may do with a guest: nothing, only plan, or plan and act."""

    MANUAL = "manual"
    ADVISE = "advise"
    AUTO = "auto"


@dataclass(frozen=True)
class GuestSettings:
    """The operator's word on one guest; ``allowed_nids`` None = every node with memory.

    ``place_vcpus``: vCPUs that may run on several nodes may be tied to one for its memory (vcpu_ties.py).
    ``gathers``: they may be tied to one if that saves time, with the memory that follows (vcpu_plan.py).
    ``protected``: others give way to it.  ``moves``, ``interleaves``, ``replicates``, ``huge_pages``: what
    may be done with its memory.  What is not allowed is taken out of any plan (agent/limits.py), and so is
    what goes beyond ``replica_bytes`` or ``move_bytes_per_s``; ``interleaves`` the policy alone follows.
    ``preferred_nids``: as long as there is room, they are what is allowed.
    """

    mode: Mode = Mode.AUTO
    allowed_nids: tuple[int, ...] | None = None
    place_vcpus: bool = False
    protected: bool = False
    moves: bool = True
    interleaves: bool = True
    replicates: bool = True
    huge_pages: bool = True
    preferred_nids: tuple[int, ...] | None = None
    replica_bytes: int | None = None
    move_bytes_per_s: float | None = None
    schedule: tuple[Stretch, ...] = ()
    gathers: bool = True

    @property
    def may_copy(self) -> bool:
        """Tell whether any page may have copies; those that there are go (unneeded_copies.py)."""
        return self.replicates and self.replica_bytes != 0


class CostSample(NamedTuple):
    """What an instruction took a guest in a while that ended at ``at_s`` of the agent's clock.

    ``cost``: in cycles.  ``accesses``: to DRAM per instruction, in any unit; 0: nothing counted them.
    ``waits``: for how long its vCPUs waited for a CPU, over how long they ran; None: not known.
    """

    at_s: float
    cost: float
    accesses: float = 0.0
    waits: float | None = None


@dataclass(frozen=True)
class NodeShares:
    """Which share of a guest's accesses vCPUs on each node made, in the host's order.

    ``whole``: in the windows that pages remember, ``newest``: in the last one, None: not known of that one.
    """

    whole: tuple[float, ...]
    newest: tuple[float, ...] | None


@dataclass(frozen=True)
class GuestView:
    """All that a policy knows of one guest; ``pages`` is None until the first window is in.

    ``dram_per_us``: accesses to DRAM a microsecond, ``cpus``: vCPUs that run at once; None where nothing
    counts them.  ``known_s``: for how long its pages have been watched, on its last host and here.
    ``costs``: the last samples of its cost, the newest last.  ``may_change``: whether what is planned for it
    may be done now.  ``numatune``: which nodes its memory is bound to.  ``move_bytes``: how many bytes of it
    may move now, None: no limit of its own.  ``copied_bytes``: of copies that are there, None where nothing
    counts them; ``copies_wait``: no more are made for now.  ``lar``: the share of its accesses that the CPU
    counts as local, 0 to 1, None where it counts none.  ``node_shares``: whose they are, None: not known.
    """

    topology: GuestTopology
    pages: GuestPages | None
    settings: GuestSettings = GuestSettings()
    dram_per_us: float | None = None
    cpus: float | None = None
    known_s: float = 0.0
    costs: tuple[CostSample, ...] = ()
    may_change: bool = True
    numatune: Numatune = field(default_factory=Numatune)
    move_bytes: int | None = None
    copied_bytes: int | None = None
    copies_wait: bool = False
    lar: float | None = None
    node_shares: NodeShares | None = None

    @property
    def may_move(self) -> bool:
        """Tell whether memory of it that a plan moves does move."""
        return self.may_change and self.settings.moves

    def sped_up(self, scale: float) -> "GuestView":
        """Return the guest as it would be if it did in one second what it does in ``scale`` seconds."""
        return self if self.dram_per_us is None else replace(self, dram_per_us=self.dram_per_us * scale)


@dataclass(frozen=True)
class Snapshot:
    """The whole host at one moment; ``budget_bytes`` may be moved until the next one (None: no limit).

    ``replica_ratio``: share of a node's free memory, replicas included, that these may take; 0 where there
    can be none.
    ``huge_replicas``: huge pages can have them, too.  ``now_ns``: of a clock that never goes back;
    ``window_s``: how long a window is.
    """

    host: HostTopology
    guests: tuple[GuestView, ...]
    budget_bytes: int | None = None
    replica_ratio: float = 0.0
    huge_replicas: bool = False
    now_ns: float = 0.0
    window_s: float = 1.0


@dataclass(frozen=True)
class Move:
    """Pages of one guest that should change their node, in the order to be moved (hottest first).

    ``hva`` (uint64), ``npages`` (uint16: 1, or 512 for a huge page that moves whole), ``from_nid`` and
    ``to_nid`` (int16) have one entry per page to move.  ``reason`` is one sentence for a person.
    ``saved_ns``: the latency that it is expected to save, less than 0 where it adds some; None: not reckoned.
    ``undoes``: pages go back to where they were, as the guest lost time since: nothing may hold that up.
    """

    guest: str
    hva: npt.NDArray[np.uint64]
    npages: npt.NDArray[np.uint16]
    from_nid: npt.NDArray[np.int16]
    to_nid: npt.NDArray[np.int16]
    reason: str
    saved_ns: float | None = None
    undoes: bool = False

    @property
    def size_bytes(self) -> int:
        """Return how many bytes the move carries."""
        return int(self.npages.sum(dtype=np.int64)) * PAGE_BYTES


@dataclass(frozen=True)
class Replication:
    """Pages of one guest of which each of ``nids`` should have a read-only copy.

    ``hva`` (uint64) and ``npages`` (int32) have one entry per run of pages, all of one range.
    ``limit_bytes``: what all copies of the guest together may take.  ``saved_ns``: as of a move, by copies
    that are new; ``from_pages``: 4 KiB pages by the node that they lie on.
    """

    guest: str
    hva: npt.NDArray[np.uint64]
    npages: npt.NDArray[np.int32]
    nids: tuple[int, ...]
    reason: str
    limit_bytes: int | None = None
    saved_ns: float | None = None
    from_pages: Mapping[int, float] = field(default_factory=dict)

    @property
    def pages(self) -> int:
        """Return how many 4 KiB pages are to have copies."""
        return int(self.npages.sum(dtype=np.int64))


@dataclass(frozen=True)
class Collapse:
    """Pages of one guest that should have no copies any more, if they have; in runs, as ``Replication``.

    ``is_all``: nor should any other page of the guest, whatever is known of it; its copies take
    ``copied_bytes``.
    """

    guest: str
    hva: npt.NDArray[np.uint64]
    npages: npt.NDArray[np.int32]
    reason: str
    is_all: bool = False
    copied_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Return what the copies take, or of runs the pages that should have none."""
        return self.copied_bytes if self.is_all else int(self.npages.sum(dtype=np.int64)) * PAGE_BYTES


@dataclass(frozen=True)
class VcpuMove:
    """vCPUs of one guest that should run on ``cpus`` (by vCPU id) only, all of node ``nid``.

    ``nid`` None: ``cpus`` are those that vCPUs had before they were tied, and they float again.
    ``weighing``: what that alone is expected to save and cost; None where nobody weighed it.
    """

    guest: str
    cpus: Mapping[int, tuple[int, ...]]
    from_nids: tuple[int, ...]
    nid: int | None
    reason: str
    weighing: Weighing | None = None


@dataclass(frozen=True)
class Stay:
    """A guest, or part of one, that is left where it is, and why."""

    guest: str
    reason: str


@dataclass(frozen=True)
class PlacementPlan:
    """The wanted changes of the whole host; nothing in it has happened yet.

    ``notes``: what limits the plan, for the operator.  ``weighings``: what was weighed for each guest.
    """

    moves: tuple[Move, ...] = ()
    stays: tuple[Stay, ...] = field(default=())
    replications: tuple[Replication, ...] = ()
    collapses: tuple[Collapse, ...] = ()
    vcpu_moves: tuple[VcpuMove, ...] = ()
    notes: tuple[str, ...] = ()
    weighings: tuple[Weighing, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether the plan changes nothing."""
        return not (self.moves or self.replications or self.collapses or self.vcpu_moves)

    def only(
        self, may_change: Callable[[str], bool], may_loosen: Callable[[str], bool] | None = None
    ) -> "PlacementPlan":
        """Return the changes of those guests that may be changed, by name.

        ``may_loosen``: whose vCPUs may float again, and whose copies may go, None: those of the same.
        """
        may_loosen = may_loosen or may_change
        return PlacementPlan(
            tuple(one for one in self.moves if may_change(one.guest)),
            self.stays,
            tuple(one for one in self.replications if may_change(one.guest)),
            tuple(one for one in self.collapses if may_loosen(one.guest)),
            tuple(
                one for one in self.vcpu_moves if (may_loosen if one.nid is None else may_change)(one.guest)
            ),
            self.notes,
            self.weighings,
        )

    @property
    def size_bytes(self) -> int:
        """Return how many bytes the plan would move."""
        return sum(move.size_bytes for move in self.moves)
