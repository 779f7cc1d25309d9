"""How pressed are the hosts of a fleet, day by day, with and without somebody who rebalances?  A model.

Hosts have an agent each.  What the agent's loop brings about on a host is looked up (loop_table.py, fitted
to the loop in virtual time), or the loop itself runs (loop_model.py), which takes hours.

1. Guests arrive in groups (a tenant's deployment, geometric sizes, all with one program) as a Poisson
   stream, and stay for log-normal times.  ``idle`` of the groups ask next to nothing, as most guests of
   clouds do; the others run one of the recorded traces, each as likely.
2. Nova places an arrival by free vCPUs and memory, and sees no bandwidth: a random one of the best hosts
   (its weigher, and ``host_subset_size``), and there the NUMA node with most free vCPUs (its default).
3. The agent keeps a guest's memory on the node of its vCPUs, if it fits there.  Pressure is that of the
   fullest node.
4. Every ``audit_s`` the strategy of Watcher plans over means of the last ten minutes (here: over what is,
   as demand does not change in a guest's life), and its migrations are done.

Not modelled: migrations take no time and no bandwidth, demand is steady, hosts are alike.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vmplace.fleet.arrivals import Arrival
from vmplace.fleet.fleet_host import Host
from vmplace.fleet.loop_table import shipped_table
from vmplace.fleet.pressure_model import PressureModel, TableModel
from vmplace.fleet.rebalance import THRESHOLD, Limits, Migration, PressingGuest, plan_rebalance

HOUR_S = 3600.0
SIZES, WEIGHTS = (1, 2, 3, 4, 6), (0.35, 0.3, 0.2, 0.1, 0.05)
"""vCPUs of guests and how many there are of each: many small ones, few large; half a node at the most."""
GIB_PER_VCPU = 1
SUBSET = 5


@dataclass(frozen=True)
class FleetSetup:
    """The fleet and who comes; ``fill``: the share of vCPUs that is sold on average.

    ``group``: mean size of a deployment.  ``packs``: Nova fills hosts up one after the other, instead of
    spreading.  Hosts are those of the table: two-node.toml.  ``idle``: at least 60 % of Azure's guests use
    less than a fifth of their CPUs (Cortez et al., "Resource Central", SOSP'17).
    """

    hosts: int = 200
    nodes: int = 2
    vcpus: int = 24
    memory_gib: int = 32
    days: float = 2.0
    fill: float = 0.7
    median_stay_h: float = 12.0
    group: float = 8.0
    idle: float = 0.6
    packs: bool = False
    audit_s: float = 600.0
    seed: int = 1

    @property
    def audits(self) -> int:
        """Return how many audits there are."""
        return len(np.arange(self.audit_s, self.days * 24 * HOUR_S, self.audit_s))


@dataclass(frozen=True)
class FleetResult:
    """Pressures over hosts and audits once the fleet is full; shares of all guests that came.

    ``least_p95``: what p95 would be at the least, were the guests that press most by themselves together on
    as few hosts as have the vCPUs for them: nobody who migrates guests can do better.
    """

    guests: int
    refused: int
    migrations: int
    migrated_share: float
    pressure_mean: float
    pressure_p50: float
    pressure_p95: float
    pressure_p99: float
    pressed_share: float
    least_p95: float


def arrivals(setup: FleetSetup, programs: Sequence[str] | None = None) -> list[Arrival]:
    """Return a seeded trace of arrivals, in order; the fleet fills up during the first median stays."""
    table = shipped_table()
    names = tuple(programs or table.programs)
    idle = min(table.programs, key=lambda name: sum(table.demand[name].values()))
    chance = np.random.default_rng(setup.seed)
    sigma = 1.0
    mean_stay_s = setup.median_stay_h * HOUR_S * float(np.exp(sigma**2 / 2))
    rate = setup.fill * setup.hosts * setup.vcpus / float(np.dot(SIZES, WEIGHTS)) / mean_stay_s / setup.group
    end_s, now_s, found = setup.days * 24 * HOUR_S, 0.0, list[Arrival]()
    while (now_s := now_s + float(chance.exponential(1 / rate))) < end_s:
        vcpus, is_idle = int(chance.choice(SIZES, p=WEIGHTS)), chance.random() < setup.idle
        program = idle if is_idle else names[int(chance.integers(len(names)))]
        for _ in range(int(chance.geometric(1 / setup.group))):
            stay_s = setup.median_stay_h * HOUR_S * float(chance.lognormal(0.0, sigma))
            size = (vcpus, vcpus * GIB_PER_VCPU, program)
            found.append(Arrival(f"guest-{len(found)}", now_s, now_s + stay_s, *size))
    return found


class Fleet:
    """Hosts and their guests, while time passes."""

    def __init__(
        self, setup: FleetSetup, guests: Sequence[Arrival], model: PressureModel | None = None
    ) -> None:
        self.setup, self.guests, self._model = setup, guests, model or TableModel()
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
        coming = iter(self.guests)
        following = next(coming, None)
        end_s = self.setup.days * 24 * HOUR_S
        for now_s in np.arange(self.setup.audit_s, end_s, self.setup.audit_s).tolist():
            while following is not None and following.from_s <= now_s:
                self._leave(following.from_s)
                self._arrive(following)
                following = next(coming, None)
            self._leave(now_s)
            yield now_s

    def loads(self) -> dict[str, dict[int, float]]:
        """Return each host's pressure by node."""
        return self._model.loads(self.hosts.values())

    def migrate(self, move: Migration) -> None:
        """Carry a migration out."""
        self.hosts[move.destination].take(self.hosts[move.source].lose(move.uuid))
        self.host_of[move.uuid] = move.destination

    def pressing(self) -> list[PressingGuest]:
        """Return all guests as the strategy sees them."""
        return [
            PressingGuest(uuid, name, {host.node_of[uuid]: share})
            for name, host in self.hosts.items()
            for uuid, share in self._model.takes(host).items()
        ]

    def alone(self) -> list[tuple[float, int]]:
        """Return what each guest would press a node by if it had it alone, and its vCPUs."""
        return [
            (self._model.alone(guest), guest.vcpus)
            for host in self.hosts.values()
            for guest in host.guests.values()
        ]

    def has_room(self, uuid: str, host: str, before: tuple[Migration, ...]) -> bool:
        """Return whether a guest fits on ``host``, if nothing leaves it: earlier moves of the plan count."""
        after = self.hosts[host].copy()
        for one in before:
            if one.destination == host:
                after.take(self._found(one.uuid))
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
        host.take(guest)
        self.host_of[guest.uuid] = host.name
        heapq.heappush(self._leaving, (guest.to_s, guest.uuid))

    def _leave(self, now_s: float) -> None:
        while self._leaving and self._leaving[0][0] <= now_s:
            _, uuid = heapq.heappop(self._leaving)
            self.hosts[self.host_of.pop(uuid)].lose(uuid)


def simulated_fleet(
    fleet: Fleet,
    *,
    rebalances: bool,
    limits: Limits | None = None,
    look: Callable[[Fleet], None] = lambda fleet: None,
) -> FleetResult:
    """Return what comes of it; figures are taken before each audit acts, in the second half of the time.

    ``look`` is called then, too, for figures of the caller's.
    """
    setup, moved = fleet.setup, list[str]()
    seen, alone = list[list[float]](), list[list[float]]()
    for now_s in fleet.iter_audits():
        loads, pressing = fleet.loads(), fleet.pressing()
        if now_s >= setup.days * 12 * HOUR_S:
            seen.append([max(by_node.values()) for by_node in loads.values()])
            alone.append(least_pressures(fleet.alone(), setup.hosts, setup.vcpus))
            look(fleet)
        if rebalances:
            for move in plan_rebalance(loads, pressing, fleet.has_room, limits or Limits()).migrations:
                fleet.migrate(move)
                moved.append(move.uuid)
    return _result(fleet, np.array(seen), np.array(alone), moved)


def least_pressures(guests: Sequence[tuple[float, int]], hosts: int, vcpus: int) -> list[float]:
    """Return what the first, second … most pressed host is pressed at the least, wherever guests are.

    ``guests``: the pressure of each alone, and its vCPUs.  Those that press by p or more have C vCPUs in all:
    they are on C / ``vcpus`` hosts or more, and each of these is pressed by p or more.
    """
    least, taken = list[float](), 0
    for pressure, size in sorted(guests, reverse=True):
        taken += size
        least += [pressure] * (min(-(-taken // vcpus), hosts) - len(least))
    return least + [0.0] * (hosts - len(least))


def _result(fleet: Fleet, seen: np.ndarray, alone: np.ndarray, moved: list[str]) -> FleetResult:
    guests = fleet.guests
    p50, p95, p99 = np.percentile(seen, [50, 95, 99]).tolist()
    return FleetResult(
        guests=len(guests),
        refused=fleet.refused,
        migrations=len(moved),
        migrated_share=len(set(moved)) / len(guests) if guests else 0.0,
        pressure_mean=float(seen.mean()),
        pressure_p50=p50,
        pressure_p95=p95,
        pressure_p99=p99,
        pressed_share=float((seen >= THRESHOLD).mean()),
        least_p95=float(np.percentile(alone, 95)),
    )
