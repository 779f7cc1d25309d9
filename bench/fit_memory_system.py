"""Which constants make the memory-system model reproduce Carrefour's table 1, and what do they predict?

Prints the fitted constants, and for each published figure the model's answer beside it; then for each column
the answer of a model that was fitted to the other columns.  Two hops are at most 30 % of a local access, as
the paper has it.  Needs scipy.
Run: python -m bench.fit_memory_system
"""

import numpy as np
from scipy.optimize import least_squares

from vmplace.model import published
from vmplace.model.memory_system import MemorySystem
from vmplace.model.metrics import Matrix

LOCAL = 200.0
NAMES = ("hop", "controller", "link", "queue")
STARTS = tuple(
    (27.0, controller, 0.034, queue) for controller in (0.035, 0.045) for queue in (1.0, 5.0, 20.0)
)
BOUNDS = (1.0, 1e-3, 1e-3, 1e-2), (published.HOP_MOST * LOCAL, 1.0, 1.0, 1e4)
Runs = tuple[published.PublishedRun, ...]


def main() -> None:
    """Fit hop, controller and link capacity and queue to four latencies and four link loads."""
    every = published.CARREFOUR_TABLE_1
    print("fitted to all:")
    show(fitted(every), every)
    for left in every:
        print("predicted from the others:")
        show(fitted(tuple(run for run in every if run is not left)), (left,))


def fitted(runs: Runs) -> MemorySystem:
    """Return the system that answers these runs best, from several beginnings."""

    def residuals(logs: Matrix) -> Matrix:
        system = published.square(LOCAL, *np.exp(logs))
        # Latencies are read off counters; link loads are averages over links: they weigh half.
        pairs = [pair for run in runs for pair in _pairs(system, run)]
        return np.array([weight * np.log(reported / truth) for reported, truth, weight in pairs])

    fits = (least_squares(residuals, np.log(start), bounds=np.log(BOUNDS)) for start in STARTS)
    return published.square(LOCAL, *np.exp(min(fits, key=lambda fit: fit.cost).x))


def show(system: MemorySystem, runs: Runs) -> None:
    """Print the system's constants, and its answers to these runs."""
    hop = float(system.latency[0, 1]) - LOCAL
    link = float(system.capacities[-1])
    values = hop, float(system.controller[0]), link, system.queue
    print({name: float(f"{value:.4g}") for name, value in zip(NAMES, values, strict=True)})
    for run in runs:
        for reported, truth, _ in _pairs(system, run):
            print(f"{run.name:32} published {truth:8.2f} model {reported:8.2f} {reported / truth - 1:+.1%}")


def _pairs(system: MemorySystem, run: published.PublishedRun) -> list[tuple[float, float, float]]:
    load = published.replayed(system, run)
    latency, links = float(load.latencies[0]), float(load.utilisation[4:].mean())
    return [(latency, run.latency, 1.0), (links, run.link_utilisation, 0.5)]


if __name__ == "__main__":
    main()
