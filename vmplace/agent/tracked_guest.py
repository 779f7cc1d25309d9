"""What does the agent remember of one guest?"""

import logging
import math
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add

from vmplace.actuation.budget import Budget
from vmplace.agent.cost_samples import CostSamples
from vmplace.agent.decided import Decided
from vmplace.agent.limits import GuestLimits
from vmplace.agent.node_counts import NodeCounts
from vmplace.agent.notes import described, unexpected
from vmplace.agent.state import Decision
from vmplace.model.memory_demand import MemoryUse, memory_use
from vmplace.model.pages import GuestPages
from vmplace.policy.plan import GuestSettings, GuestView, NodeShares
from vmplace.policy.trial import Trial
from vmplace.sampling.guest_cost import MemoryRate
from vmplace.sampling.served import ServedAccesses
from vmplace.topology.domain_policy import DomainPolicy, Numatune
from vmplace.topology.guest import GuestTopology
from vmplace.topology.host import HostTopology

LOG = logging.getLogger(__name__)
DECISIONS_KEPT = 50
ALLOWANCE_S = 2.0
"""What a guest's own rate of moves may save up."""
LEAST_CPUS = 0.05
COUNTS_KEPT_S = 30.0
"""For so long the last counts hold where a window has none: without them a guest is planned for otherwise."""
SERVED_KEPT = 16
"""Windows; a sampling source sees few accesses in one."""


