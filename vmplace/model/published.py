"""What did others measure on real machines?  The figures the memory-system model is held against.

Carrefour (ASPLOS'13), table 1, machine A: four nodes with four cores each, in a square (its link loads
fit a square whose links share their capacity between directions; they fit no full connection).  CPI =
think x MPKI / 1000 + MPKI / 1000 x latency / mlp has two unknowns and two runs per program: that gives
think and mlp.  ``CARREFOUR_2013`` then has four constants fitted (bench/fit_memory_system.py) to four
latencies and four link loads, beside 200 cycles for a local access; errors: see its docstring.

Shared-library analysis, table of section 3.2: 614 / 932 / 928 / 1240 ticks are a base and two hops.
"""

from dataclasses import dataclass

import numpy as np

from vmplace.model.memory_system import Demand, Link, Load, MemorySystem, routed, solved
from vmplace.model.metrics import Matrix

CORES = 16
NODES = 4
SQUARE = ((0, 1), (1, 2), (2, 3), (3, 0))


@dataclass(frozen=True)
class PublishedRun:
    """One column of table 1: ``hot_share`` of the accesses go to node 0, the rest evenly elsewhere.

    ``latency`` in cycles, ``link_utilisation`` the mean of all links in 0..1; ``think`` (cycles) and
    ``mlp`` are the program's.
    """

    name: str
    hot_share: float
    mc_imbalance: float
    latency: float
    link_utilisation: float
    think: float
    mlp: float


def _program(
    name: str, best: tuple[float, ...], worst: tuple[float, ...]
) -> tuple[PublishedRun, PublishedRun]:
    """Return both runs of a program from (MC imbalance, latency, link use, L3 MPKI, IPC) of each.

    All load on one of four controllers is an imbalance of 2.0, none a quarter each: linear between.
    """
    pairs = []
    for _, latency, _, mpki, ipc in (best, worst):
        pairs.append((1000 / ipc / mpki, latency))
    (t1, l1), (t2, l2) = pairs
    mlp = (l2 - l1) / (t2 - t1)
    think = max(t1 - l1 / mlp, 0.0)
    runs = [
        PublishedRun(f"{name} {kind}", 0.25 + 0.75 * row[0] / 2.0, row[0], row[1], row[2], think, mlp)
        for kind, row in (("interleaved", best), ("first touch", worst))
    ]
    return runs[0], runs[1]


CARREFOUR_TABLE_1 = (
    *_program("Streamcluster", (0.07, 471, 0.58, 16.61, 0.30), (2.00, 1169, 0.32, 16.35, 0.15)),
    *_program("PCA", (0.04, 480, 0.47, 6.99, 0.52), (1.54, 665, 0.30, 7.1, 0.37)),
)


def square(local: float, hop: float, controller: float, link: float, queue: float) -> MemorySystem:
    """Return four nodes in a square: ``local`` latency plus ``hop`` per link; capacities per unit of time."""
    hops = np.array([[min(abs(i - j), 4 - abs(i - j)) for j in range(NODES)] for i in range(NODES)])
    links = [Link(ends, link) for ends in SQUARE]
    return routed(tuple(range(NODES)), local + hop * hops, np.full(NODES, controller), links, queue)


def replayed(system: MemorySystem, run: PublishedRun) -> Load:
    """Return the model's answer to a run of table 1: 16 cores that access all nodes alike."""
    to = np.full(NODES, (1 - run.hot_share) / (NODES - 1))
    to[0] = run.hot_share
    shares: Matrix = np.tile(to / NODES, (NODES, 1))[None]
    one = np.ones(1)
    return solved(system, Demand(shares, one * CORES, one * run.think, one * run.mlp))


HOP_MOST = 0.15
"""Of a local access: remote accesses are at most 30 % slower (section 2 of the paper), and two links away."""
CARREFOUR_2013 = square(local=200.0, hop=30.0, controller=0.04489, link=0.03339, queue=5.176)
"""Machine A, in cycles of 2.3 GHz.

Errors of the fit, in the order of the table: latencies +8.9 %, -0.6 %, -9.1 %, -0.5 %; link loads -3.1 %,
-7.7 %, +1.9 %, +5.4 %.  Without the bound on a hop it would come to 212 cycles, and errors to 4.8 and 9.2 %.
Fitted to three columns of the table, the model predicts the fourth: latencies +20.8 %, +0.6 %, -15.4 %,
-1.1 %; link loads -6.5 %, -10.8 %, +8.7 %, +8.0 %.
"""

SHARED_LIBRARY_TICKS = ((0, 614.0), (1, 932.0), (1, 928.0), (2, 1240.0))
"""(Links passed, ticks of a fetch from memory) on an idle four-node square."""
