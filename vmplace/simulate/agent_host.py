"""The host under an agent in virtual time: clock, wakeup, processes, memory and KVM, all of them simulated.

1. Time passes only when the agent waits or works: the simulation goes on by that much.  The agent's seconds
   are ``scale`` times the trace's (source_views.CLOCK_SCALE), as the programs run so much longer.
2. What the agent does takes CPU time by fixed prices, not by this machine's clock: a run is the same each
   time.  The time is taken from the host's CPUs, and all guests lose their part of it.
3. Pages move and get copies by the calls that the real actuator makes: move_pages(2), and the ioctl of KVM's
   placement fd; each guest pays for its own (placement_costs.py).

Not real: the kernel behind the calls.  It refuses for want of room, and what a test has ``before`` refuse
(tests/unit/simulate/test_agent_faults.py).
"""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from vmplace.agent.wakeup import Wakeup
from vmplace.policy.host_view import HUGE_PAGES, REPLICATED, Indexes, moved_as
from vmplace.simulate.agent_threads import SimulatedThreads
from vmplace.simulate.calibrated_host import as_calibrated
from vmplace.simulate.host_file import SimulatedHost
from vmplace.simulate.simulated_guest import HVA, Gfns, Numbers, SimulatedGuest, first_of_each
from vmplace.simulate.simulation import Simulation
from vmplace.topology.guest import PAGE_BYTES, GuestTopology
from vmplace.topology.host import HostTopology, Node
from vmplace.topology.placement import Placement, PlacementInfo, Slot

T = TypeVar("T")
FIRST_PID = 1 << 23
"""Beyond the kernel's limit of 2^22: what takes one of these for a process of this machine finds none."""
BOOT_ID = "simulated"
MOVE_CALL_NS, MOVE_PAGE_NS = 20_000, 1000
"""What a call of move_pages(2) works, and for each page (docs/simulate.md)."""
PAGE_NIDS_NS = 200
"""What it works for each page of which it only tells the node: 180 to 210 for small pages (Linux 6.18)."""
NO_MEMORY, NOT_PRESENT, BACKING_OFF = 8, 2, 9
"""KVM_PLACEMENT_*, as the replicator knows them."""
UNIX_EPOCH_S = 1.7e9


class Trouble(Protocol):
    """What may go wrong: called before each step, and may raise what the kernel would."""

    def before(self, step: str, guest: "SimulatedGuest | None") -> None:
        """Let ``step`` of the host go wrong, or not."""


class NoTrouble:
    """Nothing goes wrong."""

    def before(self, step: str, guest: "SimulatedGuest | None") -> None:
        """Let it pass."""


class VirtualClock:
    """The agent's clocks; they go on with the simulation."""

    def __init__(self, simulation: Simulation, scale: float) -> None:
        self._simulation, self.scale = simulation, scale
        self._cpu_ns = 0.0

    def monotonic(self) -> float:
        """Return the agent's seconds since the simulation began."""
        return self._simulation.now * self.scale / 1e9

    def monotonic_ns(self) -> int:
        """Return the same in ns."""
        return round(self._simulation.now * self.scale)

    def unix_s(self) -> float:
        """Return a time of day."""
        return UNIX_EPOCH_S + self.monotonic()

    def cpu_s(self) -> float:
        """Return the CPU time that the agent's work took."""
        return self._cpu_ns / 1e9

    def thread_cpu_ns(self) -> int:
        """Return the same: it has one thread."""
        return round(self._cpu_ns)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._simulation.go_on(self._simulation.now + max(seconds, 0.0) * 1e9 / self.scale)

    def work(self, ns: float) -> None:
        """Let the agent work for ``ns`` of a CPU, which the guests do not get."""
        simulation = self._simulation
        self._cpu_ns += ns
        lost = ns / self.scale / max(float(simulation.host.cpus.sum()), 1.0)
        for guest in simulation.active:
            simulation.pause[guest.spec.name] += lost
        self.sleep(ns / 1e9)


