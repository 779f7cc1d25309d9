"""What came out of a simulation: the figures of a run, summed while it goes, and its table row."""

from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from vmplace.model.memory_system import Load
from vmplace.model.metrics import Matrix, TrafficMatrix, imbalance, local_access_ratio
from vmplace.simulate.guest_run import GuestRun
from vmplace.simulate.host_file import PAGE_BYTES, SimulatedHost

NOISE = 0.01
"""A gain below this is none: a share of it would be a share of what no measurement could tell apart."""


@dataclass
class Meter:
    """Sums over simulated time: accesses by (CPU node, memory node), imbalances weighted by time."""

    host: SimulatedHost
    accesses: Matrix = field(init=False)
    time_ns: float = 0.0
    mc_imbalance_ns: float = 0.0
    link_imbalance_ns: float = 0.0

    def __post_init__(self) -> None:
        """Start at zero."""
        self.accesses = np.zeros((len(self.host.cpus), len(self.host.cpus)))
        self._memory = np.flatnonzero(self.host.system.controller > 0)

    def add(self, traffic: Matrix, load: Load, span_ns: float) -> None:
        """Count ``span_ns`` during which the accesses were ``traffic``."""
        self.accesses += traffic
        self.time_ns += span_ns
        self.mc_imbalance_ns += (imbalance(traffic.sum(axis=0)[self._memory]) or 0.0) * span_ns
        self.link_imbalance_ns += (imbalance(load.utilisation[len(self.accesses) :]) or 0.0) * span_ns


@dataclass(frozen=True)
class GuestResult:
    """One guest's run."""

    run_time_s: float
    moved_bytes: int
    replicated_bytes: int
    collapsed_pages: int
    refused_pages: int


class RunNames(TypedDict):
    """What was run; ``mix``: guests and their traces."""

    host: str
    mix: str
    policy: str
    source: str


class SimulationRow(RunNames):
    """``simulate``: a run beside those without moves (``none``) and under an oracle; times are modelled."""

    run_time_s: float
    lar: float | None
    mc_imbalance: float | None
    link_imbalance: float | None
    oracle_share: float | None
    oracle_run_time_s: float
    none_run_time_s: float
    worst_guest_slowdown: float
    guests: dict[str, GuestResult]


@dataclass(frozen=True)
class SimulationResult:
    """A run of all guests; ``run_time_s`` is the mean of theirs.  LAR and imbalances as in Carrefour."""

    run_time_s: float
    lar: float | None
    mc_imbalance: float | None
    link_imbalance: float | None
    guests: dict[str, GuestResult]


def result_of(guests: list[GuestRun], finished_ns: dict[str, float], meter: Meter) -> SimulationResult:
    """Return the result of a finished simulation."""
    nids, spans = meter.host.system.nids, meter.time_ns
    each = {
        guest.spec.name: GuestResult(
            run_time_s=float(finished_ns[guest.spec.name]) / 1e9,
            moved_bytes=guest.counts.moved * PAGE_BYTES,
            replicated_bytes=guest.counts.replicated * PAGE_BYTES,
            collapsed_pages=guest.counts.collapsed,
            refused_pages=guest.counts.refused,
        )
        for guest in guests
    }
    return SimulationResult(
        run_time_s=float(np.mean([one.run_time_s for one in each.values()])),
        lar=local_access_ratio(TrafficMatrix(nids, meter.accesses)),
        mc_imbalance=float(meter.mc_imbalance_ns / spans) if spans else None,
        link_imbalance=float(meter.link_imbalance_ns / spans) if spans else None,
        guests=each,
    )


def oracle_share(none_s: float, reached_s: float, oracle_s: float) -> float | None:
    """Return the share of the oracle's gain over doing nothing; None where it gains less than NOISE."""
    gain = none_s - oracle_s
    return (none_s - reached_s) / gain if gain > NOISE * none_s else None


def worst_slowdown(result: SimulationResult, none: SimulationResult) -> float:
    """Return by how much the worst guest is slower than under ``none``: 0.02 is 2 %, negative is faster.

    A time that is no number makes the answer none, whichever guest has it: max() would pass over it.
    """
    slower = [one.run_time_s / none.guests[name].run_time_s - 1.0 for name, one in result.guests.items()]
    return float(np.max(slower))


def row(  # the shape that bench-policy and --json share
    names: dict[str, str], result: SimulationResult, none: SimulationResult, oracle: SimulationResult
) -> dict[str, Any]:
    """Return one table row; ``names`` has host, mix, policy and source."""
    return {
        **names,
        "run_time_s": result.run_time_s,
        "lar": result.lar,
        "mc_imbalance": result.mc_imbalance,
        "link_imbalance": result.link_imbalance,
        "oracle_share": oracle_share(none.run_time_s, result.run_time_s, oracle.run_time_s),
        "oracle_run_time_s": oracle.run_time_s,
        "none_run_time_s": none.run_time_s,
        "worst_guest_slowdown": worst_slowdown(result, none),
        "guests": result.guests,
    }
