"""Made-up figures of a scenario, for tests of what is done with figures."""

from typing import Any

from lab.scenario_result import GuestResult, ManagerResult

HOME: dict[str, Any] = {
    "vcpu_nids": (0, 0),
    "vcpu_nids_after": (0, 0),
    "lar_before": 0.1,
    "lar_after": 0.99,
    "mc_imbalance_before": 2.0,
    "mc_imbalance_after": 0.1,
    "fetch_lar_before": 0.25,
    "fetch_lar_after": 0.8,
    "intact": True,
    "verified_bytes": 4096,
    "bad_pages": 0,
    "touches": 1,
    "traffic_before": ((0.0, 40.0), (0.0, 0.0)),
    "traffic_after": ((40.0, 0.0), (0.0, 0.0)),
}
MANAGER: dict[str, Any] = {
    "mc_imbalance_before": 1.0,
    "mc_imbalance_after": 0.2,
    "link_imbalance_before": None,
    "link_imbalance_after": None,
    "moved_bytes": 4096,
    "moved_bytes_own": None,
    "manager_cpu_seconds": 1.0,
    "longest_move_call_ms": 25.0,
    "active_s": 1.0,
    "run_time_s": 1.0,
}


def manager(**guest: Any) -> ManagerResult:
    """Return a manager that brought the guest "web" home, except for what the keywords say of it."""
    return ManagerResult(guests={"web": GuestResult(**HOME | guest)}, **MANAGER)
