"""A host of two nodes and guests with given page places, for tests of the loop; only the host is unreal."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vmplace.actuation.result import ActuationResult, Copies, MoveOutcome
from vmplace.agent.clock import HostClock
from vmplace.agent.config import GuestRule, LoadedConfig
from vmplace.agent.config_sections import Config
from vmplace.agent.discovered import Discovered
from vmplace.agent.loop import Agent
from vmplace.agent.parts import Parts
from vmplace.agent.standing_orders import StandingOrders
from vmplace.agent.wakeup import Wakeup
from vmplace.policy import home
from vmplace.policy.gathering import EarlierTie
from vmplace.policy.plan import PlacementPlan, Snapshot
from vmplace.sampling.guest_cost import GuestCost
from vmplace.sampling.page_frames import block_count
from vmplace.sampling.sample import RangeSample, SampleBatch, SourceCoverage
from vmplace.sampling.served import ServedAccesses
from vmplace.topology.domain_policy import DomainPolicy, Numatune
from vmplace.topology.guest import GuestTopology, Identity, Movability, RamRange, Vcpu
from vmplace.topology.host import HostTopology, Node

GIB = 1 << 30
NPAGES = 1024
HVA = 0x7F00_0000_0000
HOST = HostTopology(
    (Node(0, (0, 1), 4 * GIB, 3 * GIB), Node(1, (2, 3), 4 * GIB, 3 * GIB)),
    {(a, b): 10 if a == b else 20 for a in (0, 1) for b in (0, 1)},
)


WAKEUPS: list[Wakeup] = []
"""Of all worlds that were made, until they are closed."""


class ClockOfFreeDecisions(HostClock):
    """Decisions cost nothing: on a busy machine they would keep to their share, and come windows later."""

    def thread_cpu_ns(self) -> int:
        """Return the same at any time."""
        return 0


def guest(name: str, pid: int = 0, cpu: int = 2, origin: str = "libvirt") -> GuestTopology:
    """Return a guest with one vCPU on node 1 (CPU 2) unless others are given."""
    ram = RamRange(HVA, NPAGES, 0, 4096, Movability.MOVABLE, "anonymous memory")
    pid = pid or 1000 + sum(name.encode())
    return GuestTopology(name, pid, 1, origin, (Vcpu(0, pid + 1, (cpu,)),), (ram,))


def batch(of: GuestTopology, nid: int = 0) -> SampleBatch:
    """Return a window in which all of a guest's memory, on ``nid``, was touched."""
    ranges = tuple(
        RangeSample(
            ram,
            np.ones(ram.npages, np.uint8),
            np.full(ram.npages, nid, np.int8),
            np.zeros(block_count(ram), np.uint8),
        )
        for ram in of.ram
    )
    return SampleBatch(of.name, "world", SourceCoverage(), 0, 1, HOST.nids, ranges)


