"""What does a kernel with the series cost a live migration, and what does a summary save after one?
Agents write their summary every 5 s here (summary_s), not every 300 s, which is the default.

Two libvirtds on one emulated host of two nodes, each with processes and files of its own, move a guest of
two vCPUs to and fro (migration_inside.py, migration_agents.py).  libvirt counts rounds, bytes and downtime;
time is the emulated host's, so only ratios carry over.

``rounds_stock``: a guest that writes, on the stock kernel.  That is the control of ``rounds_patched``, the
same on the kernel of kvm-patches/.  ``rounds_managed``: on that kernel, in turns without vmplace, the
control, and with an agent on each host.  ``let_go_before_ms``: from when the agent has let go of the guest
until the first round.

``arrivals``: seconds until the guest's LAR is 0.9 on the host that it comes to, in turns without a summary
from the last host, the control, and with one.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.record import Figures, add_record_options, measure
from lab.domain_xml import domain_xml
from lab.kernel import FLAVOUR_VARIABLE, Flavour
from lab.machine import boot_host
from lab.scenario import Scenario, parse_scenario
from lab.scenario_agents import of_emulation
from lab.scenario_stage import boot_files, cpus_by_nid
from lab.topology import read_topology

HERE = Path(__file__).parent
TOPOLOGY = "n2"
INSIDE = ("migration_inside", "migration_agents")
FILES = {f"/root/bench/{name}.py": HERE / f"{name}.py" for name in INSIDE}
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
OWN_HALVES = """[guests.workload]
arena_mib = 32
verify_kib_per_s = 0
[[guests.workload.touch]]
vcpus = "0"
ranges = ["0+16"]
rate = 8
burst = 8
write_percent = 20
[[guests.workload.touch]]
vcpus = "1"
ranges = ["16+16"]
rate = 8
burst = 8
write_percent = 20
"""
AGENT = """
[readings]
# In the 6 ms after which a real host is first asked, guests as slow as these here touch next to nothing.
first_ms = 0
"""


def scenario(workload: str) -> Scenario:
    """Return the guest with this workload."""
    return parse_scenario(GUESTS + workload, source="migration")


def domain(of: Scenario) -> str:
    """Return the guest's XML: QEMU's own threads are on node 0, and so is what they touch first."""
    cpus = cpus_by_nid(read_topology(TOPOLOGY))
    (guest,) = of.guests
    reported = domain_xml(of, guest, boot_files(of), cpus)
    every = ",".join(str(cpu) for nid in sorted(cpus) for cpu in cpus[nid])
    first = ",".join(map(str, cpus[0]))
    return reported.replace(f'<emulatorpin cpuset="{every}"', f'<emulatorpin cpuset="{first}"')


@contextlib.contextmanager
def booted_kernel(kernel: Flavour) -> Iterator[None]:
    """Have hosts boot this kernel for the length of the block."""
    before = os.environ.get(FLAVOUR_VARIABLE)
    os.environ[FLAVOUR_VARIABLE] = kernel
    try:
        yield
    finally:
        os.environ.pop(FLAVOUR_VARIABLE)
        if before is not None:
            os.environ[FLAVOUR_VARIABLE] = before


def done_inside(command: str, of: Scenario, *, kernel: Flavour, meter: bool = False) -> list[dict[str, Any]]:
    """Return what a command of the inner module says of each migration of the guest."""
    with booted_kernel(kernel), boot_host(TOPOLOGY, files=FILES, meter=meter) as host:
        host.put(domain(of).encode(), "/root/bench/migrant.xml")
        host.put((AGENT + (of_emulation(of, 1.0) if meter else "")).encode(), "/root/bench/vmplace.toml")
        host.run("echo 0 >/proc/sys/kernel/numa_balancing; echo 0 >/sys/module/kvm/parameters/halt_poll_ns")
        done = host.run(f"cd /root && python3 -m bench.{command}", timeout=TIMEOUT_S)
    print(done.stderr, file=sys.stderr)
    reported: list[dict[str, Any]] = json.loads(done.stdout)
    return reported


def migrations(*, count: int, kernel: Flavour) -> Figures:
    """Return the medians of so many migrations, their spread, and each of them."""
    return summed_up(done_inside(f"migration_inside {count}", scenario(WRITER), kernel=kernel))


def managed(*, count: int) -> Figures:
    """Return the same without agents and with, by turns."""
    seen = done_inside(f"migration_agents counted {count}", scenario(WRITER), kernel="patched")
    return by_turns(seen, "managed", "without_vmplace", "with_vmplace")


def arrivals(*, count: int) -> Figures:
    """Return how long so many arrivals take without a summary and with."""
    seen = done_inside(
        f"migration_agents arrivals {count}", scenario(OWN_HALVES), kernel="patched", meter=True
    )
    return by_turns(seen, "with_summary", "without_summary", "with_summary")


def by_turns(seen: list[dict[str, Any]], key: str, control: str, tried: str) -> dict[str, Any]:
    """Return the figures of those without ``key``, the control, and of those with it."""
    turns = {
        name: [one for one in seen if one[key] is has] for name, has in ((control, False), (tried, True))
    }
    return {name: summed_up([_without(one, key) for one in turn]) for name, turn in turns.items()}


def _without(one: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name != key}


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


PARTS: dict[str, Callable[..., Figures]] = {
    "rounds_stock": partial(migrations, kernel="stock"),
    "rounds_patched": partial(migrations, kernel="patched"),
    "rounds_managed": managed,
    "arrivals": arrivals,
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
