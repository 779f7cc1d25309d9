"""Which policies are there?"""

from collections.abc import Callable, Mapping

from vmplace.policy import policy_home, policy_host, policy_interleave, policy_nodes
from vmplace.policy.plan import PlacementPlan, Snapshot
from vmplace.policy.policy_auto import AutoPolicy, Horizon

Policy = Callable[[Snapshot], PlacementPlan]

POLICIES: Mapping[str, Policy] = {
    "home": policy_home.plan,
    "nodes": policy_nodes.plan,
    "host": policy_host.plan,
    "interleave": policy_interleave.plan,
}
"""Those that remember nothing."""
AUTO = "auto"
JOINT = "joint"
BY_NODE = ("nodes", "host", JOINT)
"""Those that ask which node uses a page, and how often; the others know the guests' vCPUs alone."""


def policy_name(wanted: str) -> str:
    """Return ``wanted``, or for "auto" the joint plan: what a source does not tell, it leaves alone."""
    return JOINT if wanted == AUTO else wanted


def policy_names() -> tuple[str, ...]:
    """Return the names of all policies."""
    return (*POLICIES, JOINT)


def begun(name: str, horizon: Horizon | None = None) -> Policy:
    """Return the policy called ``name``, with nothing to remember yet."""
    return AutoPolicy(horizon) if name == JOINT else POLICIES[name]