@dataclass
class World:
    """Source, finder and actuator in one: moved guests really are elsewhere in the next window."""

    running: list[GuestTopology]
    name: str = "world"
    coverage: SourceCoverage = field(default_factory=SourceCoverage)
    nid_of: dict[str, int] = field(default_factory=dict)
    served: ServedAccesses | None = None
    harvest_errors: dict[str, Exception] = field(default_factory=dict)
    policy: Callable[[Snapshot], PlacementPlan] = home.plan
    applied: list[str] = field(default_factory=list)
    undone: list[str | None] = field(default_factory=list)
    copied: dict[str, Copies] = field(default_factory=dict)
    owning: bool = False
    owned: list[bool] = field(default_factory=list)
    closed: int = 0
    let_go: list[str] = field(default_factory=list)
    armed: list[str] = field(default_factory=list)
    asked: int = 0
    armed_at: float = 0.0
    windows_s: list[float] = field(default_factory=list)
    wakeup: Wakeup = field(default_factory=Wakeup)
    counters: GuestCost | None = None
    policies: Mapping[str, DomainPolicy] = field(default_factory=dict)
    awaited: frozenset[str] = frozenset()
    migrating: frozenset[str] = frozenset()
    orders_file: Path | None = None
    placed_before: Mapping[Identity, str] = field(default_factory=dict)
    left: str | None = None
    bound: Mapping[Identity, Numatune] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Remember what is to be closed (tests/unit/conftest.py)."""
        WAKEUPS.append(self.wakeup)

    def agent(
        self, *rules: GuestRule, window_ms: int = 20, clock: HostClock | None = None, **settings: object
    ) -> Agent:
        """Return an agent of this world."""
        config = Config(window_ms=window_ms, longest_rest_ms=0, **settings)  # type: ignore[arg-type]
        clock = clock or ClockOfFreeDecisions()
        # Another agent of this world finds what the one before it kept.
        standing = StandingOrders(self.orders_file)
        parts = Parts(
            self, self, self.policy, "auto", self, counters=self.counters, clock=clock, standing=standing
        )
        return Agent(LoadedConfig(config, rules), parts, self.wakeup)

    def host(self) -> HostTopology:
        """Return the host."""
        return HOST

    def guests(self) -> Discovered:
        """Return the guests that run now."""
        return Discovered(
            tuple(self.running),
            policies=self.policies,
            awaited=self.awaited,
            migrating=self.migrating,
            bound=self.bound,
        )

    def has_news(self) -> bool:
        return False

    def look_again(self, *, asking: bool = False) -> None:
        """Count the questions to libvirt."""
        self.asked += asking

    def arm(self, guest: GuestTopology) -> None:
        """Note when the window began."""
        self.armed_at = time.monotonic()
        self.armed.append(guest.name)

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Return the guest's memory where it is, or raise what the test wants."""
        self.windows_s.append(time.monotonic() - self.armed_at)
        if error := self.harvest_errors.get(guest.name):
            raise error
        return replace(batch(guest, self.nid_of.get(guest.name, 0)), served=self.served)

    def forget(self, guest: GuestTopology) -> None:
        """Note that the source let go of it."""
        self.let_go.append(f"source {guest.name}")

    def release(self, guest: GuestTopology) -> None:
        """Note that the actuator did."""
        self.let_go.append(f"actuator {guest.name}")

    def apply(
        self, plan: PlacementPlan, guests: Mapping[str, GuestTopology], is_stopping: Callable[[], bool]
    ) -> ActuationResult:
        """Carry each move out at once."""
        outcomes = []
        for pinned in plan.vcpu_moves:
            (index,) = (i for i, one in enumerate(self.running) if one.name == pinned.guest)
            vcpus = tuple(replace(v, cpus=pinned.cpus[v.vcpu_id]) for v in self.running[index].vcpus)
            self.running[index] = replace(self.running[index], vcpus=vcpus)
        for move in plan.moves:
            self.applied.append(move.guest)
            self.nid_of[move.guest] = int(move.to_nid[0])
            outcomes.append(MoveOutcome(move.guest, moved=len(move.hva), calls=1, longest_call_ns=3_000_000))
        return ActuationResult(tuple(outcomes), pinned=plan.vcpu_moves)

    def copies(self, guests: Iterable[GuestTopology]) -> Mapping[str, Copies]:
        """Return what the test wants."""
        return self.copied

    def ties(self) -> Mapping[Identity, EarlierTie]:
        return {}

    def placed(self) -> Mapping[Identity, str]:
        """Return what the test wants."""
        return self.placed_before

    def own(self, is_managing: bool) -> tuple[str, ...]:
        """Note it."""
        self.owning = is_managing
        self.owned.append(is_managing)
        return ()

    def undo(
        self,
        guest: GuestTopology | None,
        is_stopping: Callable[[], bool],
        held: Collection[Identity] = (),
    ) -> tuple[str, ...]:
        """Put guests back on node 0."""
        name = None if guest is None else guest.name
        self.undone += [one for key, one in self.placed_before.items() if key not in held] if held else [name]
        self.nid_of = {other: nid for other, nid in self.nid_of.items() if name not in (None, other)}
        return ("undone",)

    def leftover(self) -> str | None:
        """Return what the test wants."""
        return self.left

    def close(self) -> None:
        """Count."""
        self.closed += 1
