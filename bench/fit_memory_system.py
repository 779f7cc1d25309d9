"""Which constants make the memory-system model reproduce Carrefour's table 1?

Prints the fitted constants, and for each published figure the model's answer beside it.  Needs scipy.
Run: python -m bench.fit_memory_system
"""

import numpy as np
from scipy.optimize import least_squares

from vmplace.model import published
from vmplace.model.memory_system import MemorySystem
from vmplace.model.metrics import Matrix


def main() -> None:
    """Fit hop, controller and link capacity and queue to four latencies and four link loads."""

    def residuals(logs: Matrix) -> Matrix:
        system = published.square(200.0, *np.exp(logs))
        return np.concatenate(
            [
                # Latencies are read off counters; link loads are averages over links: they weigh half.
                np.array(
                    [weight * np.log(reported / truth) for reported, truth, weight in _pairs(system, run)]
                )
                for run in published.CARREFOUR_TABLE_1
            ]
        )

    fit = least_squares(residuals, np.log([180.0, 0.045, 0.034, 5.0]))
    names = ("hop", "controller", "link", "queue")
    print({name: float(f"{value:.4g}") for name, value in zip(names, np.exp(fit.x), strict=True)})
    system = published.square(200.0, *np.exp(fit.x))
    for run in published.CARREFOUR_TABLE_1:
        for reported, truth, _ in _pairs(system, run):
            print(f"{run.name:32} published {truth:8.2f} model {reported:8.2f} {reported / truth - 1:+.1%}")


def _pairs(system: MemorySystem, run: published.Run) -> list[tuple[float, float, float]]:
    load = published.replayed(system, run)
    latency, links = float(load.latencies[0]), float(load.utilisation[4:].mean())
    return [(latency, run.latency, 1.0), (links, run.link_utilisation, 0.5)]


if __name__ == "__main__":
    main()
