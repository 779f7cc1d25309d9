"""Let the agent run in virtual time while things go wrong under it, by seed, on a host of two nodes and two
small guests; check what must hold whatever went wrong.

    python -m tests.fuzz.agent_faults [--seeds 10000] [--first 0] [--seconds 180] [--jobs N]

What goes wrong: calls of the kernel (ENOMEM, EBUSY, ENODEV, EIO), looks at the host, guests and pages,
counters that are gone, a look that takes 10 s, a node that goes offline, a time of day that jumps, a guest
that ends in mid-move, an agent that is killed at any step and started again on its journal.

What must hold:

1. a guest that runs is not held up by another one's end: the agent goes on, or was killed;
2. no more moves in a window than the budget gives, with what it may save up;
3. no page goes to and fro: after six windows none was moved more than four times in all;
4. the journal and the pages agree: of each page that is away, it has the node that the page was on at first,
   and the one that it is on now;
5. undo is exact: the pages of the guest that ran on lie where they lay first, and kernel.numa_balancing is
   as it was.

Prints how many seeds were run within the time, and for one that fails the command that repeats it.  The exit
code is 1 if a seed failed, if there was no time for ``LEAST_SEEDS``, or if in so many nothing was moved or
nothing copied; and 5 if the time was too short for all.
"""

import argparse
import contextlib
import errno
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from tests.unit.simulate.small_trace import arrays_of
from vmplace.actuation.journal import read_journal
from vmplace.agent.actuator import HostActuator
from vmplace.agent.config import BudgetSection
from vmplace.agent.parts import Parts
from vmplace.errors import VmplaceError
from vmplace.sampling.guest_cost import MemoryRate
from vmplace.simulate.agent_run import IN_MEMORY, AgentHost, AgentSetup, SimulatedCost, quiet
from vmplace.simulate.guest_option import guest_spec
from vmplace.simulate.guest_run import GuestRun, GuestSpec, share_cpus
from vmplace.simulate.host_file import SimulatedHost, parse_host
from vmplace.simulate.placement_costs import PlacementCosts
from vmplace.simulate.registry import POLICIES
from vmplace.simulate.simulated_guest import HVA, SimulatedGuest
from vmplace.simulate.simulation import Simulation
from vmplace.simulate.source_views import CLOCK_SCALE, Sensor, source_named
from vmplace.simulate.trace import parse_trace
from vmplace.topology.guest import PAGE_BYTES, GuestTopology
from vmplace.topology.host import HostTopology

HOST_FILE = """
distances = [[10, 20], [20, 10]]
bandwidth_mib_per_s = [[8000, 4000], [4000, 8000]]
node = [{nid = 0, cpus = 2, memory_mib = 16}, {nid = 3, cpus = 2, memory_mib = 16}]
"""
PAGES, WINDOWS, LONG = 96, 12, 60_000
AGENT_WINDOWS, LIVES = 3, 2
MOST_MOVES = 4
SOME = 0.06
"""The chance that a step goes wrong."""
ERRORS = (errno.ENOMEM, errno.EBUSY, errno.ENODEV, errno.EIO)
KERNEL = ("move_pages", "page_nids", "replicate", "statistics", "info", "open")
SLOW_LOOK_S = 10.0
LOOKS = ("host", "guests", "arm", "read", "harvest")
SENSORS = (Sensor("kvm", bits=True), Sensor("idle"))
BUDGET_MB, SAVED_PAGES = 1, 512
"""The least there is, and what a budget may save up: a huge page (actuation/budget.py)."""


LEAST_SEEDS = 500
"""Fewer show nothing, unless fewer were asked for."""
FAILED, TOO_SHORT = 1, 5
"""Exit codes; 2 is of a wrong command line."""


class Done(NamedTuple):
    """What happened in a seed: faults, and pages that were moved and that got copies."""

    faults: int
    moves: int
    copies: int


class Killed(BaseException):
    """The agent ends here, as by an error that nobody catches; what Python cleans up is still cleaned up."""


class Faults:
    """Lets steps of the host go wrong with a small chance; the same ones for the same seed."""

    def __init__(self, simulation: Simulation, seed: int, kills: int = 1) -> None:
        self._simulation, self._chance = simulation, np.random.default_rng(seed)
        self.on, self.kills, self.count = True, kills, 0
        self.jumped_s, self.is_offline = 0.0, False

    def before(self, step: str, guest: SimulatedGuest | None) -> None:
        """Let the step go wrong, or not."""
        if not self.on or self._chance.random() > SOME:
            return
        self.count += 1
        kind = int(self._chance.integers(6))
        if kind == 0 and self.kills:
            self.kills -= 1
            raise Killed
        if kind == 1 and guest is not None and guest.name == "victim":
            self._end(guest)
        elif kind == 2:
            self.jumped_s += float(self._chance.normal(0, 1e6))
        elif kind == 3 and step == "host":
            self.is_offline = not self.is_offline
        elif kind == 5 and step == "guests":
            # Only time passes: what bounds the wait for libvirt itself is no part of this.
            self._simulation.go_on(self._simulation.now + SLOW_LOOK_S * 1e9 / CLOCK_SCALE)
        elif step in KERNEL:
            raise OSError(int(self._chance.choice(ERRORS)), "made up")
        elif step in LOOKS or step == "counters":
            raise VmplaceError(f"{step}: made up")

    def _end(self, guest: SimulatedGuest) -> None:
        """End the guest's process, whatever is being done with it."""
        if guest.run in self._simulation.active:
            self._simulation.active.remove(guest.run)
            self._simulation.finished[guest.name] = self._simulation.now
            share_cpus(self._simulation.active, self._simulation.host)