class VirtualWakeup(Wakeup):
    """Only the end of the last guest wakes the loop."""

    def __init__(self, clock: VirtualClock, simulation: Simulation) -> None:
        self._clock, self._simulation = clock, simulation
        self._fd, self._asked_to_stop = -1, False

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        """Return whether all guests are at their end."""
        return self._asked_to_stop or not self._simulation.active

    def stop(self) -> None:
        """Ask the loop to end."""
        self._asked_to_stop = True

    def wait(self, seconds: float) -> bool:
        """Let time pass."""
        self._clock.sleep(seconds)
        return False


class SimulatedMachine:
    """Host and guests as the agent's parts see and change them; ``proc``: an empty folder for /proc."""

    def __init__(
        self, simulation: Simulation, clock: VirtualClock, proc: Path, trouble: Trouble | None = None
    ) -> None:
        self.simulation, self.clock, self.proc = simulation, clock, proc
        self.trouble = trouble or NoTrouble()
        self.nids = simulation.host.system.nids
        self.guests = {
            guest.spec.name: SimulatedGuest(guest, FIRST_PID + 1000 * (number + 1))
            for number, guest in enumerate(simulation.guests)
        }
        self.by_pid = {guest.pid: guest for guest in self.guests.values()}
        self._cpus = _cpus(simulation)
        self._known = _calibrated(simulation.host, self._cpus)
        self.threads = SimulatedThreads(simulation, self.guests.values(), self._cpus)
        boot = proc / "sys/kernel/random"
        boot.mkdir(parents=True)
        (boot / "boot_id").write_text(BOOT_ID)
        for guest in self.guests.values():
            state = f"{guest.pid} (qemu) S {'0 ' * 18}{guest.pid} 0"
            for folder in ("", *(f"task/{tid}" for tid in guest.tids)):
                (proc / str(guest.pid) / folder).mkdir(parents=True, exist_ok=True)
                (proc / str(guest.pid) / folder / "stat").write_text(state)

    def alive(self, pid: int) -> SimulatedGuest | None:
        """Return the guest with that pid if it still runs, and take its process away if not."""
        guest = self.by_pid.get(pid)
        if guest is not None and guest.run in self.simulation.active:
            return guest
        (self.proc / str(pid) / "stat").unlink(missing_ok=True)
        return None

    def host(self) -> HostTopology:
        """Return the host as a calibrated agent knows it, with the memory that is free now."""
        self.trouble.before("host", None)
        free = self.simulation.free_pages()
        nodes = tuple(
            replace(node, free_bytes=int(max(free[i], 0)) * PAGE_BYTES)
            for i, node in enumerate(self._known.nodes)
        )
        return replace(self._known, nodes=nodes)

    def free_bytes(self, nid: int) -> int:
        """Return the free memory of a node."""
        self.trouble.before("host", None)
        return int(max(self.simulation.free_pages()[self.nids.index(nid)], 0)) * PAGE_BYTES

    def topologies(self) -> tuple[GuestTopology, ...]:
        """Return the guests that run."""
        self.trouble.before("guests", None)
        running = [self.alive(pid) for pid in self.by_pid]
        return tuple(guest.topology(self.threads.cpus) for guest in running if guest is not None)

    # The kernel, as actuation/batch.py asks it.

    def page_nids(self, pid: int, hvas: Gfns, status: Numbers) -> None:
        """Fill ``status`` with each page's node, as move_pages(2) tells it."""
        guest = self._guest(pid, "page_nids")
        status[:] = guest.page_nids(hvas, self.nids)
        self.clock.work(PAGE_NIDS_NS * len(hvas))

    def move_pages(self, pid: int, hvas: Gfns, nids: Numbers, status: Numbers) -> int:
        """Move pages to their one node; OSError ENOMEM once it is full.  Returns the ns of work."""
        guest = self._guest(pid, "move_pages")
        target, asked = self.nids.index(int(nids[0])), guest.slots_of(hvas)
        # A huge page is moved by the first of its frames; the others find it there.
        slots = asked[first_of_each(asked)]
        pages, there = guest.page_of()[slots], guest.nodes()[slots]
        room = max(int(self.simulation.free_pages()[target]), 0) // guest.run.unit_pages
        away = (pages >= 0) & ((there != target) | (guest.run.node[pages] == REPLICATED))
        fits = ~away | (np.cumsum(away) <= room)
        chosen = pages[away & fits]
        self._move(guest, chosen, target)
        done = np.isin(asked, slots[fits])
        status[done] = np.where(guest.page_of()[asked] >= 0, int(nids[0]), -errno.ENOENT)[done]
        took = MOVE_CALL_NS + _page_ns(guest) * len(chosen)
        self.clock.work(took)
        if not fits.all():
            raise OSError(errno.ENOMEM, "no memory on the node")
        return round(took)

    def _move(self, guest: SimulatedGuest, pages: Indexes, target: int) -> None:
        guest.run.put(pages, target)
        guest.run.counts.moved += len(pages) * guest.run.unit_pages
        self._pay(guest, len(pages))

    def _pay(self, guest: SimulatedGuest, written: int) -> None:
        """Hold the guest up for pages that were copied.

        Pages cost what they cost in a trace's time, a full batch with its flush.  That a call carries
        fewer is a cost of the agent's second, like watching.
        """
        costs, parallelism = self.simulation.costs, max(guest.run.parallelism, 1.0)
        size = guest.run.unit_pages
        flushes = written * size / HUGE_PAGES + 1 / self.clock.scale
        pause = written * costs.unit_ns(size) / parallelism + flushes * costs.flush_ns
        self.simulation.pause[guest.name] += pause

    # KVM's placement fd, as actuation/replica_calls.py asks it; the fd is the pid.

    def opened(self, guest: GuestTopology, proc: Path) -> Placement:
        """Return what stands for the guest's placement fd."""
        self._guest(guest.pid, "open")
        return SimulatedPlacement(self, guest.pid)

    def replicate(  # noqa: PLR0913 - the ioctl's arguments
        self, fd: int, nodes: int, gfns: Gfns, npages: Numbers, done: Numbers, status: Numbers
    ) -> None:
        """Make copies of ranges of frames, or drop them where ``nodes`` is 0."""
        guest = self._guest(fd, "replicate")
        guest.note_lost(self.clock.monotonic())
        changed = 0
        for number, (first, count) in enumerate(zip(gfns.tolist(), npages.tolist(), strict=True)):
            size = guest.run.unit_pages
            slots = np.arange(first // size, -(-min(first + count, guest.frames) // size))
            if nodes:
                have, status[number] = self._copy(guest, slots)
                done[number] = min(have * size, count)
                changed += have
            else:
                changed += self._drop(guest, slots)
                done[number] = count
        self.clock.work(MOVE_CALL_NS + _page_ns(guest) * changed)
        # A page that the present window writes to does not keep its copies, whenever the write comes.
        self.simulation.collapse(guest.run)
        guest.note_lost(self.clock.monotonic())

    def _copy(self, guest: SimulatedGuest, slots: Indexes) -> tuple[int, int]:
        """Copy pages that have none; return how many have some now, and why others have not."""
        pages = guest.page_of()[slots]
        there = pages >= 0
        has = there & (guest.run.node[pages] == REPLICATED)
        ready = there & ~has & (guest.wait_until_s[slots] <= self.clock.monotonic())
        copy_nodes = guest.run.copy_nodes(self.simulation.host.system)
        room = max(int(self.simulation.free_pages()[copy_nodes].min()), 0) // guest.run.unit_pages
        fits = ready & (np.cumsum(ready) <= room)
        chosen = pages[fits]
        guest.home[slots[fits]] = guest.run.node[chosen]
        guest.run.put(chosen, REPLICATED)
        guest.held[slots[fits]] = True
        guest.replicated += len(chosen)
        copies = len(chosen) * max(int(copy_nodes.sum()) - 1, 1)
        guest.run.counts.replicated += copies * guest.run.unit_pages
        self._pay(guest, copies)
        why = NOT_PRESENT if not there.all() else BACKING_OFF if (there & ~has & ~ready).any() else NO_MEMORY
        count = int(np.count_nonzero(has | fits))
        return count, 0 if count == len(slots) else why

    def _drop(self, guest: SimulatedGuest, slots: Indexes) -> int:
        pages = guest.page_of()[slots]
        has = (pages >= 0) & (guest.run.node[pages] == REPLICATED)
        guest.run.put(pages[has], guest.home[slots[has]])
        guest.held[slots] = False
        if has.any():
            self._pay(guest, 0)
        return int(np.count_nonzero(has))

    def statistics(self, pid: int) -> dict[str, int]:
        """Return what KVM counts of the guest's copies."""
        guest = self._guest(pid, "statistics")
        guest.note_lost(self.clock.monotonic())
        copies, size = int(guest.run.copy_nodes(self.simulation.host.system).sum()) - 1, guest.run.unit_pages
        return {
            "replicated_pages": guest.replicated * size,
            "collapsed_pages": guest.collapsed * size,
            "released_pages": 0,
            "replica_copies": int(guest.held.sum()) * size * max(copies, 1),
        }

    def info(self, pid: int) -> PlacementInfo:
        """Return the guest's memory slot, and node roots on all nodes."""
        guest = self._guest(pid, "info")
        every = sum(1 << nid for nid in self.nids)
        return PlacementInfo(0, every, every, (Slot(0, guest.frames, HVA, 0),))

    def _guest(self, pid: int, step: str) -> SimulatedGuest:
        guest = self.alive(pid)
        self.trouble.before(step, guest)
        guest = self.alive(pid)
        if guest is None:
            raise OSError(errno.ESRCH if step in ("page_nids", "move_pages") else errno.EIO, "it ended")
        return guest


class SimulatedPlacement(Placement):
    """A placement fd of a guest of the machine."""

    def __init__(self, machine: SimulatedMachine, pid: int) -> None:
        super().__init__(pid)
        self._machine = machine

    def call(self, step: Callable[[int], T]) -> T:
        """Return what the step returns: nobody holds it up."""
        return step(self.fd)

    def info(self) -> PlacementInfo:
        """Return what the VM is now."""
        return self._machine.info(self.fd)

    def statistics(self) -> dict[str, int]:
        """Return what KVM counted."""
        return self._machine.statistics(self.fd)

    def close(self) -> None:
        """Let go; there is no descriptor."""


def _page_ns(guest: SimulatedGuest) -> float:
    """Return what a page of the guest's size works."""
    return MOVE_PAGE_NS * float(moved_as(guest.run.unit_pages))


def _cpus(simulation: Simulation) -> dict[int, tuple[int, ...]]:
    """Return the CPUs of each node, numbered in order."""
    ends = np.cumsum(simulation.host.cpus).astype(int).tolist()
    starts = [0, *ends[:-1]]
    nids = simulation.host.system.nids
    return {nid: tuple(range(a, b)) for nid, a, b in zip(nids, starts, ends, strict=True)}


def _calibrated(host: SimulatedHost, cpus: dict[int, tuple[int, ...]]) -> HostTopology:
    """Return the host as an agent knows it for which somebody ran ``vmplace calibrate``."""
    system, nids = host.system, host.system.nids
    local = system.latency.diagonal().min()
    memory = (host.capacity_pages * PAGE_BYTES).astype(int).tolist()
    nodes = tuple(Node(nid, cpus[nid], size, size) for nid, size in zip(nids, memory, strict=True))
    distances = {
        (a, b): round(float(system.latency[i, j] / local * 10))
        for i, a in enumerate(nids)
        for j, b in enumerate(nids)
    }
    return as_calibrated(HostTopology(nodes, distances), host)


MachineCalls = Callable[[], SimulatedMachine]
