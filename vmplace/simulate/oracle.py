"""How fast could the guests run, if every window were known beforehand?  The yardstick of all policies.

The oracle may do what policies may do, at the same price: from where pages are first touched it moves and
copies them when a window begins.  It differs in what it knows, and in that it may divide a page.

1. At given prices of an access in each window, a page's best course through all windows is a shortest
   path (dynamic programming over its node, or copies, per window; moves are paid).
2. All guests' windows are replayed with the courses' traffic: that gives run times, and new prices.
3. The schedule goes from the present mixture of courses towards the new ones, as far as the run times fall
   (Frank and Wolfe, as in ``descent``); go to 1.

For one guest step 2 is exact, and some tenths of a percent are left to gain at the end.  For several guests
the prices are those of the moments at which their windows met: a reference, not a proof.
Limits: memory is taken to be large enough; vCPUs stay; what a move costs is reckoned as if no guest ended.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vmplace.model.memory_system import Demand, MemorySystem, solved
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import HUGE_PAGES, Bools, NodeIndexes, demand
from vmplace.simulate.guest_run import GuestRun, GuestSpec, share_cpus
from vmplace.simulate.host_file import SimulatedHost
from vmplace.simulate.placement_costs import PlacementCosts
from vmplace.simulate.result import Meter, SimulationResult, result_of
from vmplace.simulate.scheduler import started

STEPS = 24
ENOUGH = 3e-4
"""Stop when a step makes run times shorter by less than this share."""
FORBIDDEN = 1e30
GOLDEN = 0.6180339887498949
LINE_STEPS = 7


@dataclass(frozen=True)
class WindowUse:
    """What a window of a guest does: heat of the pages it touches, by node, and how fast it could go.

    ``side_by_side`` vCPUs run at once if all have a CPU, ``parallelism`` while all guests share the CPUs.
    """

    pages: npt.NDArray[np.intp]
    heat: Matrix
    written: Bools
    accesses: float
    side_by_side: float
    parallelism: float
    think_ns: float

    @property
    def idle(self) -> bool:
        return len(self.pages) == 0


@dataclass(frozen=True)
class Course:
    """A schedule of one guest: traffic [W, N, N] and pause [W] (ns) of its windows."""

    traffic: Matrix
    pause_ns: Matrix

    def towards(self, other: "Course", share: float) -> "Course":
        """Return the mixture of two schedules."""
        return Course(
            (1 - share) * self.traffic + share * other.traffic,
            (1 - share) * self.pause_ns + share * other.pause_ns,
        )


@dataclass(frozen=True)
class KnownGuest:
    """All that is known of one guest: its windows, and where each page is first touched."""

    run: GuestRun
    uses: list[WindowUse]
    first: NodeIndexes
    states: npt.NDArray[np.intp]
    may_copy: bool
    copies: int

    @property
    def mlp(self) -> float:
        return self.run.spec.mlp

    def parallelism(self, window: int) -> float:
        """Return how many vCPUs run at once, as the CPUs are shared at this moment of the replay."""
        return self.uses[window].side_by_side * self.run.cpu_share


@dataclass(frozen=True)
class Replay:
    """What came of a schedule: run times (ns), and per guest the prices [W, N, N] of an access."""

    finished_ns: dict[str, float]
    prices: list[Matrix]
    meter: Meter

    @property
    def mean_ns(self) -> float:
        return float(np.mean(list(self.finished_ns.values())))


Chooser = Callable[[KnownGuest, Matrix, PlacementCosts], Course]


def oracle(
    host: SimulatedHost,
    specs: Sequence[GuestSpec],
    windows: int,
    costs: PlacementCosts,
    choose: Chooser,
) -> SimulationResult:
    """Return what comes out when every window is known beforehand, and ``choose`` tells courses at prices."""
    runs = [GuestRun(spec, host, windows) for spec in specs]
    started(runs, host)
    known = [_known(run, host.system) for run in runs]
    schedule = [_untouched(one) for one in known]
    best = _replayed(host, known, schedule)
    for _ in range(STEPS):
        aims = [choose(one, prices, costs) for one, prices in zip(known, best.prices, strict=True)]
        step = _step(host, known, schedule, aims, best)
        if step is None:
            break
        before, (schedule, best) = best.mean_ns, step
        if before - best.mean_ns < ENOUGH * before:
            break
    return result_of(runs, best.finished_ns, best.meter)


def _step(
    host: SimulatedHost, known: list[KnownGuest], now: list[Course], aims: list[Course], best: Replay
) -> tuple[list[Course], Replay] | None:
    """Return the best mixture on the way to the aims, or None if none is better than the present."""

    def at(share: float) -> tuple[float, list[Course], Replay]:
        mixed = [a.towards(b, share) for a, b in zip(now, aims, strict=True)]
        replay = _replayed(host, known, mixed)
        return replay.mean_ns, mixed, replay

    low, high = 0.0, 1.0
    left, right = at(1 - GOLDEN), at(GOLDEN)
    tried = [at(1.0), left, right]
    for _ in range(LINE_STEPS):
        if left[0] < right[0]:
            high, right = low + GOLDEN * (high - low), left
            left = at(high - GOLDEN * (high - low))
            tried.append(left)
        else:
            low, left = high - GOLDEN * (high - low), right
            right = at(low + GOLDEN * (high - low))
            tried.append(right)
    mean_ns, mixed, replay = min(tried, key=lambda one: one[0])
    return (mixed, replay) if mean_ns < best.mean_ns else None


def _known(run: GuestRun, system: MemorySystem) -> KnownGuest:
    """Look at all windows of the guest in advance."""
    uses = []
    while True:
        pages = np.flatnonzero(run.truth.dram.any(axis=1) | run.truth.stores.any(axis=1))
        uses.append(
            WindowUse(
                pages,
                run.truth.dram[pages],
                run.truth.stores[pages].max(axis=1) > 0,
                run.accesses,
                run.side_by_side,
                run.parallelism,
                run.think_ns,
            )
        )
        if not run.advance():
            break
    memory = np.flatnonzero(system.controller > 0)
    near = bool((system.controller[run.worker] > 0).all())
    first = run.first_touch_nodes(np.arange(run.spec.trace.npages))
    first = np.where(system.controller[first] > 0, first, _nearest(system, memory)[first]).astype(np.int8)
    return KnownGuest(run, uses, first, memory, near, max(int(run.worker.sum()) - 1, 1))


def _nearest(system: MemorySystem, memory: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    nearest: npt.NDArray[np.intp] = memory[system.latency[:, memory].argmin(axis=1)]
    return nearest


def _untouched(known: KnownGuest) -> Course:
    count = known.uses[0].heat.shape[1]
    traffic = np.zeros((len(known.uses), count, count))
    for window, use in enumerate(known.uses):
        at = known.first[use.pages]
        for node in known.states:
            traffic[window, :, node] = use.heat[at == node].sum(axis=0)
    return Course(traffic, np.zeros(len(known.uses)))


def best_course(known: KnownGuest, prices: Matrix, costs: PlacementCosts) -> Course:
    """Return the schedule that is best at ``prices`` (ns of the guest's time per access)."""
    states = len(known.states)
    to_go = np.zeros((len(known.first), states + 1))
    chosen: list[npt.NDArray[np.int8]] = []
    for window in range(len(known.uses) - 1, -1, -1):
        use, move = known.uses[window], _move_ns(known, known.uses[window], costs)
        value = served(known, use, prices[window]) + to_go[use.pages]
        # A page that moves goes to the best place: a move costs the same from every node.
        rows, node = np.arange(len(value)), value[:, :states].argmin(axis=1)
        elsewhere, copies = value[rows, node] + move, value[:, states] + move * known.copies
        target = np.where(copies < elsewhere, states, node)
        moved = np.minimum(copies, elsewhere)[:, None]
        stay = value <= moved
        chosen.append(np.where(stay, np.arange(states + 1), target[:, None]).astype(np.int8))
        to_go[use.pages] = np.where(stay, value, moved)
    chosen.reverse()
    return followed(known, chosen, costs)


def followed(known: KnownGuest, chosen: list[npt.NDArray[np.int8]], costs: PlacementCosts) -> Course:
    """Return the traffic and the pauses of the courses that ``chosen`` tells, window by window."""
    states, count = len(known.states), known.uses[0].heat.shape[1]
    at = np.searchsorted(known.states, known.first)
    course = _untouched(known)
    traffic, pause = np.zeros_like(course.traffic), np.zeros_like(course.pause_ns)
    for window, use in enumerate(known.uses):
        before = at[use.pages]
        after = chosen[window][np.arange(len(before)), before]
        at[use.pages] = after
        changed = after != before
        weight = np.where(after[changed] == states, known.copies, 1).sum()
        pause[window] = weight * _move_ns(known, use, costs)
        for index, node in enumerate(known.states):
            traffic[window, :, node] = use.heat[after == index].sum(axis=0)
        traffic[window][np.diag_indices(count)] += use.heat[after == states].sum(axis=0)
    return Course(traffic, pause)


def served(known: KnownGuest, use: WindowUse, prices: Matrix) -> Matrix:
    """Return what the window's accesses to each page cost, by the page's place; the last place is copies."""
    cost = np.empty((len(use.pages), len(known.states) + 1))
    cost[:, :-1] = use.heat @ prices[:, known.states]
    cost[:, -1] = use.heat @ np.diag(prices)
    cost[use.written | (not known.may_copy), -1] = FORBIDDEN
    return cost


def _move_ns(known: KnownGuest, use: WindowUse, costs: PlacementCosts) -> float:
    pages = known.run.unit_pages
    return costs.unit_ns(pages) / max(use.parallelism, 1.0) + costs.flush_ns * pages / HUGE_PAGES


def _replayed(host: SimulatedHost, known: list[KnownGuest], schedule: list[Course]) -> Replay:
    """Run the schedules side by side."""
    system, count = host.system, len(host.cpus)
    window = [0] * len(known)
    left, pause = [1.0] * len(known), [float(course.pause_ns[0]) for course in schedule]
    prices = [np.zeros((len(one.uses), count, count)) for one in known]
    finished: dict[str, float] = {}
    meter, now = Meter(host), 0.0
    active = list(range(len(known)))
    share_cpus([one.run for one in known], host)
    while active:
        running = [g for g in active if pause[g] <= 1e-3]
        spans = [pause[g] for g in active if g not in running]
        if running:
            traffics = [schedule[g].traffic[window[g]] for g in running]
            load = solved(system, _demand(known, window, running, traffics))
            speeds = [r / known[g].uses[window[g]].accesses for r, g in zip(load.rates, running, strict=True)]
            spans += [left[g] / speed for g, speed in zip(running, speeds, strict=True)]
            span = min(spans)
            total = np.sum([t * p for t, p in zip(traffics, speeds, strict=True)], axis=0)
            meter.add(total * span, load, span)
            marginal = _marginal(system, known, window, running, traffics, load.rates)
            for index, (g, speed) in enumerate(zip(running, speeds, strict=True)):
                done = speed * span
                prices[g][window[g]] += min(done, left[g]) * marginal[index]
                left[g] = 0.0 if done >= left[g] * (1 - 1e-12) else left[g] - done
        else:
            span = min(spans)
        now += span
        for g in active:
            if g not in running:
                pause[g] -= span
        for g in [g for g in running if left[g] == 0.0]:
            window[g] += 1
            if window[g] == len(known[g].uses):
                finished[known[g].run.spec.name] = now
                active.remove(g)
                share_cpus([known[other].run for other in active], host)
            else:
                left[g], pause[g] = 1.0, float(schedule[g].pause_ns[window[g]])
    return Replay(finished, prices, meter)


def _demand(known: list[KnownGuest], window: list[int], running: list[int], traffics: list[Matrix]) -> Demand:
    nothing = np.zeros((0, traffics[0].shape[0]))
    base = [known[g].run.speed_evidence() for g in running]
    guests = tuple(
        replace(
            one,
            heat=nothing,
            parallelism=known[g].parallelism(window[g]),
            think_ns=known[g].uses[window[g]].think_ns,
        )
        for g, one in zip(running, base, strict=True)
    )
    return demand(guests, traffics)


def _marginal(  # noqa: PLR0913  (one moment of the replay)
    system: MemorySystem,
    known: list[KnownGuest],
    window: list[int],
    running: list[int],
    traffics: list[Matrix],
    rates: Matrix,
) -> list[Matrix]:
    """Return what one more access from k to j costs, in ns of the time of the guest that makes it.

    Waits that it causes to others count as its own.  As everyone who waits asks less, only a part of the
    wait is felt: 1 / (1 + rate^2 x slope of the latency / (mlp x parallelism)).
    """
    shares = [t / max(t.sum(), 1e-300) for t in traffics]
    asked = np.einsum(
        "kj,kjr->r", np.sum([r * s for r, s in zip(rates, shares, strict=True)], axis=0), system.visits
    )
    price = system.latency + system.visits @ system.marginal_waits(asked)
    more = system.waits(asked * (1 + 1e-4))
    now = system.waits(asked)
    answers = []
    for g, rate, share in zip(running, rates, shares, strict=True):
        uses = np.einsum("kj,kjr->r", share, system.visits)
        slope = float(uses @ (more - now)) / (1e-4 * max(float(rates.sum()), 1e-300))
        ease = known[g].mlp * known[g].parallelism(window[g])
        felt = 1.0 / (1.0 + rate * rate * slope / ease)
        answers.append(price * felt / ease)
    return answers
