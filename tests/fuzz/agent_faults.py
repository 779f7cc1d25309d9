"""Let the agent run in virtual time while things go wrong under it, by seed, on a host of two nodes and two
small guests; check what must hold whatever went wrong.

    python -m tests.fuzz.agent_faults [--seeds 10000] [--first N] [--seconds 180] [--jobs N]

What goes wrong: calls of the kernel (ENOMEM, EBUSY, ENODEV, EIO), looks at the host, guests and pages,
counters that are gone, a look that takes 10 s, a node that goes offline, a time of day that jumps, a guest
that ends in mid-move, an agent that is killed before any step or after pages moved, and started again on its
journal.

In one seed of eight the plan is to send all pages to the other node, window by window, which the budget
and the veto on moves to and fro have to stop; guests are larger than what a budget saves up there.

What must hold:

1. a guest that runs is not held up by another one's end or failure: the agent goes on, or was killed, and
   serves it as far as the budget allows;
2. no more moves and copies in any stretch of an agent's life than the budget gives, with what it may save up;
3. no page goes to and fro: of an agent's three windows none moves it more than twice;
4. no page is moved to a node that was offline when the agent looked;
5. the journal and the pages agree: of each page that is away, it has the node that the page was on at first,
   and the one that it is on now;
6. undo is exact: the pages of the guest that ran on lie where they lay first, and kernel.numa_balancing is
   as it was.

Prints the first seed, which is drawn anew unless it is given, how many seeds were run within the time, and
for one that fails the command that repeats it.  The exit code is 1 if a seed failed, if there was no time for
``LEAST_SEEDS``, or if so many moved or copied nothing; and 5 if the time was too short for all.
"""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from tests.fuzz.faulty_host import VICTIM, Faults, FaultyHost, Killed
from tests.unit.simulate.small_trace import arrays_of
from vmplace.actuation.journal import read_journal
from vmplace.agent.config_sections import BudgetSection
from vmplace.simulate.agent_run import IN_MEMORY, AgentSetup, quiet
from vmplace.simulate.guest_option import guest_spec
from vmplace.simulate.guest_run import GuestRun, GuestSpec, share_cpus
from vmplace.simulate.host_file import SimulatedHost, parse_host
from vmplace.simulate.placement_costs import PlacementCosts
from vmplace.simulate.registry import POLICIES
from vmplace.simulate.simulated_guest import HVA
from vmplace.simulate.simulation import Simulation
from vmplace.simulate.source_views import Sensor, source_named
from vmplace.simulate.trace import parse_trace
from vmplace.topology.guest import PAGE_BYTES

HOST_FILE = """
distances = [[10, 20], [20, 10]]
bandwidth_mib_per_s = [[8000, 4000], [4000, 8000]]
node = [{nid = 0, cpus = 2, memory_mib = 16}, {nid = 3, cpus = 2, memory_mib = 16}]
"""
PAGES, MANY_PAGES, WINDOWS, LONG = 96, 768, 12, 60_000
AGENT_WINDOWS, LIVES = 3, 2
MOST_MOVES = 2
"""The first return is let through (actuation/veto.py)."""
LONGEST_S = 60
"""Of a seed, which takes a tenth of a second."""
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


@cache
def host_file() -> SimulatedHost:
    """Return the host."""
    return parse_host(HOST_FILE, name="two")


@cache
def spec(name: str, kind: int, npages: int) -> GuestSpec:
    """Return a guest: of pages of one node each, of pages that both read, or one away from its memory."""
    users = [(page, user) for page in range(npages) for user in ((0, 1) if kind == 1 else (page % 2,))]
    records = [(w, page, user, LONG, int(kind != 1)) for w in range(WINDOWS) for page, user in users]
    arrays = arrays_of(records, pages=npages, threads=2, windows=WINDOWS)
    options = {"nodes": "3", "first_touch": "0"} if kind == 2 else {"nodes": "0+3", "first_touch": "0"}
    return guest_spec(name, parse_trace(arrays, name=name), options, host_file())


