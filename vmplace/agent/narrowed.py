"""Combine a tenant's annotations with the operator's policy, which they can only narrow.  Pure.

Tenants may annotate their instances.  So an annotation may ask for less than vmplace.toml says, or for a key
that vmplace.toml does not state, but never for priority.  Of two modes, the one that does less holds; of two
limits, the lower one; of nodes and techniques, those that both name.  The operator's schedule holds alone.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from vmplace.agent.guest_policy import ContradictionError, GuestPolicy

MODES = ("manual", "advise", "auto")
"""From the one that does least."""


def narrowed(tenant: GuestPolicy, operator: GuestPolicy) -> GuestPolicy:
    """Return what the tenant says that holds before the operator's word; raises ContradictionError."""
    said, limits = tenant.stated(), operator.stated()
    said.pop("priority", None)
    left = {key: NARROWER[key](said[key], limits[key]) if key in limits else said[key] for key in said}
    if left.get("allowed_nids") == ():
        message = f"allowed_nids {list(tenant.allowed_nids or ())} has none of those that vmplace.toml allows"
        raise ContradictionError("allowed_nids", message, f"choose of {list(operator.allowed_nids or ())}")
    new = {key: value for key, value in left.items() if value != limits.get(key)}
    return msgspec.structs.replace(GuestPolicy(), **new)


def _lower_mode(tenant: str, operator: str) -> str:
    return min(tenant, operator, key=MODES.index)


def _common(tenant: tuple[Any, ...], operator: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one for one in operator if one in tenant)


def _preferred(tenant: tuple[int, ...], operator: tuple[int, ...]) -> tuple[int, ...]:
    return _common(tenant, operator) or operator


def _left_huge(tenant: str, operator: str) -> str:
    return "leave" if "leave" in (tenant, operator) else "move"


def _operators(tenant: Any, operator: Any) -> Any:
    return operator


NARROWER: dict[str, Callable[[Any, Any], Any]] = {
    "mode": _lower_mode,
    "allowed_nids": _common,
    "preferred_nids": _preferred,
    "techniques": _common,
    "replica_mb": min,
    "move_mb_per_s": min,
    "huge_pages": _left_huge,
    "schedule": _operators,
}
