"""What do guests press the hosts of a fleet by?  Here by the table; loop_model.py has the agent's loop."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from vmplace.fleet.arrivals import Arrival
from vmplace.fleet.fleet_host import Host
from vmplace.fleet.loop_table import LoopTable, shipped_table


class PressureModel(Protocol):
    """Answers for hosts as they are now."""

    def loads(self, hosts: Iterable[Host]) -> dict[str, dict[int, float]]:
        """Return each host's pressure by node."""

    def takes(self, host: Host) -> dict[str, float]:
        """Return what each guest takes of its own node."""

    def alone(self, guest: Arrival) -> float:
        """Return what a guest would press a node by if it had it alone."""


@dataclass(frozen=True)
class TableModel:
    """Looks hosts up in the table; what a guest takes is what it would take alone."""

    table: LoopTable = field(default_factory=shipped_table)

    def loads(self, hosts: Iterable[Host]) -> dict[str, dict[int, float]]:
        """Return each host's pressure by node."""
        return {host.name: host.loads(self.table) for host in hosts}

    def takes(self, host: Host) -> dict[str, float]:
        """Return what each guest takes of its own node."""
        return {uuid: self._demand(guest) for uuid, guest in host.guests.items()}

    def alone(self, guest: Arrival) -> float:
        """Return what a guest would press a node by if it had it alone."""
        return self.table.pressure([self._demand(guest)])

    def _demand(self, guest: Arrival) -> float:
        return self.table.demand[guest.program][guest.vcpus]
