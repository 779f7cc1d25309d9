"""How pressed are the hosts of a fleet, day by day, with and without somebody who rebalances?  A model.

Hosts have an agent each, in virtual time, but not the agent's loop: what it would bring about is modelled.

1. Guests arrive in groups (a tenant's deployment, geometric sizes) as a Poisson stream, and stay for
   log-normal times.  A group's program asks for bandwidth by the vCPU: few ask much (log-normal).
2. Nova places an arrival by free vCPUs and memory, and sees no bandwidth: a random one of the hosts
   with most room (its weigher, and ``host_subset_size``).
3. A host's agent has distributed its guests' accesses over the nodes: largest first, each to the node with
   least so far; one that asks more than a node has is divided evenly.  Pressure is that of the fullest node.
4. Every ``audit_s`` the strategy of Watcher plans over means of the last ten minutes (here: over what is,
   as demand does not change in a guest's life), and its migrations are done.

Not modelled: migrations take no time and no bandwidth, demand is steady, hosts are alike.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vmplace.fleet.rebalance import MOST, TARGET, THRESHOLD, Migration, PressingGuest, plan_rebalance

HOUR_S = 3600.0
VCPUS = ((2, 0.35), (4, 0.3), (8, 0.2), (16, 0.1), (32, 0.05))
"""Sizes of guests and how many there are of each: many small ones, few large."""
GIB_PER_VCPU = 4
SUBSET = 5


@dataclass(frozen=True)
class FleetSetup:
    """The fleet and who comes; ``fill``: the share of vCPUs that is sold on average.

    ``group``: mean size of a deployment.  ``demand``, ``spread``: median of what a vCPU asks of a node's
    bandwidth (share), and the sigma of its logarithm: 1.2 lets the most demanding twentieth ask seven times
    the median.  ``most_demand``: what a vCPU asks at the most.  ``packs``: Nova fills hosts up
    one after the other, instead of spreading.
    """

    hosts: int = 200
    nodes: int = 2
    vcpus: int = 128
    memory_gib: int = 512
    days: float = 2.0
    fill: float = 0.7
    median_stay_h: float = 12.0
    group: float = 8.0
    demand: float = 0.006
    spread: float = 1.2
    most_demand: float = 1 / 30
    packs: bool = False
    audit_s: float = 600.0
    seed: int = 1


@dataclass(frozen=True)
class Arrival:
    """One guest: when it comes and goes (s), its size, and what it asks of a node's bandwidth (share)."""

    uuid: str
    from_s: float
    to_s: float
    vcpus: int
    memory_gib: int
    demand: float


@dataclass
class Host:
    """One host and its guests now."""

    name: str
    vcpus: int
    memory_gib: int
    nodes: int
    guests: dict[str, Arrival] = field(default_factory=dict)

    def has_room(self, guest: Arrival) -> bool:
        """Return whether Nova would let the guest in."""
        used = sum(one.vcpus for one in self.guests.values())
        held = sum(one.memory_gib for one in self.guests.values())
        return used + guest.vcpus <= self.vcpus and held + guest.memory_gib <= self.memory_gib

    def free_vcpus(self) -> int:
        """Return what Nova weighs hosts by."""
        return self.vcpus - sum(one.vcpus for one in self.guests.values())

    def pressure(self) -> float:
        """Return what the fullest node is asked, as its agent has distributed the guests."""
        nodes = [0.0] * self.nodes
        for guest in sorted(self.guests.values(), key=lambda one: -one.demand):
            if guest.demand > 1:
                nodes = [node + guest.demand / self.nodes for node in nodes]
            else:
                nodes[nodes.index(min(nodes))] += guest.demand
        return max(nodes)


@dataclass(frozen=True)
class FleetResult:
    """Pressures over hosts and audits once the fleet is full; shares of all guests that came."""

    guests: int
    refused: int
    migrations: int
    migrated_share: float
    pressure_mean: float
    pressure_p50: float
    pressure_p95: float
    pressure_p99: float
    pressed_share: float


def arrivals(setup: FleetSetup) -> list[Arrival]:
    """Return a seeded trace of arrivals, in order; the fleet fills up during the first median stays."""
    chance = np.random.default_rng(setup.seed)
    sizes, weights = zip(*VCPUS, strict=True)
    mean_vcpus = float(np.dot(sizes, weights))
    sigma = 1.0
    mean_stay_s = setup.median_stay_h * HOUR_S * float(np.exp(sigma**2 / 2))
    rate = setup.fill * setup.hosts * setup.vcpus / mean_vcpus / mean_stay_s / setup.group
    end_s, now_s, found = setup.days * 24 * HOUR_S, 0.0, list[Arrival]()
    while (now_s := now_s + float(chance.exponential(1 / rate))) < end_s:
        vcpus = int(chance.choice(sizes, p=weights))
        by_vcpu = min(setup.demand * float(chance.lognormal(0.0, setup.spread)), setup.most_demand)
        for _ in range(int(chance.geometric(1 / setup.group))):
            stay_s = setup.median_stay_h * HOUR_S * float(chance.lognormal(0.0, sigma))
            size = (vcpus, vcpus * GIB_PER_VCPU, by_vcpu * vcpus)
            found.append(Arrival(f"guest-{len(found)}", now_s, now_s + stay_s, *size))
    return found


