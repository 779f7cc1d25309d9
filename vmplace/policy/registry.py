"""Which policies are there?"""

from collections.abc import Callable, Mapping

from vmplace.policy import policy_home, policy_nodes
from vmplace.policy.plan import PlacementPlan, Snapshot

Policy = Callable[[Snapshot], PlacementPlan]

POLICIES: Mapping[str, Policy] = {"home": policy_home.plan, "nodes": policy_nodes.plan}