class FaultyCost(SimulatedCost):
    """Counters that are gone now and then."""

    def __init__(self, simulation: Simulation, faults: Faults) -> None:
        super().__init__(simulation)
        self._faults = faults

    def cost(self, guest: GuestTopology) -> float | None:
        """Return vCPU ns per instruction, or raise."""
        self._faults.before("counters", None)
        return super().cost(guest)

    def rate(self, guest: GuestTopology) -> MemoryRate | None:
        """Return the rates, or raise."""
        self._faults.before("counters", None)
        return super().rate(guest)


class FaultyHost(AgentHost):
    """A host of which a node goes offline and comes back, and whose time of day jumps; it counts moves."""

    def __init__(self, simulation: Simulation, setup: AgentSetup, folder: Path, faults: Faults) -> None:
        super().__init__(simulation, setup, folder)
        self._faults = faults
        self.begun_s = self.machine.clock.monotonic()
        self.away: list[tuple[float, int]] = []
        self.moves = {name: np.zeros(len(g.run.node), np.int64) for name, g in self.machine.guests.items()}
        first = {name: guest.run.node.copy() for name, guest in self.machine.guests.items()}
        carry_out = self.machine._move

        def counted(guest: SimulatedGuest, pages: np.ndarray, target: int) -> None:
            self.moves[guest.name][pages] += 1
            left = int(np.count_nonzero(first[guest.name][pages] != target))
            self.away.append((self.machine.clock.monotonic(), left))
            carry_out(guest, pages, target)

        self.machine._move = counted  # type: ignore[method-assign]
        clock = self.machine.clock
        unix_s = clock.unix_s
        clock.unix_s = lambda: unix_s() + faults.jumped_s  # type: ignore[method-assign]

    def end_process(self) -> None:
        """Close what the agent's process had open: KVM drops all copies then, whatever went wrong before."""
        for guest in self.machine.guests.values():
            if guest.run in self.simulation.active:
                self.machine._drop(guest, np.arange(guest.slots))

    def _parts(self, actuator: HostActuator) -> Parts:
        parts = super()._parts(actuator)
        look = parts.discovery.host
        parts.discovery.host = lambda: self._without_node(look())  # type: ignore[method-assign]
        return replace(parts, counters=FaultyCost(self.simulation, self._faults))

    def _without_node(self, host: HostTopology) -> HostTopology:
        if not self._faults.is_offline:
            return host
        (gone,) = host.nids[1:]
        keep = {key: value for key, value in host.distances.items() if gone not in key}
        rates = {key: value for key, value in host.bandwidths.items() if gone not in key}
        return replace(host, nodes=host.nodes[:1], distances=keep, bandwidths=rates)


@cache
def host_file() -> SimulatedHost:
    """Return the host."""
    return parse_host(HOST_FILE, name="two")


@cache
def spec(name: str, kind: int) -> GuestSpec:
    """Return a guest: of pages of one node each, of pages that both read, or one away from its memory."""
    users = [(page, user) for page in range(PAGES) for user in ((0, 1) if kind == 1 else (page % 2,))]
    records = [(w, page, user, LONG, int(kind != 1)) for w in range(WINDOWS) for page, user in users]
    arrays = arrays_of(records, pages=PAGES, threads=2, windows=WINDOWS)
    options = {"nodes": "3", "first_touch": "0"} if kind == 2 else {"nodes": "0+3", "first_touch": "0"}
    return guest_spec(name, parse_trace(arrays, name=name), options, host_file())