class Fleet:
    """Hosts and their guests, while time passes."""

    def __init__(self, setup: FleetSetup, guests: Sequence[Arrival]) -> None:
        self.setup, self._guests = setup, guests
        self.hosts = {
            f"host{number:03d}": Host(f"host{number:03d}", setup.vcpus, setup.memory_gib, setup.nodes)
            for number in range(setup.hosts)
        }
        self._chance = np.random.default_rng(setup.seed + 1)
        self._leaving: list[tuple[float, str]] = []
        self.host_of: dict[str, str] = {}
        self.refused = 0

    def iter_audits(self) -> Iterator[float]:
        """Let guests come and go; yield the time of each audit."""
        coming = iter(self._guests)
        following = next(coming, None)
        end_s = self.setup.days * 24 * HOUR_S
        for now_s in np.arange(self.setup.audit_s, end_s, self.setup.audit_s).tolist():
            while following is not None and following.from_s <= now_s:
                self._leave(following.from_s)
                self._arrive(following)
                following = next(coming, None)
            self._leave(now_s)
            yield now_s

    def pressures(self) -> dict[str, float]:
        """Return each host's pressure."""
        return {name: host.pressure() for name, host in self.hosts.items()}

    def migrate(self, move: Migration) -> None:
        """Carry a migration out."""
        guest = self.hosts[move.source].guests.pop(move.uuid)
        self.hosts[move.destination].guests[move.uuid] = guest
        self.host_of[move.uuid] = move.destination

    def pressing(self) -> list[PressingGuest]:
        """Return all guests as the strategy sees them."""
        return [
            PressingGuest(uuid, name, guest.demand if guest.demand <= 1 else guest.demand / host.nodes)
            for name, host in self.hosts.items()
            for uuid, guest in host.guests.items()
        ]

    def has_room(self, uuid: str, host: str, before: tuple[Migration, ...]) -> bool:
        """Return whether a guest fits on ``host``, if nothing leaves it: earlier moves of the plan count."""
        there = self.hosts[host]
        coming = {one.uuid: self._found(one.uuid) for one in before if one.destination == host}
        after = Host(there.name, there.vcpus, there.memory_gib, there.nodes, {**there.guests, **coming})
        return after.has_room(self._found(uuid))

    def _found(self, uuid: str) -> Arrival:
        return self.hosts[self.host_of[uuid]].guests[uuid]

    def _arrive(self, guest: Arrival) -> None:
        with_room = [host for host in self.hosts.values() if host.has_room(guest)]
        if not with_room:
            self.refused += 1
            return
        order = heapq.nsmallest if self.setup.packs else heapq.nlargest
        best = order(SUBSET, with_room, key=Host.free_vcpus)
        host = best[int(self._chance.integers(len(best)))]
        host.guests[guest.uuid] = guest
        self.host_of[guest.uuid] = host.name
        heapq.heappush(self._leaving, (guest.to_s, guest.uuid))

    def _leave(self, now_s: float) -> None:
        while self._leaving and self._leaving[0][0] <= now_s:
            _, uuid = heapq.heappop(self._leaving)
            del self.hosts[self.host_of.pop(uuid)].guests[uuid]


def simulated_fleet(
    setup: FleetSetup,
    guests: Sequence[Arrival],
    *,
    rebalances: bool,
    limits: Mapping[str, float] | None = None,
) -> FleetResult:
    """Return what comes of it; pressures are taken before each audit acts, in the second half of the time."""
    asked = {"threshold": THRESHOLD, "target": TARGET, "most": MOST, **(limits or {})}
    fleet, seen, moved = Fleet(setup, guests), list[list[float]](), list[str]()
    for now_s in fleet.iter_audits():
        pressures = fleet.pressures()
        if now_s >= setup.days * 12 * HOUR_S:
            seen.append([*pressures.values()])
        if rebalances:
            plan = plan_rebalance(
                pressures,
                fleet.pressing(),
                fleet.has_room,
                asked["threshold"],
                asked["target"],
                int(asked["most"]),
            )
            for move in plan.migrations:
                fleet.migrate(move)
                moved.append(move.uuid)
    return _result(fleet, guests, seen, moved)


def _result(
    fleet: Fleet, guests: Sequence[Arrival], seen: list[list[float]], moved: list[str]
) -> FleetResult:
    all_seen = np.array(seen)
    p50, p95, p99 = np.percentile(all_seen, [50, 95, 99]).tolist()
    return FleetResult(
        guests=len(guests),
        refused=fleet.refused,
        migrations=len(moved),
        migrated_share=len(set(moved)) / len(guests) if guests else 0.0,
        pressure_mean=float(all_seen.mean()),
        pressure_p50=p50,
        pressure_p95=p95,
        pressure_p99=p99,
        pressed_share=float((all_seen >= THRESHOLD).mean()),
    )
