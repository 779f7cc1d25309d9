"""Inside the emulated host: live migrations between two hosts with an agent each; prints JSON.

    python3 -m bench.migration_agents counted COUNT     what libvirt counts, by turns without agents and with
    python3 -m bench.migration_agents arrivals COUNT    until LAR is 0.9 on the other host, by turns with a
                                                        summary from the last one and without

Each agent runs in the namespaces of its libvirtd, so it knows that one's guests alone; its configuration is
CONFIG.  LAR is of lines that the emulator's meter counts, of the guest's programs.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import libvirt

from bench.migration_inside import (
    GUEST,
    REST_S,
    InnerHost,
    check_memory,
    migrated,
    two_hosts,
    until,
)
from lab.counted import counted_by_programs
from lab.counters_meter import MeterCounters
from vmplace.model.metrics import local_access_ratio
from vmplace.topology.domain_policy import PLACEMENT

CONFIG = Path("/root/bench/vmplace.toml")
NUMBER = 1
"""Of the guest, as it tells the meter."""
SUMMARY_S = 5
LOCAL, LOOK_S, LOOKS_IN_ROW = 0.9, 0.5, 2
PLACED_S, LATEST_S = 300.0, 180.0
KNOWN_WINDOWS = 5
LET_GO = f"guest={GUEST} state=known->migrating"


class Agent:
    """An agent in a host's namespaces; ``lines`` is its log, each line with the second it came."""

    def __init__(self, host: InnerHost, *, summary_s: int) -> None:
        """Start it."""
        self._host = host
        config = host.folder / "vmplace.toml"
        config.write_text(CONFIG.read_text() + f"\n[migration]\nsummary_s = {summary_s}\n")
        self._process = subprocess.Popen(
            host.within(["vmplace", "agent", "--config", str(config)]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def await_ready(self) -> None:
        """Wait until it answers."""
        until(lambda: self.status() is not None or self._process.poll() is not None, "the agent answers")
        if self._process.poll() is not None:
            raise RuntimeError(f"the agent did not start: {self.lines[-20:]}")

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.lines.append((time.monotonic(), line.rstrip()))

    def status(self) -> dict[str, Any] | None:
        """Return what it says of itself, None while it does not answer."""
        argv = self._host.within(["vmplace", "status", "--json"])
        said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
        return json.loads(said) if said.startswith("{") else None

    def said_at(self, text: str) -> float | None:
        """Return when a line with this text came first."""
        return next((at for at, line in list(self.lines) if text in line), None)

    def stop(self) -> None:
        """End it cleanly; nsenter hands no signal on, and its pid is of its own namespace."""
        status = self.status()
        if status is not None:
            subprocess.run(self._host.within(["kill", "-TERM", str(status["pid"])]), check=True)
        if status is None or self._process.wait(120):
            raise RuntimeError(f"the agent failed: {self.lines[-20:]}")


def started(source: InnerHost, target: InnerHost, summary_s: int) -> list[Agent]:
    """Return an agent on each host, up."""
    agents = [Agent(host, summary_s=summary_s) for host in (source, target)]
    for agent in agents:
        agent.await_ready()
    return agents


class Rounds:
    """When did the first round of a migration begin, by QEMU's own event?"""

    def __init__(self, source: InnerHost) -> None:
        """Listen from now on."""
        self.first_at: float | None = None
        self._connection = libvirt.open(source.uri)
        self._connection.domainEventRegisterAny(
            None, libvirt.VIR_DOMAIN_EVENT_ID_MIGRATION_ITERATION, self._round, None
        )

    def _round(self, _connection: Any, _domain: Any, _iteration: int, _: Any) -> None:
        if self.first_at is None:
            self.first_at = time.monotonic()


def counted(hosts: list[InnerHost], count: int) -> Iterator[dict[str, Any]]:
    """Yield what libvirt counts of each migration; with agents also how long before it they let go."""
    source, target = hosts
    for managed in (False, True) * count:
        time.sleep(REST_S)
        figures = migrated_with_agents(source, target) if managed else migrated(source, target)
        yield {"managed": managed, **figures}
        source, target = target, source
    check_memory(source)


def migrated_with_agents(source: InnerHost, target: InnerHost) -> dict[str, float]:
    """Migrate the guest from an agent that knows it to another agent."""
    leaving, taking = started(source, target, SUMMARY_S)
    until(lambda: knows(leaving), "the agent knows the guest")
    rounds = Rounds(source)
    figures = migrated(source, target)
    until(lambda: None not in (leaving.said_at(LET_GO), rounds.first_at), "agent and QEMU tell of it", 30)
    figures["let_go_before_ms"] = ((rounds.first_at or 0) - (leaving.said_at(LET_GO) or 0)) * 1e3
    for agent in (leaving, taking):
        agent.stop()
    return figures


def knows(agent: Agent) -> bool:
    """Tell whether the agent has looked at the guest for some windows."""
    status = agent.status()
    return status is not None and GUEST in status["guests"] and status["windows"] >= KNOWN_WINDOWS


def arrivals(hosts: list[InnerHost], count: int) -> Iterator[dict[str, Any]]:
    """Yield how long the guest's LAR takes on the host that it came to."""
    source, target = hosts
    subprocess.run(["vmp-meter", "on"], check=True)
    with MeterCounters() as meter:
        for with_summary in (False, True) * count:
            agents = started(source, target, SUMMARY_S * with_summary)
            try:
                yield arrival(meter, source, target, with_summary=with_summary)
            finally:
                for agent in agents:
                    print(*(line for _, line in agent.lines[-40:]), "--", sep="\n", file=sys.stderr)
                    print(json.dumps(agent.status())[:3000], file=sys.stderr)
            for agent in agents:
                agent.stop()
            source, target = target, source
    check_memory(source)


def arrival(
    meter: MeterCounters, source: InnerHost, target: InnerHost, *, with_summary: bool
) -> dict[str, Any]:
    """Migrate once, from where the guest is placed well."""
    settled, before = local_after(meter, PLACED_S)
    if settled is None:
        raise RuntimeError(f"the guest is not placed before it migrates: {before}")
    domain = source.connection.lookupByName(GUEST)
    if with_summary:
        until(lambda: has_summary(domain), "the summary is in the domain")
    elif has_summary(domain):
        # The one that came with it, in the turn before.
        domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, None, None, PLACEMENT, 0)
    time.sleep(2 * SUMMARY_S)
    if has_summary(domain) != with_summary:
        raise RuntimeError("the control has a summary")
    print(f"placed after {settled:.1f} s, at first LAR {before[0]:.2f}", file=sys.stderr)
    figures = migrated(source, target)
    local_s, seen = local_after(meter, LATEST_S)
    print(f"arrived, LAR {[round(one, 2) for one in seen]}", file=sys.stderr)
    return {
        "with_summary": with_summary,
        "seconds_to_lar_0.9": local_s,
        "first_lar": seen[0],
        "migration_s": figures["elapsed_ms"] / 1e3,
    }


def has_summary(domain: Any) -> bool:
    """Tell whether a summary stands in the live domain."""
    try:
        return bool(domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, PLACEMENT, 0))
    except libvirt.libvirtError:
        return False


