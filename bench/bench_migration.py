"""What does a kernel with the series cost a live migration?

Two libvirtds on one emulated host of two nodes, each with processes and files of its own, move a guest of
two vCPUs to and fro (migration_inside.py).  libvirt counts rounds, bytes and downtime; time is the emulated
host's, so only ratios carry over.

rounds_stock      a guest that writes, on the stock kernel, the control
rounds_patched    the same on the kernel of kvm-patches/
"""

import argparse
import json
import os
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

from bench.record import Figures, add_record_options, measure
from lab.domain_xml import domain_xml
from lab.kernel import FLAVOUR_VARIABLE, Flavour
from lab.machine import boot_host
from lab.scenario import Scenario, parse_scenario
from lab.scenario_stage import boot_files, cpus_by_nid
from lab.topology import read_topology

HERE = Path(__file__).parent
TOPOLOGY = "n2"
FILES = {"/root/bench/migration_inside.py": HERE / "migration_inside.py"}
COUNT, TIMEOUT_S = 6, 3000
GUESTS = """
name = "migration"
topology = "n2"
managers = ["vmplace"]
[[guests]]
name = "migrant"
start_nids = [0, 1]
nids = [0, 1]
memory_mib = 128
huge_pages = false
"""
WRITER = """[guests.workload]
arena_mib = 32
[[guests.workload.touch]]
vcpus = "0-1"
ranges = ["0+32"]
rate = 8
[[guests.workload.touch]]
vcpus = "0-1"
ranges = ["0+4"]
rate = 0.25
write_percent = 100
"""


def scenario() -> Scenario:
    """Return the guest that writes."""
    return parse_scenario(GUESTS + WRITER, source="migration")


def domain(of: Scenario) -> str:
    """Return the guest's XML: QEMU's own threads are on node 0, and so is what they touch first."""
    cpus = cpus_by_nid(read_topology(TOPOLOGY))
    (guest,) = of.guests
    reported = domain_xml(of, guest, boot_files(of), cpus)
    every = ",".join(str(cpu) for nid in sorted(cpus) for cpu in cpus[nid])
    first = ",".join(map(str, cpus[0]))
    return reported.replace(f'<emulatorpin cpuset="{every}"', f'<emulatorpin cpuset="{first}"')


def migrations(*, count: int, kernel: Flavour) -> Figures:
    """Return the medians of so many migrations, their spread, and each of them."""
    before = os.environ.get(FLAVOUR_VARIABLE)
    os.environ[FLAVOUR_VARIABLE] = kernel
    try:
        with boot_host(TOPOLOGY, files=FILES) as host:
            host.put(domain(scenario()).encode(), "/root/bench/migrant.xml")
            host.run(
                "echo 0 >/proc/sys/kernel/numa_balancing; echo 0 >/sys/module/kvm/parameters/halt_poll_ns"
            )
            done = host.run(f"cd /root && python3 -m bench.migration_inside {count}", timeout=TIMEOUT_S)
    finally:
        os.environ.pop(FLAVOUR_VARIABLE)
        if before is not None:
            os.environ[FLAVOUR_VARIABLE] = before
    print(done.stderr, file=sys.stderr)
    return summed_up(json.loads(done.stdout))


def summed_up(migrations: list[dict[str, float]]) -> dict[str, Any]:
    """Return by figure its median, least and largest, and all values in their order."""
    reported = {}
    for name in migrations[0]:
        values = [one[name] for one in migrations if one[name] is not None]
        reported[name] = {
            "median": statistics.median(values),
            "least": min(values),
            "largest": max(values),
            "all": values,
        }
    return reported


PARTS = {
    "rounds_stock": partial(migrations, kernel="stock"),
    "rounds_patched": partial(migrations, kernel="patched"),
}


def main() -> int:
    """Run all parts, or those that are asked for; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part (again for more)")
    parser.add_argument("--count", type=int, default=COUNT, help="migrations of a part")
    add_record_options(parser)
    options = parser.parse_args()
    chosen = {name: partial(PARTS[name], count=options.count) for name in options.only or PARTS}
    return measure("migration", chosen, options)


if __name__ == "__main__":
    sys.exit(main())
