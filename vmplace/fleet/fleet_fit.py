"""How many further guests of one size does a fleet take?  ``fit`` for the hosts of the model.

1. A node takes a guest if it has the vCPUs and the memory for it free.  Guests that run hold their memory on
   their own node; where one is larger than its node, the host as a whole still has to have the room.  The
   model's Nova asks for less (Host.has_room): vCPUs on one node, and memory of the host as a whole.
2. Guests count as *below the threshold* if all of them can run at once on nodes whose pressure stays below
   it.  Nova sees no pressure: it takes nodes above the threshold as gladly, unless traits keep it away.
3. Both are counted at one moment, then over the moments of a model's run.

Limits: none of the room is kept for failures of hosts, nor for what a hypervisor takes itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vmplace.fleet.fleet_host import Host
from vmplace.fleet.loop_table import LoopTable

MIB_PER_GIB = 1024


@dataclass(frozen=True)
class FleetFlavour:
    """The size of a guest; ``pressure``: the share of a node's bandwidth that it takes where it is alone."""

    vcpus: int
    memory_mib: int
    pressure: float = 0.0


@dataclass(frozen=True)
class SpareCapacity:
    """Further guests that hosts take, on how many hosts, and how many of them below the threshold."""

    guests: int
    hosts: int
    below_threshold: int


@dataclass(frozen=True)
class OverTime:
    """A count at the ``end``; ``p5``: it is that or less in one moment of twenty; ``p50``: in half."""

    end: int
    p5: int
    p50: int


@dataclass(frozen=True)
class SpareCapacityOverTime:
    """The same as ``SpareCapacity``, each figure over time."""

    guests: OverTime
    hosts: OverTime
    below_threshold: OverTime


def room(hosts: Iterable[Host], table: LoopTable, flavour: FleetFlavour, threshold: float) -> SpareCapacity:
    """Return the room for a flavour as hosts are now."""
    found = [host_room(host, table, flavour, threshold) for host in hosts]
    return SpareCapacity(
        sum(count for count, _ in found), sum(count > 0 for count, _ in found), sum(low for _, low in found)
    )


def host_room(host: Host, table: LoopTable, flavour: FleetFlavour, threshold: float) -> tuple[int, int]:
    """Return how many further guests a host takes, and how many on nodes that stay below the threshold."""
    cpus, memory, asked = host.free_by_node(), free_mib(host), host.asked(table)
    fitting = [max(0, min(cpus[node] // flavour.vcpus, memory[node] // flavour.memory_mib)) for node in asked]
    low = [_below(asked[node], table, flavour, threshold, fitting[node]) for node in asked]
    most = max(0, sum(memory) // flavour.memory_mib)
    return min(most, sum(fitting)), min(most, sum(low))


def free_mib(host: Host) -> list[int]:
    """Return each node's free memory; below zero where a guest is larger than its node."""
    free = [host.memory_gib * MIB_PER_GIB // host.nodes] * host.nodes
    for uuid, guest in host.guests.items():
        free[host.node_of[uuid]] -= guest.memory_gib * MIB_PER_GIB
    return free


def _below(
    asked: Sequence[float], table: LoopTable, flavour: FleetFlavour, threshold: float, most: int
) -> int:
    """Return how many of ``most`` guests a node takes before its pressure is at the threshold."""
    count = 0
    while count < most and table.pressure([*asked, (count + 1) * flavour.pressure]) < threshold:
        count += 1
    return count


def over_time(moments: Sequence[SpareCapacity]) -> SpareCapacityOverTime:
    """Return the figures of a run's moments, the last of them the end."""
    return SpareCapacityOverTime(
        guests=_figures([one.guests for one in moments]),
        hosts=_figures([one.hosts for one in moments]),
        below_threshold=_figures([one.below_threshold for one in moments]),
    )


def _figures(counts: Sequence[int]) -> OverTime:
    p5, p50 = np.percentile(counts, [5, 50], method="lower").tolist()
    return OverTime(counts[-1], p5, p50)
