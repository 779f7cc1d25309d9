"""The stages as the loop sees them; wiring.py builds the real ones."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from vmplace.actuation.result import ActuationResult, Copies
from vmplace.agent.clock import Clock, HostClock
from vmplace.agent.discovered import Discovered
from vmplace.agent.standing_orders import StandingOrders
from vmplace.policy.gathering import EarlierTie
from vmplace.policy.plan import PlacementPlan, Snapshot
from vmplace.sampling.guest_cost import GuestCost
from vmplace.sampling.sample import SampleBatch
from vmplace.sampling.source import Source
from vmplace.topology.guest import GuestTopology, Identity
from vmplace.topology.host import HostTopology


class Discovery(Protocol):
    """Host and guests as the loop sees them (discovery.py)."""

    def host(self) -> HostTopology:
        """Return the host with the free memory of this moment."""

    def guests(self) -> Discovered:
        """Return the guests, as of a few seconds ago."""

    def look_again(self, *, asking: bool = False) -> None:
        """Look the guests up soon; at the next call, and ask libvirt, if ``asking``."""

    def has_news(self) -> bool:
        """Tell whether more is known of guests than ``guests`` returned the last time."""


class Actuator(Protocol):
    """All that changes the host, behind one journal."""

    def apply(
        self, plan: PlacementPlan, guests: Mapping[str, GuestTopology], is_stopping: Callable[[], bool]
    ) -> ActuationResult:
        """Carry the plan out within the budget; returns early once ``is_stopping()``."""

    def release(self, guest: GuestTopology) -> None:
        """Let go of the guest's VM, and of its copies, until the next ``apply``; what moved stays."""

    def copies(self, guests: Iterable[GuestTopology]) -> Mapping[str, Copies]:
        """Return what copies take, and lost, by guest; absent means none.  ``guests``: all that run."""

    def ties(self) -> Mapping[Identity, EarlierTie]:
        """Return whose vCPUs an earlier agent tied, by pid and start time."""

    def placed(self) -> Mapping[Identity, str]:
        """Return the names of guests of which the journal holds something, by pid and start time."""

    def own(self, is_managing: bool) -> tuple[str, ...]:
        """Take what must not interfere with guests, or give it back (False); return notes."""

    def undo(
        self,
        guest: GuestTopology | None,
        is_stopping: Callable[[], bool],
        held: Collection[Identity] = (),
    ) -> tuple[str, ...]:
        """Restore what the journal holds of one guest, or of all but those ``held``; return what was done.

        In words.  It ends early once ``is_stopping()``, and leaves the rest in the journal.
        """

    def leftover(self) -> str | None:
        """Return what an earlier agent moved and the journal still holds, in words, or None."""

    def close(self) -> None:
        """Give everything but the placement itself back; the journal stays."""


class Summaries(Protocol):
    """Where the summaries of guests are written (topology/domain_summaries.py)."""

    def is_busy(self) -> bool:
        """Tell whether the last ones are still being written; raises VmplaceError if they could not be."""

    def write(self, texts: Mapping[str, str]) -> None:
        """Begin to write texts by UUID; an empty one is taken out."""

    def finish(self, patience_s: float) -> None:
        """Wait until all is written; raises TimeoutError if it is not, VmplaceError if it cannot be."""

    def close(self) -> None:
        """Give up what is being written."""


@dataclass(frozen=True)
class Parts:
    """The stages; ``policy_name`` and ``notes`` are for people, ``replica_ratio`` and
    ``huge_replicas`` are the snapshot's, ``counters`` None if nothing tells whether moving helped,
    ``summaries`` None where nothing is handed over; ``holds`` tells whether a guest holds up, now, whoever
    reads its memory map; ``sampled`` is called with each window of a guest, and before it, if nothing is
    known of its pages, ``begins``, with what its last host handed over, if that is of use; ``standing``: what
    root ordered until `vmplace resume`."""

    discovery: Discovery
    source: Source
    policy: Callable[[Snapshot], PlacementPlan]
    policy_name: str
    actuator: Actuator
    notes: tuple[str, ...] = ()
    replica_ratio: float = 0.0
    huge_replicas: bool = False
    counters: GuestCost | None = None
    clock: Clock = field(default_factory=HostClock)
    summaries: Summaries | None = None
    holds: Callable[[GuestTopology], bool] = lambda guest: False
    begins: Callable[[GuestTopology, str], None] = lambda guest, handover: None
    sampled: Callable[[GuestTopology, SampleBatch], None] = lambda guest, batch: None
    standing: StandingOrders = field(default_factory=StandingOrders)
