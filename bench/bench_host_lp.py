"""How long does the joint plan for a full host take?  Seconds of one core, for N guests; JSON.

    python -m bench.bench_host_lp [GUESTS]

Control: the same host with a tenth of the guests.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import vmplace.simulate
from vmplace.policy.host_lp import Limits, Stream, plan_weights
from vmplace.simulate.host_file import read_host

HOST = Path(vmplace.simulate.__file__).parent / "hosts" / "asymmetric-8.toml"
ROUNDS = 5


def streams(guests: int, nodes: int, chance: np.random.Generator) -> list[Stream]:
    """Return guests on one or two nodes each: a private stream per node, a shared one and one of copies."""
    answer = []
    for number in range(guests):
        workers = chance.choice(nodes, size=1 + number % 2, replace=False)
        everywhere = np.zeros(nodes)
        everywhere[workers] = chance.random() * 1e-3
        now = chance.dirichlet(np.ones(nodes))
        answer.append(Stream(f"g{number}", everywhere, 1e4, now))
        answer.append(Stream(f"g{number}", everywhere, 1e3, now, replicable=True))
        for worker in workers:
            answer.append(Stream(f"g{number}", np.eye(nodes)[worker] * 1e-3, 1e4, now))
    return answer


def seconds(guests: int) -> float:
    """Return the median CPU time of a plan."""
    system, chance = read_host(HOST).system, np.random.default_rng(1)
    some, limits = streams(guests, len(system.nids), chance), Limits(np.full(len(system.nids), 1e9), 1e6)
    took = []
    for _ in range(ROUNDS):
        started = time.process_time()
        plan_weights(system, some, limits)
        took.append(time.process_time() - started)
    return sorted(took)[ROUNDS // 2]


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(json.dumps({"guests": count, "plan_s": seconds(count), "control_plan_s": seconds(count // 10)}))
