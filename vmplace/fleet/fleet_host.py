"""One host of a modelled fleet: which guests are on which node, and what they press it by."""

from dataclasses import dataclass, field, replace

from vmplace.fleet.arrivals import Arrival
from vmplace.fleet.loop_table import LoopTable


@dataclass
class Host:
    """One host and its guests now, each on a node."""

    name: str
    vcpus: int
    memory_gib: int
    nodes: int
    guests: dict[str, Arrival] = field(default_factory=dict)
    node_of: dict[str, int] = field(default_factory=dict)

    def has_room(self, guest: Arrival) -> bool:
        """Return whether Nova would let the guest in: all its vCPUs on one node."""
        held = sum(one.memory_gib for one in self.guests.values())
        return max(self.free_by_node()) >= guest.vcpus and held + guest.memory_gib <= self.memory_gib

    def free_by_node(self) -> list[int]:
        """Return each node's free vCPUs."""
        free = [self.vcpus // self.nodes] * self.nodes
        for uuid, guest in self.guests.items():
            free[self.node_of[uuid]] -= guest.vcpus
        return free

    def free_vcpus(self) -> int:
        """Return what Nova weighs hosts by."""
        return sum(self.free_by_node())

    def take(self, guest: Arrival) -> None:
        """Let a guest in, on the node with most free vCPUs."""
        free = self.free_by_node()
        self.node_of[guest.uuid] = free.index(max(free))
        self.guests[guest.uuid] = guest

    def lose(self, uuid: str) -> Arrival:
        """Let a guest go."""
        del self.node_of[uuid]
        return self.guests.pop(uuid)

    def loads(self, table: LoopTable) -> dict[int, float]:
        """Return each node's pressure, as its agent brings it about."""
        return {node: table.pressure(mine) for node, mine in self.asked(table).items()}

    def asked(self, table: LoopTable) -> dict[int, list[float]]:
        """Return what the guests of each node would take of it alone."""
        asked: dict[int, list[float]] = {node: [] for node in range(self.nodes)}
        for uuid, guest in self.guests.items():
            asked[self.node_of[uuid]].append(table.demand[guest.program][guest.vcpus])
        return asked

    def copy(self) -> "Host":
        """Return the host as it is now."""
        return replace(self, guests=dict(self.guests), node_of=dict(self.node_of))
