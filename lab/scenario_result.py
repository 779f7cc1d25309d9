"""What came out of a scenario: the figures of each manager and guest, and their JSON form.

The shape of the JSON is a promise to programs that read build/demo/result.json: keys are added, never
renamed.  ``None`` is "no answer"; ``unknown`` then holds the reason under the figure's name.
"""

from pathlib import Path

import msgspec

from lab.scenario import ManagerName

SCHEMA_VERSION = 1
ACTS = "acts"
WINDOWS_BEFORE, WINDOWS_AFTER = "metered windows before", "metered windows after"
EMULATED_WINDOW, COST_TURNS = "windows in emulated time", "what it costs, in turns"
VERIFIED, VERIFIED_COPIES = "guests verify all their memory", "guests verify all copies of it"
"""Steps of a manager's run from which figures come, as ``machine_share`` calls them."""
WORK_TOUCHES = 100_000_000
"""The work that emulated run times are given for."""
TRUTH = {
    "counts": "DRAM accesses behind a modelled cache, counted by the meter in the emulator: complete",
    "forecast_run_time_s": "the simulator's, from the declared patterns and a model of the manager",
    "placement": "real: Linux, KVM, QEMU and libvirt inside the emulated host",
    "emulated_run_time_s": "a model: vmplace/model's latency and queueing, paid by vCPUs in dilated time",
    "time": "the emulated host's own clock; not comparable with real hardware",
}


class GuestResult(msgspec.Struct, frozen=True, kw_only=True):
    """One guest under one manager.

    LAR and MC imbalance are metered (DRAM accesses of the guest's vCPUs).  ``traffic_*[i][j]`` are its
    accesses per second from ``nids[i]`` to ``nids[j]``.  ``intact`` is the guest's own exact verification of
    all its memory; ``lar_agent`` is what the agent believes.  ``emulated_run_time_s`` is how long the guest,
    working as fast as it can, takes for WORK_TOUCHES touches, by its rate in the emulated window; None where
    the scenario does not measure it.  ``forecast_run_time_s`` is what the simulator says of it
    (scenario_forecast.py).  ``cpu_load``: CPUs that the guest used while the manager acted.
    ``fetch_lar_*``: the share of its instructions whose code lies on the node that executes them.
    Figures "after" and emulated run times are medians of three windows, ``*_spread`` how far these are
    apart.
    ``lines_per_touch`` is what the meter counted, ``declared_lines_per_touch`` what follows from the declared
    pattern.
    """

    vcpu_nids: tuple[int, ...]
    vcpu_nids_after: tuple[int | None, ...]
    lar_before: float | None
    lar_after: float | None
    mc_imbalance_before: float | None
    mc_imbalance_after: float | None
    intact: bool | None
    verified_bytes: int | None
    bad_pages: int | None
    touches: int | None
    lar_agent: float | None = None
    emulated_run_time_s: float | None = None
    forecast_run_time_s: float | None = None
    cpu_load: float | None = None
    traffic_before: tuple[tuple[float, ...], ...] = ()
    traffic_after: tuple[tuple[float, ...], ...] = ()
    fetch_lar_before: float | None = None
    fetch_lar_after: float | None = None
    lar_after_spread: float | None = None
    emulated_run_time_spread_s: float | None = None
    lines_per_touch: float | None = None
    declared_lines_per_touch: float | None = None


class ManagerResult(msgspec.Struct, frozen=True, kw_only=True):
    """One manager.  The imbalances are over the traffic of all guests together.

    ``moved_bytes`` is the kernel's own count (pgmigrate_success), the same for all managers;
    ``moved_bytes_own`` the manager's. ``replica_bytes``: what copies of guests' pages take in the end, by
    KVM's count. ``manager_cpu_seconds`` contains what its start took (``manager_start_cpu_seconds``, for
    the agent). ``active_s`` is how long it moved pages, by the host's clock. ``longest_move_call_ms``
    contains waiting for a CPU and for others to drain their page lists, ``longest_move_call_cpu_ms`` is
    the most that a call worked. ``emulated_run_time_s`` and ``forecast_run_time_s`` are the means of the
    guests'; None if one has none. ``retakes``: windows that were taken again as a guest came to less than
    80 % of its touches; those before, which all managers share, count for the first that ran.
    ``cost_share``: which share of what guests do at full speed the running manager costs when all is
    placed, ``worst_guest_cost_share`` that of the guest that loses most. ``speed``: which share of their
    declared touches guests made in the end. ``machine_share``: what
    of the machine others left to the emulated host in each step, ``step_s`` how long that took.
    """

    guests: dict[str, GuestResult]
    mc_imbalance_before: float | None
    mc_imbalance_after: float | None
    link_imbalance_before: float | None
    link_imbalance_after: float | None
    moved_bytes: int | None
    moved_bytes_own: int | None
    replica_bytes: int = 0
    manager_cpu_seconds: float | None
    manager_start_cpu_seconds: float | None = None
    manager_rss_bytes: int | None = None
    longest_move_call_ms: float | None
    longest_move_call_cpu_ms: float | None = None
    active_s: float | None
    run_time_s: float
    emulated_run_time_s: float | None = None
    forecast_run_time_s: float | None = None
    retakes: int = 0
    cost_share: float | None = None
    worst_guest_cost_share: float | None = None
    speed: float | None = None
    machine_share: dict[str, float] = {}
    step_s: dict[str, float] = {}
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    kernel_counters: dict[str, int] = {}
    unknown: dict[str, str] = {}


class ScenarioResult(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario under several managers, each from the same snapshot of host and guests.

    ``speed``: at which share of their declared rates guests worked.  ``too_slow``: why not all was judged;
    ``undecided``: what did not come out, without a verdict (scenario_verdict.py).  ``skipped``: how many
    claims compare with a manager that was not asked for, by its name.
    """

    scenario: str
    topology: str
    nids: tuple[int, ...]
    managers: dict[ManagerName, ManagerResult]
    failed_expectations: tuple[str, ...] = ()
    too_slow: str | None = None
    undecided: tuple[str, ...] = ()
    skipped: dict[str, int] = {}
    # The word that kept results have.
    speed: float | None = msgspec.field(default=None, name="pace")
    seed: int
    versions: dict[str, str] = {}
    truth: dict[str, str] = msgspec.field(default_factory=lambda: dict(TRUTH))
    schema_version: int = SCHEMA_VERSION


def write_result(result: ScenarioResult, path: Path) -> None:
    """Write the JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    temporary.replace(path)
