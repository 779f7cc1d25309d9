"""JSON schemas of what the simulator, sweeps and the model of a fleet write, shipped with the others.

Run as ``python -m vmplace.fleet.json_schemas`` after a change.
"""

from typing import Any

from vmplace.fleet.views import FleetModelled, SweepReport, Swept
from vmplace.interfaces.json_schemas import made_of, write
from vmplace.simulate.result import SimulationRow

TYPES = {
    "simulate": SimulationRow,
    "sweep": Swept,
    "sweep-report": SweepReport,
    "fleet-model": FleetModelled,
}


def schemas() -> dict[str, Any]:
    """Return the schemas by verb."""
    return made_of(TYPES)


if __name__ == "__main__":
    write(schemas())
