"""How many accesses does a guest make, and how long does it work between two of them?

Counted, where something counts.  Else a guest is taken to work half of its time.

Time: the planner's constants are of programs that run ``CLOCK_SCALE`` times as fast as real ones
(docs/simulate.md).  ``Horizon`` says how the agent's time and prices relate to them.
"""

from dataclasses import dataclass, replace

import numpy as np

from vmplace.model.evidence import Entries
from vmplace.model.heat_horizon import HORIZON_S
from vmplace.model.memory_system import MemorySystem
from vmplace.model.metrics import Matrix
from vmplace.policy.corner_mix import asked_of
from vmplace.policy.host_view import GuestEvidence
from vmplace.policy.plan import GuestView
from vmplace.policy.plan_state import State

LEAST_CPUS = 0.05
"""Of an idle guest: it has some work now and then."""
THINK_NS = 50.0
"""Between two accesses of a vCPU, where nothing counts them: about as long as it waits for one."""
THINK_HALF_LIFE_S = 4.0
THINK_LEAP = 1.5
"""Work between two accesses that is so many times as long, or as short, is another phase of the program."""


@dataclass(frozen=True)
class Horizon:
    """How the agent's time relates to the planner's.

    ``scale``: seconds of the agent for one of the planner's.  ``price``: what changes cost, in the planner's
    time, as a share of their price in real ns: 1 in a simulation whose programs are as short as the planner
    thinks; 1 / scale where programs run as long as the agent.
    """

    scale: float = 50.0
    price: float = 1 / 50.0


def known_s(guest: GuestView, window_s: float) -> float:
    """Return for how long the guest's pages have been watched, at least."""
    return max(guest.known_s, (guest.pages.windows if guest.pages else 0) * window_s)


def weight_of_touch(entries: Entries, guest: GuestView, known_s: float, horizon: Horizon) -> float:
    """Return what one of the evidence's touches counts for, beside prices that are ``horizon.price``."""
    if guest.dram_per_us is None:
        # A touch may stand for one access or for thousands: more than was seen is not staked on it.
        return horizon.price
    seen = float(entries.heat.sum())
    return expected_accesses(guest, known_s, horizon) / seen if seen > 0 else 0.0


def expected_accesses(guest: GuestView, known_s: float, horizon: Horizon) -> float:
    """Return the accesses that are expected of a guest.

    What was seen is expected once more: of a guest that is known for a second, no more than a second's.
    """
    return _per_ns(guest) * 1e9 * min(known_s, HORIZON_S) / horizon.scale


def _per_ns(guest: GuestView) -> float:
    """Return the guest's accesses to DRAM a ns: counted, or those of vCPUs that wait half of the time."""
    if guest.dram_per_us is not None:
        return guest.dram_per_us / 1000
    return parallelism_of(guest) / (2 * THINK_NS)


def parallelism_of(guest: GuestView) -> float:
    """Return how many of the guest's vCPUs run at a time; all, where nothing says."""
    vcpus = max(len(guest.topology.vcpus), 1)
    return float(vcpus if guest.cpus is None else min(max(guest.cpus, LEAST_CPUS), vcpus))


def think_times(
    system: MemorySystem,
    evidence: tuple[GuestEvidence, ...],
    guests: list[GuestView],
    traffics: list[Matrix],
) -> list[float]:
    """Return the work between two accesses of each guest that explains the rate that was counted.

    A vCPU's time between two accesses is work and latency / mlp (memory_system.py).  Where nothing counts, a
    guest is taken to work half of its time.
    """
    shares = np.stack([one / max(float(one.sum()), 1e-300) for one in traffics])
    reported = [guest.dram_per_us for guest in guests]
    rates = np.array([_per_ns(guest) for guest in guests])
    waits = system.visits @ system.waits(asked_of(system, rates, shares))
    latency = np.einsum("gkj,kj->g", shares, system.latency + waits)
    return [
        one.think_ns if counted is None else max(one.parallelism / max(rate, 1e-6) - wait / one.mlp, 0.1)
        for one, counted, rate, wait in zip(evidence, reported, rates.tolist(), latency.tolist(), strict=True)
    ]


def with_think(guest: GuestEvidence, think_ns: float, state: State, now_s: float) -> GuestEvidence:
    """Return a guest with work between two accesses as counted; of one node: that follows it, but for leaps.

    One window's count varies by a tenth and more, and with it how many pages are to leave a full controller.
    Pages that several nodes share follow no count anyhow (even_spread.py).
    """
    before = state.think_ns.get(guest.name)
    is_of_one_node = guest.is_counted and guest.nodes_of_vcpus <= 1
    if before is not None and is_of_one_node and 1 / THINK_LEAP < think_ns / before < THINK_LEAP:
        kept = 0.5 ** ((now_s - state.planned_s) / THINK_HALF_LIFE_S)
        think_ns = kept * before + (1 - kept) * think_ns
    return replace(guest, think_ns=think_ns)
