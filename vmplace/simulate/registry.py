"""Which policies and baselines can be simulated?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from vmplace.policy.baselines import uniform
from vmplace.policy.baselines.bwap import BwapPlanner
from vmplace.policy.baselines.carrefour import CarrefourPlanner
from vmplace.policy.baselines.kmaf import KmafPlanner
from vmplace.policy.baselines.stock import BalancingPlanner, NumadPlanner
from vmplace.policy.host_plan import HostPlanner
from vmplace.policy.host_view import HostPlacement, HostView, NodeIndexes
from vmplace.policy.registry import POLICY_NAMES
from vmplace.simulate.source_views import CLOCK_SCALE


class Reach(Enum):
    """What a policy acts on: new pages, pages by what was watched, or the future."""

    NEW = "new pages"
    WATCHED = "watched pages"
    AGENT = "watched pages, through the agent's own loop"
    FUTURE = "all windows, beforehand"
    FIXED = "all windows, beforehand, for new pages only"


class Planner(Protocol):
    """A policy at work on one host; it may remember."""

    def plan(self, view: HostView) -> HostPlacement:
        """Return where everything ought to be."""


@dataclass(frozen=True)
class Plain:
    """A policy that remembers nothing."""

    places: Callable[[HostView], list[NodeIndexes]]

    def plan(self, view: HostView) -> HostPlacement:
        """Return where each guest's pages ought to be."""
        return HostPlacement(self.places(view))


@dataclass(frozen=True)
class SimulatedPolicy:
    """How to begin a policy on a host, and what it acts on; ``agent_policy``: the agent's name for it.

    ``wants_estimates``: it asks what is still to come of pages, and not only what was seen of them.
    """

    planner: Callable[[], Planner]
    reach: Reach
    wants_sharing: bool = False
    every_wake: bool = False
    wants_estimates: bool = True
    agent_policy: str = ""


def _agent(name: str) -> SimulatedPolicy:
    return SimulatedPolicy(lambda: Plain(uniform.plan_none), Reach.AGENT, agent_policy=name)


POLICIES: Mapping[str, SimulatedPolicy] = {
    "none": SimulatedPolicy(lambda: Plain(uniform.plan_none), Reach.NEW),
    "interleave-all": SimulatedPolicy(lambda: Plain(uniform.plan_interleave_all), Reach.NEW),
    "interleave-workers": SimulatedPolicy(lambda: Plain(uniform.plan_interleave_workers), Reach.NEW),
    "numad-model": SimulatedPolicy(lambda: NumadPlanner(CLOCK_SCALE), Reach.WATCHED),
    "kernel-balancing-model": SimulatedPolicy(BalancingPlanner, Reach.WATCHED, wants_estimates=False),
    "carrefour-2013": SimulatedPolicy(lambda: CarrefourPlanner(CLOCK_SCALE), Reach.WATCHED),
    "kmaf": SimulatedPolicy(
        lambda: KmafPlanner(CLOCK_SCALE), Reach.WATCHED, wants_sharing=True, wants_estimates=False
    ),
    "bwap": SimulatedPolicy(BwapPlanner, Reach.WATCHED, every_wake=True),
    "vmplace": SimulatedPolicy(HostPlanner, Reach.WATCHED),
    **{f"agent:{name}": _agent(name) for name in POLICY_NAMES},
    "oracle": SimulatedPolicy(lambda: Plain(uniform.plan_none), Reach.FUTURE),
    "static-oracle": SimulatedPolicy(lambda: Plain(uniform.plan_none), Reach.FIXED),
}
