"""How long does a memory access take, when all guests of the host access at once?

1. An access from node k to node j takes the unloaded latency of the pair, then queues at the memory
   controller of j and at each link on the route: wait = queue x rho / (1 - rho), rho the utilisation.
2. Guests are closed loops: a vCPU that waits longer asks less often.  A guest's vCPUs together make
   parallelism / (think + latency / mlp) accesses per unit of time.
3. Both hold at one point only, the maximum of a concave function of the rates (``solved`` climbs it by
   Newton's method, so that no damping has to be chosen).

Any unit of time will do as long as it is the same everywhere; vmplace uses ns.
Source of the shape: Carrefour (ASPLOS'13), section 2; of ``CARREFOUR_2013``: its table 1.
Limits: no burstiness, no row-buffer or direction effects, and threads do not wait for the slowest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vmplace import native
from vmplace.model.metrics import Matrix
from vmplace.topology.routes import Way, route_shares

KNEE = 0.99
"""Beyond this utilisation the wait follows its tangent: finite, so that degrees of overload still differ."""
MAX_STEPS = 200
NO_CAPACITY = 1e-9
"""Stands for the capacity of a node without memory, which nothing asks: zero would divide."""


@dataclass(frozen=True)
class Link:
    """A connection of two nodes (indexes) and the accesses per unit of time that it carries.

    Both directions share the capacity; a link that is ``directed`` serves only accesses from CPUs on
    ``ends[0]`` to memory on ``ends[1]``.
    """

    ends: tuple[int, int]
    capacity: float
    directed: bool = False


@dataclass(frozen=True)
class MemorySystem:
    """The memory side of a host with N nodes, in the order of ``nids``.

    ``latency[k, j]``: unloaded latency from CPUs on node k to memory on j.  ``controller[j]``: accesses
    per unit of time that j's memory serves; 0 for a node without memory.  ``visits[k, j, r]`` is 1
    where an access from k to j passes resource r: the N controllers, then the links.  ``queue``: accesses
    that a resource serves at a time; the wait at rho = 1/2 is queue / capacity.
    """

    nids: tuple[int, ...]
    latency: Matrix
    controller: Matrix
    links: tuple[Link, ...]
    visits: Matrix
    queue: float

    @cached_property
    def capacities(self) -> Matrix:
        """Return the capacity of each resource: controllers, then links."""
        links: Matrix = np.array([link.capacity for link in self.links])
        return np.concatenate([self.controller, links])

    def waits(self, rates: Matrix) -> Matrix:
        """Return the queueing time at each resource that is asked ``rates`` accesses per unit of time."""
        load, _ = _queue_length(self._utilisation(rates))
        waits: Matrix = load * self._service()
        return waits

    def marginal_waits(self, rates: Matrix) -> Matrix:
        """Return what one more access costs all of them: d(rate x wait) / d rate."""
        rho = self._utilisation(rates)
        load, slope = _queue_length(rho)
        costs: Matrix = (load + rho * slope) * self._service()
        return costs

    def waits_and_margins(self, rates: Matrix) -> tuple[Matrix, Matrix]:
        """Return ``waits`` and ``marginal_waits``, for less than both take."""
        rho = self._utilisation(rates)
        load, slope = _queue_length(rho)
        return load * self._service(), (load + rho * slope) * self._service()

    def _utilisation(self, rates: Matrix) -> Matrix:
        return rates * self._per_capacity

    @cached_property
    def _per_capacity(self) -> Matrix:
        return 1 / np.maximum(self.capacities, NO_CAPACITY)

    @cached_property
    def _service_times(self) -> Matrix:
        return self.queue * self._per_capacity

    @cached_property
    def _diagonal(self) -> Matrix:
        return np.eye(len(self.capacities))

    def _service(self) -> Matrix:
        return self._service_times


@dataclass(frozen=True)
class Demand:
    """What G guests ask of the memory.

    ``shares[g, k, j]`` (sum 1 per guest): share of its accesses from node k to j.  ``parallelism[g]``:
    vCPUs that run at once.  ``think[g]``: time between two accesses that is not memory latency.
    ``mlp[g]``: accesses that overlap (memory-level parallelism).
    """

    shares: Matrix
    parallelism: Matrix
    think: Matrix
    mlp: Matrix


@dataclass(frozen=True)
class Load:
    """The state in which demand and latency agree: per guest, and per resource of the memory system."""

    rates: Matrix
    latencies: Matrix
    utilisation: Matrix


def routed(
    nids: tuple[int, ...], latency: Matrix, controller: Matrix, links: Sequence[Link], queue: float
) -> MemorySystem:
    """Return the memory system whose accesses take the routes of fewest links.

    Equally short routes share the accesses evenly.  Raises ValueError where no route leads to memory.
    """
    count = len(nids)
    visits = np.zeros((count, count, count + len(links)))
    visits[:, :, count:] = route_shares(count, [Way(link.ends, link.directed) for link in links])
    visits[:, np.arange(count), np.arange(count)] = 1
    reached = visits[:, :, count:].any(axis=2) | np.eye(count, dtype=bool)
    if not (reached | (controller == 0)).all():
        raise ValueError("no route leads from every node to every node with memory")
    return MemorySystem(nids, latency, controller, tuple(links), visits, queue)


def solved(system: MemorySystem, demand: Demand, guess: Matrix | None = None) -> Load:
    """Return rates and latencies at which every guest asks as often as its latency allows.

    ``guess``: rates of nearly the same demand, from which it takes a few steps only.

    The gradient of f(x) = sum mlp (parallelism ln x - think x) - latency x - sum of queue areas is zero
    exactly there, and f is concave: Newton's steps, halved until f rises, reach it from anywhere.
    """
    uses = _uses(system, demand)
    unloaded = np.einsum("gkj,kj->g", demand.shares, system.latency)
    alone = demand.parallelism / (demand.think + (unloaded + 1) / demand.mlp)
    rates = alone if guess is None else guess
    goal = _potential(system, demand, uses, unloaded, rates)
    for _ in range(MAX_STEPS):
        gradient, step = _newton_step(system, demand, uses, unloaded, rates)
        change = step / rates
        if np.abs(change).max(initial=0.0) < 1e-9:
            break
        length = min(1.0, 0.9 / max(float((-change).max()), 1e-12))
        if float(gradient @ step) < 1e-11 * abs(goal):
            # What f could still gain is below its own rounding: to compare it would be to roll dice.
            rates = rates + length * step
            break
        before, tried = goal, rates + length * step
        while (goal := _potential(system, demand, uses, unloaded, tried)) < before and length > 1e-12:
            length /= 2
            tried = rates + length * step
        rates = tried
    resource_rates = rates @ uses
    return Load(rates, unloaded + uses @ system.waits(resource_rates), system._utilisation(resource_rates))


def beside(system: MemorySystem, demand: Demand, background: Matrix) -> Matrix:
    """Return the rate of each guest by itself beside ``background[G, R]``, rates at the resources that stay.

    Each guest is a problem of its own: hundreds take as long as a few.  The excess of a guest's time between
    two accesses over what it waits and thinks rises and is concave in that time, so that Newton's steps from
    below, where nobody waits, never pass the root.
    """
    uses = _uses(system, demand)
    unloaded = np.einsum("gkj,kj->g", demand.shares, system.latency)
    spent = demand.mlp * demand.think + unloaded
    ease, service = demand.mlp * demand.parallelism, system._service()
    time = spent / ease
    for _ in range(MAX_STEPS):
        load, slope = _queue_length(system._utilisation(background + uses / time[:, None]))
        excess = ease * time - spent - (uses * load) @ service
        stiffness = ease + ((uses / time[:, None]) ** 2 * slope) @ (service * system._per_capacity)
        step = -excess / stiffness
        time = time + step
        if np.abs(step / time).max(initial=0.0) < 1e-9:
            break
    rates: Matrix = 1 / time
    return rates


def _uses(system: MemorySystem, demand: Demand) -> Matrix:
    """Return how often an access of each guest [G] passes each resource [R]."""
    pairs = len(system.nids) ** 2
    uses: Matrix = demand.shares.reshape(-1, pairs) @ system.visits.reshape(pairs, -1)
    return uses


def _newton_step(
    system: MemorySystem, demand: Demand, uses: Matrix, unloaded: Matrix, rates: Matrix
) -> tuple[Matrix, Matrix]:
    load, slope = _queue_length(system._utilisation(rates @ uses))
    service = system._service()
    gradient = demand.mlp * (demand.parallelism / rates - demand.think) - unloaded - uses @ (load * service)
    stiffness = slope * service * system._per_capacity
    own = demand.mlp * demand.parallelism / rates**2
    if len(own) <= len(stiffness):
        curvature = np.diag(own) + (uses * stiffness) @ uses.T
        return gradient, np.linalg.solve(curvature, gradient).astype(np.float64)
    # Many guests meet at few resources: solved by resource (Woodbury's identity).
    scaled, step = uses / own[:, None], gradient / own
    coupling = system._diagonal + stiffness[:, None] * (uses.T @ scaled)
    return gradient, step - scaled @ np.linalg.solve(coupling, stiffness * (uses.T @ step))


def _potential(system: MemorySystem, demand: Demand, uses: Matrix, unloaded: Matrix, rates: Matrix) -> float:
    own = demand.mlp * (demand.parallelism * np.log(rates) - demand.think * rates) - unloaded * rates
    return float(own.sum() - system.queue * _queue_area(system._utilisation(rates @ uses)).sum())


def _queue_length(rho: Matrix) -> tuple[Matrix, Matrix]:
    """Return rho / (1 - rho), continued along its tangent beyond the knee, and its slope."""
    load, slope = np.empty(rho.shape), np.empty(rho.shape)
    native.queue_length(np.ascontiguousarray(rho), KNEE, load, slope)
    return load, slope


def _queue_area(rho: Matrix) -> Matrix:
    """Return the integral of the queue length from 0 to rho."""
    below, above = np.minimum(rho, KNEE), np.maximum(rho - KNEE, 0)
    area: Matrix = -np.log1p(-below) - below + above * KNEE / (1 - KNEE) + above**2 / 2 / (1 - KNEE) ** 2
    return area
