"""Which figures follow from what was seen of a manager's run?"""

from dataclasses import dataclass
from typing import Any

from lab.scenario import Guest, ManagerName, Scenario
from lab.scenario_forecast import POLICY_OF, can_forecast, forecast_run_times
from lab.scenario_managers import ManagerFigures
from lab.scenario_meter import MeteredWindow
from lab.scenario_probe import VMSTAT, moved_bytes
from lab.scenario_result import GuestResult, ManagerResult
from lab.topology import LabTopology, cpu_nids
from vmplace.model.metrics import link_imbalance, mc_imbalance
from vmplace.topology.guest import PAGE_BYTES


@dataclass(frozen=True)
class Observed:
    """What was seen of one manager's run.

    ``cpu_loads``: CPUs that each guest used while the manager acted; empty if it got no time.
    """

    manager: ManagerName
    before: MeteredWindow
    after: MeteredWindow
    emulated: MeteredWindow | None
    cpu_loads: dict[str, float]
    vmstat: tuple[dict[str, int], dict[str, int]]
    active_s: float | None
    figures: ManagerFigures
    vcpu_cpus: dict[str, dict[int, int]]
    verified: dict[str, Any]


def judged(
    scenario: Scenario, topology: LabTopology, seen: Observed, run_time_s: float, attempts: int
) -> ManagerResult:
    """Return the figures of a manager that took ``run_time_s`` and so many attempts."""
    before, after, figures = seen.before, seen.after, seen.figures
    forecast = _forecast(scenario, topology, seen)
    guests = {
        guest.name: _judged_guest(topology, guest, guest_id, seen, forecast.get(guest.name))
        for guest_id, guest in enumerate(scenario.guests, start=1)
    }
    first, last = seen.vmstat
    return ManagerResult(
        guests=guests,
        mc_imbalance_before=mc_imbalance(before.total, before.memory_nids),
        mc_imbalance_after=mc_imbalance(after.total, after.memory_nids),
        link_imbalance_before=link_imbalance(before.total),
        link_imbalance_after=link_imbalance(after.total),
        moved_bytes=moved_bytes(first, last),
        moved_bytes_own=figures.moved_bytes_own,
        replica_bytes=figures.replica_bytes,
        manager_cpu_seconds=figures.cpu_seconds,
        manager_start_cpu_seconds=figures.start_cpu_seconds,
        manager_rss_bytes=figures.rss_bytes,
        longest_move_call_ms=figures.longest_move_call_ms,
        longest_move_call_cpu_ms=figures.longest_move_call_cpu_ms,
        active_s=seen.active_s,
        run_time_s=run_time_s,
        emulated_run_time_s=_mean([guest.emulated_run_time_s for guest in guests.values()]),
        forecast_run_time_s=_mean([guest.forecast_run_time_s for guest in guests.values()]),
        attempts=attempts,
        kernel_counters={key: last[key] - first[key] for key in VMSTAT if key in first and key in last},
        unknown=figures.unknown,
    )


def _forecast(scenario: Scenario, topology: LabTopology, seen: Observed) -> dict[str, float]:
    if seen.emulated is None or seen.manager not in POLICY_OF or not can_forecast(scenario):
        return {}
    return forecast_run_times(scenario, topology, seen.manager, seen.cpu_loads)


def _judged_guest(
    topology: LabTopology, guest: Guest, guest_id: int, seen: Observed, forecast_s: float | None
) -> GuestResult:
    cpus, nids = seen.vcpu_cpus.get(guest.name, {}), cpu_nids(topology)
    answer = seen.verified.get(guest.name)
    return GuestResult(
        vcpu_nids=guest.vcpu_nids,
        vcpu_nids_after=tuple(nids[cpus[i]] if i in cpus else None for i in range(len(guest.vcpu_nids))),
        lar_before=seen.before.lar(guest_id),
        lar_after=seen.after.lar(guest_id),
        mc_imbalance_before=seen.before.mc_imbalance(guest_id),
        mc_imbalance_after=seen.after.mc_imbalance(guest_id),
        # Only the answer to "verify" is the exact check of every byte.
        intact=is_intact(answer) if answer and answer["event"] == "verified" else None,
        verified_bytes=answer["arena_pages"] * PAGE_BYTES if answer else None,
        bad_pages=answer["bad_pages"] if answer else None,
        touches=answer["touches"] if answer else None,
        lar_agent=seen.figures.guest_lar.get(guest.name),
        emulated_run_time_s=seen.emulated.emulated_run_time_s(guest_id) if seen.emulated else None,
        forecast_run_time_s=forecast_s,
        cpu_load=seen.cpu_loads.get(guest.name),
        traffic_before=seen.before.accesses_per_s(guest_id),
        traffic_after=seen.after.accesses_per_s(guest_id),
        fetch_lar_before=seen.before.fetch_lar(guest_id),
        fetch_lar_after=seen.after.fetch_lar(guest_id),
    )


def is_intact(answer: dict[str, Any]) -> bool:
    """Tell whether a guest found all its memory as it should be, and all its code."""
    return bool(answer["bad_pages"] == 0 and answer["wrong_calls"] == 0)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
