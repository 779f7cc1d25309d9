"""What is emulated time made of?  The memory model, as options of the meter's plugin (meter/arguments.h).

The model and its constants are the simulator's (vmplace/model); the plugin only evaluates them.
"""

import numpy as np

from lab.topology import MIB, LabTopology
from vmplace.model.described_memory import MLP, described_memory
from vmplace.model.memory_system import NO_CAPACITY, MemorySystem
from vmplace.model.metrics import Matrix

DILATION = 50.0
"""Real seconds per emulated one: sleeps must dwarf what the emulation of the same code takes."""


def emulated_memory(topology: LabTopology) -> MemorySystem:
    """Return the memory system of the emulated host, in ns."""
    return described_memory(
        topology.nids,
        np.array(topology.distances, float),
        np.array(topology.bandwidth_mib_per_s, float),
        np.array([node.memory_bytes / MIB for node in topology.nodes]),
    )


def time_options(system: MemorySystem, *, dilation: float = DILATION, mlp: float = MLP) -> dict[str, str]:
    """Return the plugin's options for this memory system; a fetch stalls its CPU for latency / ``mlp``."""
    capacities = np.maximum(system.capacities, NO_CAPACITY)
    visits = np.argwhere(system.visits > 0)
    return {
        "nodes": ":".join(map(str, system.nids)),
        "latency": _numbers(system.latency),
        "capacity": _numbers(capacities),
        "visits": ":".join(f"{k}-{j}-{r}-{float(system.visits[k, j, r])!r}" for k, j, r in visits),
        "queue": repr(float(system.queue)),
        "mlp": repr(float(mlp)),
        "dilation": repr(float(dilation)),
    }


def _numbers(values: Matrix) -> str:
    return ":".join(repr(float(value)) for value in values.ravel())