def check(seed: int) -> Done:
    """Run one seed; return what happened.  Raises AssertionError."""
    guests = [GuestRun(spec(name, (seed + at) % 3), host_file(), 1 << 30) for at, name in enumerate(NAMES)]
    share_cpus(guests, host_file())
    simulation = Simulation(host_file(), guests, POLICIES["agent:auto"], source_named("ad"), PlacementCosts())
    faults, sensor = Faults(simulation, seed), SENSORS[seed // 3 % len(SENSORS)]
    with own_folder() as folder, quiet():
        policy = "interleave" if seed % 8 == 7 else "auto"
        config: dict[str, object] = {"budget": BudgetSection(mb_per_s=BUDGET_MB)}
        setup = AgentSetup(policy, sensor, seed=seed, trouble=faults, config=config)
        host = FaultyHost(simulation, setup, folder, faults)
        # Whatever moves was moved by the agent; its sysctl is there to be taken all the same.
        simulation.kernel = None
        sysctl = folder / "proc/sys/kernel/numa_balancing"
        before = guests[0].node.copy()
        _live(host, simulation, guests[0])
        _check_budget(host)
        assert host.moves[NAMES[0]].max() <= MOST_MOVES, "a page goes to and fro"
        _check_journal(host, before)
        faults.on = faults.is_offline = False
        with contextlib.closing(host.actuator()) as last:
            last.undo(None, lambda: False)
        assert (guests[0].node == before).all(), "undo is not exact"
        assert not sysctl.exists() or sysctl.read_text().strip() == "1", "the sysctl is not given back"
    return Done(
        faults.count,
        sum(int(counts.sum()) for counts in host.moves.values()),
        sum(guest.replicated for guest in host.machine.guests.values()),
    )


NAMES = ("stays", "victim")


def _live(host: FaultyHost, simulation: Simulation, stays: GuestRun) -> None:
    """Let the agent live, be killed and live again."""
    for _ in range(LIVES):
        with contextlib.closing(host.actuator()) as actuator:
            agent, killed = host.agent(actuator), False
            try:
                agent.run(windows=AGENT_WINDOWS)
            except Killed:
                killed = True
            assert stays in simulation.active, "the guest ended, which is to run on"
            assert killed or agent.status.windows == AGENT_WINDOWS, "the agent came to a halt"
        host.end_process()


def _check_budget(host: FaultyHost) -> None:
    """Of any stretch of time: what left its place is within the budget, a second's saving and one batch."""
    rate = BUDGET_MB * 1e6 / PAGE_BYTES
    for at, (begin_s, _) in enumerate(host.away):
        moved = 0
        for end_s, pages in host.away[at:]:
            moved += pages
            assert moved <= rate * (end_s - begin_s) + LIVES * SAVED_PAGES, "beyond the budget"


def _check_journal(host: FaultyHost, first: np.ndarray) -> None:
    """Of each page that is away: the journal has where it was first, and where it is."""
    mine, nids = host.machine.guests[NAMES[0]], np.array(host.machine.nids)
    recorded: dict[int, tuple[int, int, int]] = {}
    for origins in read_journal(Path(host.config.state_dir or "") / "journal").guests.values():
        if origins.identity.pid == mine.pid:
            for pages in origins.pages.iter_pages():
                each = zip(pages.nid.tolist(), pages.via.tolist(), pages.to.tolist(), strict=True)
                recorded |= dict(zip(pages.hva.tolist(), each, strict=True))
    frame, now = mine.run.spec.trace.frame, mine.run.node
    for page in np.flatnonzero(now != first).tolist():
        was, via, to = recorded.get(HVA + int(frame[page]) * PAGE_BYTES, (None, None, None))
        assert was == nids[first[page]], f"page {page} is not in the journal"
        assert nids[now[page]] in (via, to), f"page {page} is where the journal has it not"


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Give a folder in memory: the journal writes for each batch."""
    with tempfile.TemporaryDirectory(prefix="vmplace-faults-", dir=IN_MEMORY) as name:
        yield Path(name)


def checked(seed: int, until: float) -> tuple[int, Done | None, str]:
    """Return the seed, what happened (None: there was no time for it), and what failed."""
    if time.monotonic() > until:
        return seed, None, ""
    try:
        return seed, check(seed), ""
    except Exception:
        return seed, Done(0, 0, 0), traceback.format_exc(limit=-3)


def main() -> int:
    """Run seeds; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=180.0, help="begin no seed after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    began = time.monotonic()
    run = partial(checked, until=began + options.seconds)
    seeds = range(options.first, options.first + options.seeds)
    with ProcessPoolExecutor(options.jobs) as pool:
        results = list(pool.map(run, seeds, chunksize=16))
    done = [one for _, one, _ in results if one is not None]
    bad = [(seed, reported) for seed, _, reported in results if reported]
    for seed, reported in bad[:10]:
        print(f"{reported}seed {seed}: python -m tests.fuzz.agent_faults --first {seed} --seeds 1 --jobs 1")
    took = time.monotonic() - began
    print(f"{len(done)} of {options.seeds} seeds in {took:.0f} s: {said(done)}, {len(bad)} failed")
    return FAILED if bad else verdict(options.seeds, done)


def said(done: list[Done]) -> str:
    """Return what happened in all seeds, in words."""
    return ", ".join(f"{sum(getattr(one, name) for one in done)} {name}" for name in Done._fields)


def verdict(asked: int, done: list[Done]) -> int:
    """Return the exit code of seeds that did not fail."""
    if len(done) < min(asked, LEAST_SEEDS):
        print(f"fewer than {min(asked, LEAST_SEEDS)} seeds could be run")
        return FAILED
    if len(done) >= LEAST_SEEDS and not all(map(any, zip(*done, strict=True))):
        print("nothing went wrong, nothing was moved or nothing was copied")
        return FAILED
    return TOO_SHORT if len(done) < asked else 0


if __name__ == "__main__":
    sys.exit(main())
