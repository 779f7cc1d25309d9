"""Which figures follow from what was seen of a manager's run?"""

from dataclasses import dataclass
from typing import Any

from lab.scenario import ManagerName, Scenario
from lab.scenario_cost import Cost
from lab.scenario_figures import ManagerFigures
from lab.scenario_forecast import POLICY_OF, can_forecast, forecast_run_times
from lab.scenario_lines import declared_lines
from lab.scenario_meter import WindowSet
from lab.scenario_probe import VMSTAT, moved_bytes
from lab.scenario_result import GuestResult, ManagerResult
from lab.topology import LabTopology, cpu_nids
from vmplace.model.metrics import link_imbalance, mc_imbalance
from vmplace.topology.guest import PAGE_BYTES


@dataclass(frozen=True)
class Observed:
    """What was seen of one manager's run.

    ``cpu_loads``: CPUs that each guest used while the manager acted.  ``rates``: touches a second that guests
    declare, by number, and ``speed`` the share of them that they were to make.  ``shares``: by step, what
    of the machine others left to the emulated host, ``step_s`` how long it took.
    """

    manager: ManagerName
    before: WindowSet
    after: WindowSet
    emulated: WindowSet | None
    cpu_loads: dict[str, float]
    vmstat: tuple[dict[str, int], dict[str, int]]
    active_s: float | None
    figures: ManagerFigures
    vcpu_cpus: dict[str, dict[int, int]]
    verified: dict[str, Any]
    rates: dict[int, float]
    speed: float | None
    cost: Cost
    shares: dict[str, float]
    step_s: dict[str, float]
    versions: dict[str, str]


def judged(scenario: Scenario, topology: LabTopology, seen: Observed, run_time_s: float) -> ManagerResult:
    """Return the figures of a manager that took ``run_time_s``."""
    before, after, figures, rates = seen.before, seen.after, seen.figures, seen.rates
    forecast = _forecast(scenario, topology, seen)
    guests = {
        guest.name: _judged_guest(scenario, topology, guest_id, seen, forecast.get(guest.name))
        for guest_id, guest in enumerate(scenario.guests, start=1)
    }
    first, last = seen.vmstat
    return ManagerResult(
        guests=guests,
        mc_imbalance_before=before.median(lambda w: mc_imbalance(w.total_of_work(rates), w.memory_nids)),
        mc_imbalance_after=after.median(lambda w: mc_imbalance(w.total_of_work(rates), w.memory_nids)),
        link_imbalance_before=before.median(lambda w: link_imbalance(w.total_of_work(rates))),
        link_imbalance_after=after.median(lambda w: link_imbalance(w.total_of_work(rates))),
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
        retakes=before.retakes + after.retakes,
        cost_share=seen.cost.share,
        worst_guest_cost_share=seen.cost.worst_share,
        speed=seen.speed,
        machine_share=seen.shares,
        step_s=seen.step_s,
        notes=figures.notes,
        versions=seen.versions,
        kernel_counters={key: last[key] - first[key] for key in VMSTAT if key in first and key in last},
        unknown=figures.unknown,
    )


def _forecast(scenario: Scenario, topology: LabTopology, seen: Observed) -> dict[str, float]:
    if seen.emulated is None or seen.manager not in POLICY_OF or not can_forecast(scenario):
        return {}
    return forecast_run_times(scenario, topology, seen.manager, seen.cpu_loads)


def _judged_guest(
    scenario: Scenario, topology: LabTopology, guest_id: int, seen: Observed, forecast_s: float | None
) -> GuestResult:
    guest = scenario.guests[guest_id - 1]
    before, after = seen.before, seen.after
    cpus, nids = seen.vcpu_cpus.get(guest.name, {}), cpu_nids(topology)
    answer, emulated = seen.verified.get(guest.name), seen.emulated
    return GuestResult(
        vcpu_nids=guest.vcpu_nids,
        vcpu_nids_after=tuple(nids[cpus[i]] if i in cpus else None for i in range(len(guest.vcpu_nids))),
        lar_before=before.median(lambda w: w.lar(guest_id)),
        lar_after=after.median(lambda w: w.lar(guest_id)),
        lar_after_spread=after.spread(lambda w: w.lar(guest_id)),
        mc_imbalance_before=before.median(lambda w: w.mc_imbalance(guest_id)),
        mc_imbalance_after=after.median(lambda w: w.mc_imbalance(guest_id)),
        lines_per_touch=after.median(lambda w: w.lines_per_touch(guest_id)) if seen.rates else None,
        declared_lines_per_touch=declared_lines(scenario, guest, seen.speed or 1.0) if seen.rates else None,
        # Only the answer to "verify" is the exact check of every byte.
        intact=is_intact(answer) if answer and answer["event"] == "verified" else None,
        verified_bytes=answer["arena_pages"] * PAGE_BYTES if answer else None,
        bad_pages=answer["bad_pages"] if answer else None,
        touches=answer["touches"] if answer else None,
        lar_agent=seen.figures.guest_lar.get(guest.name),
        emulated_run_time_s=emulated.median(lambda w: w.emulated_run_time_s(guest_id)) if emulated else None,
        emulated_run_time_spread_s=(
            emulated.spread(lambda w: w.emulated_run_time_s(guest_id)) if emulated else None
        ),
        forecast_run_time_s=forecast_s,
        cpu_load=seen.cpu_loads.get(guest.name),
        traffic_before=before.windows[0].accesses_per_s(guest_id),
        traffic_after=after.windows[-1].accesses_per_s(guest_id),
        fetch_lar_before=before.median(lambda w: w.fetch_lar(guest_id)),
        fetch_lar_after=after.median(lambda w: w.fetch_lar(guest_id)),
    )


def is_intact(answer: dict[str, Any]) -> bool:
    """Tell whether a guest found all its memory as it should be, and all its code."""
    return bool(answer["bad_pages"] == 0 and answer["wrong_calls"] == 0)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
