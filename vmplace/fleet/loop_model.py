"""What do guests press hosts by, if the agent's own loop runs anew for each set of guests that a host has?

1. The *state* of a host is which programs run on how many vCPUs on each of its nodes.  The nodes of these
   hosts are alike, so two states that differ in the order of nodes are one.
2. The loop runs once for each state, in virtual time (loop_host.py), for several beside each other.
3. Runs are kept in a file (kept_runs.py): a model that was stopped goes on where it was.  The file belongs
   to one folder of traces, one file of the host and one release.

Limits: guests begin on their nodes with fresh memory each time; what the agent did before a guest came or
went is lost.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Executor, as_completed
from dataclasses import dataclass
from pathlib import Path

from vmplace.errors import ConfigError, VmplaceError
from vmplace.fleet.arrivals import Arrival
from vmplace.fleet.fleet_host import Host
from vmplace.fleet.kept_runs import KeptRuns, State, StateRun
from vmplace.fleet.loop_host import LoopGuest, loop_run
from vmplace.fleet.loop_table import shipped_table
from vmplace.simulate.host_file import read_host
from vmplace.simulate.trace import Trace, read_trace

HOSTS = Path(__file__).parents[1] / "simulate/hosts"


@dataclass(frozen=True)
class Seats:
    """A host's state, and whose its places are: ``nodes`` of the host, and uuids, in the state's order."""

    state: State
    nodes: tuple[int, ...]
    uuids: tuple[tuple[str, ...], ...]


def seats(host: Host) -> Seats:
    """Return the state of a host."""
    there = [
        sorted(
            (one.program, one.vcpus, uuid) for uuid, one in host.guests.items() if host.node_of[uuid] == node
        )
        for node in range(host.nodes)
    ]
    order = sorted(
        range(host.nodes), key=lambda node: [(program, vcpus) for program, vcpus, _ in there[node]]
    )
    return Seats(
        tuple(tuple((program, vcpus) for program, vcpus, _ in there[node]) for node in order),
        tuple(order),
        tuple(tuple(uuid for _, _, uuid in there[node]) for node in order),
    )


def inputs_digest(folder: Path) -> str:
    """Return a digest of what runs are made from: the host's file, and traces of the table's programs."""
    table = shipped_table()
    found = hashlib.sha256((HOSTS / f"{table.host}.toml").read_bytes())
    for program in table.programs:
        if (path := folder / f"{program}.npz").is_file():
            found.update(program.encode() + _file_digest(path))
    return found.hexdigest()


def _file_digest(path: Path) -> bytes:
    try:
        with path.open("rb") as trace:
            return hashlib.file_digest(trace, "sha256").digest()
    except OSError as err:
        hint = "name a folder with --loop whose traces you may read"
        raise ConfigError(f"cannot be read ({err.strerror})", place=str(path), hint=hint) from err


@functools.cache
def _trace(folder: Path, program: str) -> Trace:
    return read_trace(folder / f"{program}.npz")


def run_state(folder: Path, span_ns: float, state: State) -> StateRun:
    """Run the loop for a state; ``folder`` has the traces of the programs."""
    if not any(state):
        return StateRun(state, (0.0,) * len(state), ((),) * len(state))
    host = read_host(HOSTS / f"{shipped_table().host}.toml")
    mine = [
        (node, LoopGuest(_trace(folder, name), vcpus))
        for node, there in enumerate(state)
        for name, vcpus in there
    ]
    found = loop_run(host, [guest for _, guest in mine], [(node,) for node, _ in mine], span_ns)
    taken = iter(found.guests)
    return StateRun(state, found.nodes, tuple(tuple(next(taken) for _ in there) for there in state))


@dataclass
class LoopModel:
    """Answers as the loop does, which runs in the processes of ``pool``.

    ``traces``: a folder with PROGRAM.npz.  ``tell`` is called after each run: how many are done, and how many
    are known to be needed.  Runs that were kept before do not count.
    """

    traces: Path
    kept: KeptRuns
    pool: Executor
    tell: Callable[[int, int], None] = lambda done, needed: None
    _done: int = 0

    def loads(self, hosts: Iterable[Host]) -> dict[str, dict[int, float]]:
        """Return each host's pressure by node; runs what was not run before, beside each other."""
        found = {host.name: seats(host) for host in hosts}
        self._run(dict.fromkeys(one.state for one in found.values()))
        return {
            name: dict(sorted(zip(one.nodes, self.kept.runs[one.state].nodes, strict=True)))
            for name, one in found.items()
        }

    def takes(self, host: Host) -> dict[str, float]:
        """Return what each guest takes of its own node, beside the others."""
        mine = seats(host)
        self._run([mine.state])
        shares = self.kept.runs[mine.state].guests
        pairs = (zip(*one, strict=True) for one in zip(mine.uuids, shares, strict=True))
        return {uuid: share for there in pairs for uuid, share in there}

    def alone(self, guest: Arrival) -> float:
        """Return what a guest would press a node by if it had it alone."""
        state = ((), ((guest.program, guest.vcpus),))
        self._run([state])
        return max(self.kept.runs[state].nodes)

    def _run(self, states: Iterable[State]) -> None:
        wanted = [state for state in states if state not in self.kept.runs]
        out = [self.pool.submit(run_state, self.traces, self.kept.span_ns, state) for state in wanted]
        needed = self._done + len(out)
        try:
            for done in as_completed(out):
                self.kept.keep(done.result())
                self._done += 1
                self.tell(self._done, needed)
        except BrokenExecutor as err:
            hint = "see the kernel's log; the same command goes on where it was"
            raise VmplaceError("a process that ran the loop died", hint=hint) from err
