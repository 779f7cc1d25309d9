"""The kernel's NUMA balancing on a simulated stock host, beside the agent: on until the agent takes it.

It sees hint faults alone and knows nothing of the agent, as in policy kernel-balancing-model.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from vmplace.policy.baselines.stock import BalancingPlanner
from vmplace.simulate.agent_clock import WAKE_NS
from vmplace.simulate.guest_run import GuestRun
from vmplace.simulate.look import Look, Part
from vmplace.simulate.source_views import SourceView, looked, source_named


@dataclass
class KernelBalancing:
    """What it saw since its last look, and when the next one is; ``is_on`` asks for the sysctl."""

    is_on: Callable[[], bool]
    planner: BalancingPlanner = field(default_factory=BalancingPlanner)
    shown: dict[str, list[Part]] = field(default_factory=dict)
    next_wake_ns: float = WAKE_NS
    looked_at_ns: float = 0.0
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def look(self, guests: list[GuestRun], now_ns: float) -> dict[str, SourceView]:
        """Take in what faulted since the last look, and return it by guest."""
        source, span, seen = source_named("hints"), now_ns - self.looked_at_ns, dict[str, SourceView]()
        for guest in guests:
            name = guest.spec.name
            if parts := self.shown.pop(name, None):
                seen[name] = looked(source, Look(parts, guest.learnt.shown), self.chance)
                guest.learnt.absorb(seen[name], span)
        self.looked_at_ns = now_ns
        return seen