def check(seed: int) -> Done:
    """Run one seed; return what happened.  Raises AssertionError."""
    is_restless, npages = seed % 8 == 3, MANY_PAGES if seed % 4 == 3 else PAGES
    specs = [spec(name, (seed + at) % 3, npages) for at, name in enumerate(NAMES)]
    guests = [GuestRun(one, host_file(), 1 << 30) for one in specs]
    share_cpus(guests, host_file())
    simulation = Simulation(host_file(), guests, POLICIES["agent:auto"], source_named("ad"), PlacementCosts())
    faults, sensor = Faults(simulation, seed), SENSORS[seed // 3 % len(SENSORS)]
    with own_folder() as folder, quiet():
        policy = "interleave" if seed % 8 == 7 else "auto"
        config: dict[str, object] = {"budget": BudgetSection(mb_per_s=BUDGET_MB)}
        setup = AgentSetup(policy, sensor, seed=seed, trouble=faults, config=config)
        host = FaultyHost(simulation, setup, folder, faults, is_restless=is_restless)
        # Whatever moves was moved by the agent; its sysctl is there to be taken all the same.
        simulation.kernel = None
        sysctl = folder / "proc/sys/kernel/numa_balancing"
        before = guests[0].node.copy()
        _live(host, simulation, guests[0])
        _check_journal(host, before)
        faults.on = faults.is_offline = False
        with contextlib.closing(host.actuator()) as last:
            last.undo(None, lambda: False)
        assert (guests[0].node == before).all(), "undo is not exact"
        assert not sysctl.exists() or sysctl.read_text().strip() == "1", "the sysctl is not given back"
    return Done(
        faults.count,
        host.moved,
        sum(guest.replicated for guest in host.machine.guests.values()),
    )


NAMES = ("stays", VICTIM)


def _live(host: FaultyHost, simulation: Simulation, stays: GuestRun) -> None:
    """Let the agent live, be killed and live again."""
    for _ in range(LIVES):
        host.begin_life()
        with contextlib.closing(host.actuator()) as actuator:
            host.watch(actuator)
            agent, killed = host.agent(actuator), False
            try:
                agent.run(windows=AGENT_WINDOWS)
            except Killed:
                killed = True
            assert stays in simulation.active, "the guest ended, which is to run on"
            assert killed or agent.status.windows == AGENT_WINDOWS, "the agent came to a halt"
        host.end_process()
        _check_budget(host)
        assert not host.wrong, host.wrong[0]
        assert max(int(moves.max()) for moves in host.moves.values()) <= MOST_MOVES, "a page goes to and fro"


def _check_budget(host: FaultyHost) -> None:
    """Of any stretch of an agent's life: what left its place or was copied is within rate and saving."""
    rate = BUDGET_MB * 1e6 / PAGE_BYTES
    for at, (begin_s, _) in enumerate(host.away):
        moved = 0
        for end_s, pages in host.away[at:]:
            moved += pages
            assert moved <= rate * (end_s - begin_s) + SAVED_PAGES, "beyond the budget"


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


class Hung(BaseException):
    """A seed took too long; the agent catches errors of the kernel, and a TimeoutError is one of these."""


@contextlib.contextmanager
def bounded(seconds: int) -> Iterator[None]:
    """Raise Hung after so long, and again each second in case it is caught."""

    def end(*_: object) -> None:
        raise Hung(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def checked(seed: int, until: float) -> tuple[int, Done | None, str]:
    """Return the seed, what happened (None: there was no time for it), and what failed."""
    if time.monotonic() > until:
        return seed, None, ""
    try:
        with bounded(LONGEST_S):
            return seed, check(seed), ""
    except (Exception, Hung):
        return seed, Done(0, 0, 0), traceback.format_exc(limit=-3)


def main() -> int:
    """Run seeds; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=None, help="[default: drawn anew]")
    parser.add_argument("--seconds", type=float, default=180.0, help="begin no seed after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    began = time.monotonic()
    run = partial(checked, until=began + options.seconds)
    first = int.from_bytes(os.urandom(3)) * 1000 if options.first is None else options.first
    print(f"seeds from {first}", flush=True)
    seeds = range(first, first + options.seeds)
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
