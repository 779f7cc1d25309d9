"""Which policies and baselines can be simulated?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from vmplace.policy import policy_uniform
from vmplace.policy.host_plan import plan_host
from vmplace.policy.host_view import HostView, NodeIndexes


class Reach(Enum):
    """What a policy acts on: new pages only, pages by what was watched, or the future."""

    NEW = "new pages"
    WATCHED = "watched pages"
    FUTURE = "the window that begins"


@dataclass(frozen=True)
class SimulatedPolicy:
    """A plan for all guests, and what it acts on."""

    plan: Callable[[HostView], list[NodeIndexes]]
    reach: Reach


POLICIES: Mapping[str, SimulatedPolicy] = {
    "none": SimulatedPolicy(policy_uniform.plan_none, Reach.NEW),
    "interleave-all": SimulatedPolicy(policy_uniform.plan_interleave_all, Reach.NEW),
    "interleave-workers": SimulatedPolicy(policy_uniform.plan_interleave_workers, Reach.NEW),
    "vmplace": SimulatedPolicy(plan_host, Reach.WATCHED),
    "oracle": SimulatedPolicy(policy_uniform.plan_none, Reach.FUTURE),
}
