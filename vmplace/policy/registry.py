"""Which policies can the agent run?  ``auto``, and a control that it is held against."""

from collections.abc import Callable, Mapping

from vmplace.policy.baselines import interleave
from vmplace.policy.gathering import EarlierTie
from vmplace.policy.plan import PlacementPlan, Snapshot
from vmplace.policy.policy_auto import AutoPolicy, Horizon
from vmplace.topology.guest import Identity

Policy = Callable[[Snapshot], PlacementPlan]

AUTO, INTERLEAVE = "auto", "interleave"
POLICY_NAMES = (AUTO, INTERLEAVE)
GONE = ("home", "nodes", "host", "joint")
"""Names of earlier versions: deciders of their own, and another name of ``auto``."""


def begun(
    name: str, horizon: Horizon | None = None, earlier: Mapping[Identity, EarlierTie] | None = None
) -> Policy:
    """Return the policy called ``name``, with nothing to remember yet but ties of an earlier agent."""
    return AutoPolicy(horizon, earlier) if name == AUTO else interleave.plan
