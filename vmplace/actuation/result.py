"""What happened to a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vmplace.policy.plan import VcpuMove


@dataclass(frozen=True)
class MoveOutcome:
    """What became of the pages of one guest, in 4 KiB pages.

    ``moved`` are on the wanted node now; ``already`` were there before; ``busy`` were in use by the
    kernel (worth another try); ``pinned`` cannot move; ``gone`` are no longer mapped; ``refused`` counts
    other refusals by the kernel's reason (errno name); ``vetoed`` were left alone for moving to and fro;
    ``left`` were not tried because the budget of the window was used up.  A call also waits: for a CPU, and
    for all others to drain their page lists; ``longest_call_cpu_ns`` is the most that one call worked.
    """

    guest: str
    moved: int = 0
    already: int = 0
    busy: int = 0
    pinned: int = 0
    gone: int = 0
    vetoed: int = 0
    left: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    calls: int = 0
    longest_call_ns: int = 0
    longest_call_cpu_ns: int = 0


@dataclass(frozen=True)
class ReplicaOutcome:
    """What became of the pages of one guest that were to have copies on several nodes, in 4 KiB pages.

    ``replicated`` have them now and had none before, as far as is known; ``left`` are for later windows: the
    budget was used up, enough was tried, or a call failed; ``refused`` counts the others by the kernel's
    reason.
    """

    guest: str
    replicated: int = 0
    left: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Copies:
    """What KVM counts of one guest: bytes of copies that are there, and of pages that lost theirs so far.

    ``wait``: no more are made for a while, as those before did not last, or were refused.
    """

    present_bytes: int = 0
    collapsed_bytes: int = 0
    wait: bool = False


@dataclass(frozen=True)
class ActuationResult:
    """The outcomes of one plan, one entry per guest that was touched, and what went wrong in words.

    ``pinned``: vCPUs whose CPUs were changed.  ``dropped``: by guest, 4 KiB pages whose
    copies were dropped.
    """

    outcomes: tuple[MoveOutcome, ...] = ()
    failures: tuple[str, ...] = ()
    replicas: tuple[ReplicaOutcome, ...] = ()
    pinned: tuple[VcpuMove, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def pinned_vcpus(self) -> int:
        """Return how many vCPUs have other CPUs now."""
        return sum(len(move.cpus) for move in self.pinned)

    @property
    def moved_pages(self) -> int:
        """Return how many 4 KiB pages changed their node."""
        return sum(outcome.moved for outcome in self.outcomes)

    @property
    def replicated_pages(self) -> int:
        """Return how many 4 KiB pages got copies."""
        return sum(outcome.replicated for outcome in self.replicas)
