"""How long do people and Prometheus wait for the agent's state, with many guests?  ms; JSON.

A process serves the state of GUESTS on four nodes on a real control socket, as the agent does: the answer is
made anew for each request.  ``status``: a request to the socket and its answer; ``status_json``: the whole
command `vmplace status --json`, process and all; ``scrape``: what the exporter makes for Prometheus, the
request to the agent in it; ``agent_mib``: the most memory of the process that answers, which has all
modules of the agent loaded.  Statistics of pages come on top of that (bench_pages).  The control: a tenth of
the guests.

    python3 -m bench.bench_control 200
"""

import argparse
import importlib
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import msgspec

from bench.bench_hook import percentiles
from bench.record import add_record_options, measure
from vmplace.agent.state import AgentStatus, GuestStatus, NodeStatus
from vmplace.interfaces.client import ask
from vmplace.interfaces.control import ControlServer
from vmplace.interfaces.metrics_exporter import exposed
from vmplace.interfaces.protocol import Response

GIB, NODES = 1 << 30, 4
BEFORE_S = 0.06
"""Between two requests: who is not root may ask 20 times a second."""
COMMAND = "from vmplace.interfaces.entry import main; main()"


def guest(number: int) -> GuestStatus:
    """Return the state of a guest about which all is known."""
    home, pages = number % NODES, dict.fromkeys(range(NODES), 1000) | {number % NODES: 1 << 20}
    return GuestStatus(
        mode="auto",
        state="moving",
        pid=1000 + number,
        origin="libvirt",
        vcpu_nids=(home,),
        memory_bytes=4 * GIB,
        pages_by_node=pages,
        hot_pages_by_node={nid: count // 8 for nid, count in pages.items()},
        estimated_lar=0.97,
        moved_bytes=GIB,
        replica_bytes=GIB // 8,
        movability={"movable": 4 * GIB},
        reasons=(f"the vCPUs run on node {home}", "copies: all nodes only read it"),
        uuid=f"8f1d3c52-0000-0000-0000-{number:012}",
        refused_bytes={"budget": GIB, "busy": 4096},
        expected_lar=0.98,
        cost_ratio=0.9,
        pressure_by_node=dict.fromkeys(range(NODES), 0.01),
    )


def state(guests: int) -> AgentStatus:
    """Return the state of an agent with so many guests."""
    nodes = tuple(NodeStatus(nid, 32, 512 * GIB, 100 * GIB) for nid in range(NODES))
    named = {f"instance-{number:08x}": guest(number) for number in range(guests)}
    return AgentStatus("0", 1, "kvm", "auto", False, tuple(range(NODES)), 10, guests=named, nodes=nodes)


def serve(path: Path, guests: int, ready: Event, done: Event) -> None:
    """Serve the state until ``done``."""
    # What the agent has loaded, and the exporter beside it has not.
    importlib.import_module("vmplace.agent.wiring")
    importlib.import_module("vmplace.agent.loop")
    status = state(guests)
    server = ControlServer(
        path, lambda _peer, _request: Response(True, data=msgspec.to_builtins(status, str_keys=True))
    )
    server.start()
    ready.set()
    done.wait()
    server.close()


def timed(what: Callable[[], object], times: int) -> dict[str, float]:
    """Return the median, the 99th percentile and the longest of so many calls, in ms."""
    taken = []
    for _ in range(times):
        time.sleep(BEFORE_S)
        started = time.perf_counter()
        what()
        taken.append((time.perf_counter() - started) * 1e3)
    return percentiles(taken)


def most_mib(pid: int | None) -> float:
    """Return the most memory that a process has had resident (VmHWM), in MiB."""
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def waits(guests: int, times: int) -> dict[str, Any]:
    """Return the figures for so many guests."""
    spawn = multiprocessing.get_context("spawn")
    ready, done = spawn.Event(), spawn.Event()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "control.sock")
        # Begun anew: what a fork has of this process is not the agent's.
        agent = spawn.Process(target=serve, args=(path, guests, ready, done))
        agent.start()
        try:
            ready.wait()
            command = [sys.executable, "-c", COMMAND, "status", "--json", "--socket", str(path)]
            whole = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
            return {
                "status_ms": timed(partial(ask, "status", path=path), times),
                "status_json_ms": timed(whole, max(times // 10, 1)),
                "scrape_ms": timed(partial(exposed, path), times),
                "agent_mib": most_mib(agent.pid),
            }
        finally:
            done.set()
            agent.join()


def main() -> int:
    """Measure, and print the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("guests", type=int, nargs="?", default=200)
    parser.add_argument("--times", type=int, default=100, help="how often each is asked")
    add_record_options(parser)
    options = parser.parse_args()
    counts = {"guests": options.guests, "control_a_tenth": max(options.guests // 10, 1)}
    parts = {name: partial(waits, count, options.times) for name, count in counts.items()}
    return measure("control", parts, options)


if __name__ == "__main__":
    sys.exit(main())