@dataclass
class TrackedGuest:
    """What the agent remembers of one guest between windows; only the loop changes it."""

    topology: GuestTopology
    settings: GuestSettings = field(default_factory=GuestSettings)
    pages: GuestPages | None = None
    served: deque[ServedAccesses] = field(default_factory=lambda: deque(maxlen=SERVED_KEPT))
    moved_bytes: int = 0
    refused_bytes: Counter[str] = field(default_factory=Counter)
    expected_lar: float | None = None
    cost_ratio: float | None = None
    held: bool = False
    rate: MemoryRate | None = None
    counted_s: float = -math.inf
    by_cpus: NodeCounts = field(default_factory=NodeCounts)
    costs: CostSamples = field(default_factory=CostSamples)
    trial: Trial = field(default_factory=Trial)
    problem: str | None = None
    complaints: set[str] = field(default_factory=set)
    complaints_before: frozenset[str] = frozenset()
    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=DECISIONS_KEPT))
    said: DomainPolicy | None = None
    bound: Numatune = field(default_factory=Numatune)
    decided: Decided | None = None
    is_awaited: bool = False
    is_off_hours: bool = False
    is_migrating: bool = False
    is_let_go: bool = False
    allowance: Budget | None = None
    known_s: float = 0.0
    read_since_s: float | None = None

    @property
    def name(self) -> str:
        """Return the guest's name."""
        return self.topology.name

    def note(self, err: Exception) -> None:
        """Keep what went wrong for this guest as its problem; log it if the last window did not have it."""
        reported = described(err) or type(err).__name__
        if reported not in self.complaints | self.complaints_before:
            LOG.warning('guest=%s reason="%s"', self.name, reported, exc_info=unexpected(err))
        self.complaints.add(reported)
        self.problem = reported

    def begin_window(self) -> None:
        """Let go of the last window's problem: what still is wrong is reported again."""
        self.complaints_before, self.complaints = frozenset(self.complaints), set()
        if self.decided is not None:
            self.problem = self.decided.problem

    def let_go_of_pages(self) -> None:
        """Forget what is known of its pages: it is learnt anew."""
        self.pages, self.by_cpus = None, NodeCounts()

    def take_rate(self, rate: MemoryRate | None, now_s: float) -> None:
        """Take up how busy a window was; without a count of accesses the last one holds for a while."""
        before = self.rate
        if rate is not None and rate.dram_per_us is not None:
            self.rate, self.counted_s = rate, now_s
        elif before is None or now_s - self.counted_s >= COUNTS_KEPT_S:
            self.rate = rate
        elif rate is None:
            self.rate = replace(before, waits=None)
        else:
            # A vCPU makes as many a second as before, where fewer of them run.
            # Never none: from a window in which no vCPU ran, no share tells what the next one makes.
            share = max(rate.cpus or 0.0, LEAST_CPUS) / max(before.cpus or 0.0, LEAST_CPUS)
            counted = None if before.dram_per_us is None else before.dram_per_us * share
            self.rate = replace(rate, dram_per_us=counted, lar=before.lar)

    def counted_lar(self, host: HostTopology, now_s: float) -> float | None:
        """Return the share of local accesses as counted in the last window; None where that is long ago.

        Nobody counts a guest that is not sampled, as in mode "manual" and while it migrates.  None as well
        where it may have memory whose accesses the CPU does not count.
        """
        rate = self.rate
        if rate is None or now_s - self.counted_s >= COUNTS_KEPT_S:
            return None
        return None if rate.misses_cpuless and self._may_be_on_cpuless(host) else rate.lar

    def lar_of_nodes(self, host: HostTopology, now_s: float) -> float | None:
        """Return the same for plans: None where sockets have several nodes, as it may be of these.

        It keeps pages where they are, so one that was counted a while ago does no harm: without it they would
        go once a window cannot be counted.
        """
        return None if host.has_split_sockets else self.counted_lar(host, now_s)

    def shares(self, host: HostTopology, now_s: float) -> NodeShares | None:
        """Return which nodes made its accesses, as counted lately; None where that is not known."""
        rate = self.rate
        if rate is None or now_s - self.counted_s >= COUNTS_KEPT_S:
            return None
        is_known = not rate.misses_cpuless or not self._may_be_on_cpuless(host)
        return self.by_cpus.shares(host) if is_known else None

    def _may_be_on_cpuless(self, host: HostTopology) -> bool:
        """Tell whether some of its memory may be on nodes without CPUs."""
        nids = [node.nid for node in host.nodes if node.memory_bytes and not node.cpus]
        counts = self.pages.pages_by_node() if nids and self.pages else dict.fromkeys(nids, 1)
        return any(counts.get(nid, 0) for nid in nids)

    @property
    def view(self) -> GuestView:
        """Return what the policy may know, with rates by this host's clock."""
        return GuestView(
            self.topology,
            self.pages,
            self.settings,
            dram_per_us=self.dram_per_us,
            cpus=self.rate.cpus if self.rate else None,
            known_s=self.known_s,
            costs=tuple(self.costs.kept),
        )

    def known_for_s(self, now_s: float) -> float:
        """Return for how long its pages have been watched, on its last host and here."""
        return self.known_s + (0.0 if self.read_since_s is None else now_s - self.read_since_s)

    @property
    def waits_for(self) -> str | None:
        """Return why nothing of it may be changed just now, None if it may."""
        if self.is_migrating:
            return "it is being migrated: nothing moves until it has arrived"
        if self.is_awaited:
            return "libvirt does not answer, so its policy is not known yet"
        return "its schedule does not allow changes at this time" if self.is_off_hours else None

    def limits(self, now_ns: int) -> GuestLimits:
        """Return what its policy allows at this moment of the monotonic clock."""
        left = self.allowance.available_bytes(now_ns) if self.allowance else None
        return GuestLimits(self.topology, self.settings, self.pages, self.numatune, left)

    @property
    def numatune(self) -> Numatune:
        """Return which nodes its memory is bound to: by its domain's XML, else by QEMU's command line."""
        said = self.said.numatune if self.said else Numatune()
        return said if said.nids else self.bound

    def spend(self, moved_bytes: int, now_ns: int) -> None:
        """Count what moved against its own rate."""
        if self.allowance is not None:
            self.allowance.take(moved_bytes, now_ns)

    def follow(self, what: Decided) -> None:
        """Take up what was decided of its policy."""
        rate = what.settings.move_bytes_per_s
        if rate != self.settings.move_bytes_per_s or self.decided is None:
            self.allowance = None if rate is None else Budget(rate, burst_s=ALLOWANCE_S)
        self.settings, self.decided, self.problem = what.settings, what, what.problem

    @property
    def dram_per_us(self) -> float | None:
        """Return its accesses to DRAM a microsecond, None where nothing tells.

        As counted in the last window, or shortly before; else as samples imply, a mean of the last windows,
        as they are few.
        """
        if self.rate is not None and self.rate.dram_per_us is not None:
            return self.rate.dram_per_us
        use = self.memory_use
        return use.dram_per_us if use else None

    @property
    def memory_use(self) -> MemoryUse | None:
        """Return how the guest used memory in the last windows, None where no source tells."""
        return memory_use(reduce(add, self.served)) if self.served else None