def local_after(meter: MeterCounters, most_s: float) -> tuple[float | None, list[float]]:
    """Return after how many seconds LAR was LOCAL and stayed for some looks, and LAR at each look."""
    started, earlier = time.monotonic(), meter.read()
    ends: list[float] = []
    seen: list[float] = []
    while not ends or ends[-1] < most_s:
        time.sleep(LOOK_S)
        later = meter.read()
        ends.append(time.monotonic() - started)
        lar = local_access_ratio(counted_by_programs(later.since(earlier), NUMBER))
        seen.append(0.0 if lar is None else lar)
        earlier = later
        if len(seen) >= LOOKS_IN_ROW and min(seen[-LOOKS_IN_ROW:]) >= LOCAL:
            return ends[-LOOKS_IN_ROW], seen
    return None, seen


WHAT: dict[str, Callable[[list[InnerHost], int], Iterator[dict[str, Any]]]] = {
    "counted": counted,
    "arrivals": arrivals,
}


def main(what: str, count: str) -> None:
    """Measure and print."""
    libvirt.registerErrorHandler(lambda *_: None, None)
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=run_events, daemon=True).start()
    with two_hosts(with_hook=True) as hosts:
        print(json.dumps(list(WHAT[what](hosts, int(count)))))


def run_events() -> None:
    """Let libvirt tell its events."""
    while True:
        libvirt.virEventRunDefaultImpl()


if __name__ == "__main__":
    main(*sys.argv[1:])
