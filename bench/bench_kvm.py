"""What do harvests, node roots, replicas, moves cost, beside what a stock kernel offers for the same?

Boots the emulated 4-node host with the kernel of kvm-patches/; figures are {value, control, ratio, unit}:
controls are the stock mechanisms in the same boot.  ``_instructions`` are counted by the meter; times
are the emulated host's: only ratios carry over.

harvest_*               a harvest; control: idle-page tracking.  growth_x16: of a range 16 times as large, of
                        which as many pages were touched;
                        2m: of huge pages.  vs_damon: control is DAMON, a region a page (kvm_damon.py)
reading_*               a harvest that clears nothing; control: one that does
window_read_4_times_*   a window of the agent with early readings; control: without (kvm_readings.py)
roots_enable_vs_faults  populating a root per node; control: taking the faults
replicate_vs_cow        a copy for a node; control: a write to a page shared with a forked child
collapse_vs_cow         a write to a replicated page; control: the same
memory_per_root         page tables; control: those of one root for all
move_*                  MOVE by the agent; control: move_pages(2).  A stall: the longest touch during a call;
                        on a host of two CPUs, each of which has a real one (``undisturb``)
guest_slowdown_*        a vCPU that touches memory while it is sampled; control: while it is not
replica_lar             LAR in scenario shared-table with vmplace; controls: no manager, kernel balancing
wait_*                  the longest wait for a lock while all of a VM is worked on; control: of a small one
                        (by_mib: of each size; 99 of 100 are below p99).  ``nothing``: while nothing is done
                        (kvm_holds.py); ``log``: dirty logging begins; ``discard``: the VMM gives memory back
written_table_*         replicas that the guest begins to write to; control: no manager (bench_written.py)
"""

import argparse
import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.bench_written import written_table
from bench.record import Figures, Part, add_record_options, measure
from bench.undisturbed import undisturb
from lab.errors import LabError
from lab.machine import LabHost, boot_host
from lab.progress import Progress
from lab.scenario import ManagerName, read_scenario
from lab.scenario_run import run_scenario

HERE = Path(__file__).parent
MANAGERS: tuple[ManagerName, ...] = ("vmplace", "none", "kernel")
MODULES = (
    "kvm_vm",
    "kvm_probe",
    "kvm_inside",
    "kvm_readings",
    "kvm_moves",
    "kvm_guest_speed",
    "kvm_damon",
    "kvm_waits",
    "kvm_holds",
)
FILES = {f"/root/bench/{name}.py": HERE / f"{name}.py" for name in MODULES} | {
    "/root/sampling_inside.py": HERE.parent / "tests/lab/sampling_inside.py"
}
INSIDE = {
    "inside": "kvm_inside",
    "readings": "kvm_readings",
    "damon": "kvm_damon",
    "speed-harvest": "kvm_guest_speed harvest",
    "speed-hints": "kvm_guest_speed hints",
}
"""What runs inside the host of four nodes, by the name of its part."""
MOVES = {"moves-4k": "kvm_moves 4", "moves-2m": "kvm_moves 2048"}
HOLDS_MIB = {"mapped": (1024, 4096, 16384), "replicated": (16, 128)}
"""How large the VMs are whose locks are held; copies have to fit on a node."""
TIMEOUT_S = 3600


def costs(module: str) -> Figures:
    """Return the costs that a module measures inside the emulated host."""
    with boot_host("n4-full", meter=True, files=FILES) as host:
        return _figures(host, module)


def moves(module: str) -> Figures:
    """Return the costs of moves."""
    with boot_host("n2-single", meter=True, files=FILES) as host:
        undisturb(host)
        return _figures(host, module)


def holds() -> Figures:
    """Return the longest waits for locks, by what is done, lock, and size of the VM."""
    figures: dict[str, Any] = {}
    with boot_host("n2-single", files=FILES) as host:
        undisturb(host)
        for kind, sizes in HOLDS_MIB.items():
            reported = {str(mib): _figures(host, f"kvm_holds {kind} {mib}") for mib in sizes}
            figures |= {
                f"wait_{kind}_{work}_{lock}": _grown(reported, work, lock)
                for work, locks in reported[str(sizes[0])]["longest_ms"].items()
                for lock in locks
            }
    return figures


def _grown(reported: Mapping[str, Figures], work: str, lock: str) -> dict[str, Any]:
    """Return the wait in the largest VM beside that in the smallest, and all of them by size."""
    by_mib = {mib: one["longest_ms"][work][lock] for mib, one in reported.items()}
    most_below = {mib: one["p99_ms"][work][lock] for mib, one in reported.items()}
    control, *_, value = by_mib.values()
    ratio = value / control if control else None
    figure = {"value": value, "control": control, "ratio": ratio, "unit": "ms"}
    return figure | {"by_mib": by_mib, "p99_by_mib": most_below}


def _figures(host: LabHost, module: str) -> Figures:
    reported: dict[str, Any] = json.loads(
        host.run(f"cd /root && python3 -m bench.{module}", timeout=TIMEOUT_S).stdout
    )
    return reported


def replica_lar() -> dict[str, Any]:
    """Return the LAR that replication reaches beside those without it."""
    result = run_scenario(read_scenario("shared-table"), MANAGERS, Progress())
    value, control, balancing = (result.managers[name].guests["reader"].lar_after for name in MANAGERS)
    if value is None or not control:
        raise LabError("the meter saw no access of the guest")
    reported = {"value": value, "control": control, "ratio": value / control, "unit": "local access ratio"}
    return reported | {"control_kernel": balancing}


PARTS: dict[str, Part] = {
    **{name: partial(costs, module) for name, module in INSIDE.items()},
    **{name: partial(moves, module) for name, module in MOVES.items()},
    "holds": holds,
    "lar": lambda: {"replica_lar": replica_lar()},
    "written": written_table,
}
"""Groups of rows, each measured in boots of its own."""


def main() -> int:
    """Run all parts, or those that are asked for; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part (again for more)")
    add_record_options(parser)
    options = parser.parse_args()
    return measure("kvm", {name: PARTS[name] for name in options.only or PARTS}, options)


if __name__ == "__main__":
    sys.exit(main())
