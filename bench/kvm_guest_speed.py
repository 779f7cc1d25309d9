"""Inside the emulated host: how much slower is a vCPU while its accesses are sampled?  Prints JSON.

Spells with and without sampling in turn; ``spread`` is that of the spells without, over their median.
In instructions: what the vCPU's CPU executes altogether for each instruction of the guest.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from bench.kvm_probe import NODE, Probe, probing
from bench.kvm_vm import CPU_OF_NODE, NODES, BenchVm, Figures, Meter, counting, figure
from vmplace import native

NPAGES = 65536
TOUCHED = 16384
SPELL_S = 3.0
SPELLS = 8
COUNTED_SPELLS = 2
PERIOD_MS = 1000
BUDGETS = (100, 1000, 10000)
RING = 16384

Spell = Callable[[], object]


def rest() -> None:
    """Let a spell pass."""
    time.sleep(SPELL_S)


def harvests(vm: BenchVm) -> None:
    """Harvest once a second."""
    end = time.monotonic() + SPELL_S
    while (due := time.monotonic() + 1) <= end + 0.5:
        vm.harvest()
        time.sleep(max(0, due - time.monotonic()))


def hints(vm: BenchVm, budget: int) -> None:
    """Have hint faults at a budget."""
    spans = np.array([[0, NPAGES]], np.uint64)
    native.placement_hints(vm.placement.fd, spans, budget, PERIOD_MS, RING)
    rest()
    native.placement_hints(vm.placement.fd, spans, 0, PERIOD_MS, RING)


def us_per_pass(probe: Probe, spell: Spell) -> float:
    """Return how long the vCPU needed to touch all pages once."""
    passes, started = probe.passes, time.monotonic()
    spell()
    return (time.monotonic() - started) * 1e6 / ((probe.passes - passes) % (1 << 32))


def per_guest_instruction(meter: Meter, spell: Spell) -> float:
    """Return how much the vCPU's CPU executed for each instruction of the guest."""
    host, guest = meter.on_cpu(CPU_OF_NODE[NODE])
    spell()
    after = meter.on_cpu(CPU_OF_NODE[NODE])
    return 1 + (after[0] - host) / (after[1] - guest)


def compared(name: str, unit: str, measure: Callable[[Spell], float], spell: Spell, count: int) -> Figures:
    """Return the cost with the spell beside that of rest."""
    pairs = [(measure(spell), measure(rest)) for _ in range(count)]
    value, control = (statistics.median(side) for side in zip(*pairs, strict=True))
    rests = [pair[1] for pair in pairs]
    spread = (max(rests) - min(rests)) / control
    return {name: figure(value, control, unit) | {"spread": spread}}


def slowdown(vm: BenchVm, probe: Probe, name: str, spell: Spell) -> Figures:
    """Return the slowdown in time and in instructions."""
    unit = f"us per {TOUCHED} pages touched"
    reported = compared(name, unit, lambda one: us_per_pass(probe, one), spell, SPELLS)
    with counting() as meter:
        reported |= compared(
            f"{name}_instructions",
            "instructions per guest instruction",
            lambda one: per_guest_instruction(meter, one),
            spell,
            COUNTED_SPELLS,
        )
    return reported


def main(what: str) -> None:
    """Print the figures of harvests or hint faults."""
    vm = BenchVm(NPAGES)
    vm.roots(NODES)
    with probing(vm, 1, 1 + TOUCHED) as probe:
        if what == "harvest":
            reported = slowdown(vm, probe, "guest_slowdown_harvest", partial(harvests, vm))
        else:
            reported = {}
            for budget in BUDGETS:
                name = f"guest_slowdown_hints_{budget}"
                reported |= slowdown(vm, probe, name, partial(hints, vm, budget))
    print(json.dumps(reported))


if __name__ == "__main__":
    main(sys.argv[1])
