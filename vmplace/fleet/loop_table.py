"""A table of what guests take of a node's bandwidth, and what the node gives, fitted to the agent's loop.

1. ``demand[program][vcpus]``: what a guest takes of one node's bandwidth alone on a host with an agent.
2. ``saturation``: points (asked, pressure) between which lines run: guests that share a node wait for each
   other, so it is pressed less than the sum of what they take alone.

Made by bench/fleet_table.py from runs of loop_host.py, and checked there against runs that it was not fitted
to.  A host takes seconds in the loop and microseconds by the table: fleets of hundreds over days need that.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np

SHIPPED = Path(__file__).with_name("loop_table.json")


class LoopTable(msgspec.Struct, frozen=True):
    """The table; ``host``: the simulated host that it holds for, ``made``: by which command, of what."""

    host: str
    made: str
    demand: Mapping[str, Mapping[int, float]]
    saturation: tuple[tuple[float, float], ...]

    @property
    def programs(self) -> tuple[str, ...]:
        """Return the programs that guests may run."""
        return tuple(sorted(self.demand))

    def pressure(self, demands: Iterable[float]) -> float:
        """Return the pressure of a node by what its guests would take alone."""
        asked, given = zip(*self.saturation, strict=True)
        return float(np.interp(sum(demands), asked, given))


def shipped_table() -> LoopTable:
    """Return the table that comes with vmplace."""
    return msgspec.json.decode(SHIPPED.read_bytes(), type=LoopTable)
