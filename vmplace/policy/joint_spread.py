"""On which nodes ought the guests' shared pages lie, if all guests' accesses are looked at together?

1. Of each guest it is known what it asks of the memory that has its place already (``fixed``), and how
   much each node uses groups of its shared pages, and where these lie now (``SharedPart``).
2. Guests ask in the proportions that were seen: of DRAM accesses, if these are counted for all of them, else
   of pages touched.  The plan is for the hour in which it matters: all rates are scaled up alike, until the
   busiest guest's vCPUs would do nothing but wait for memory.
3. The descent (``descent.py``) finds where the shared pages cost all guests together the least time, at the
   latencies and queues of the host's memory; a move must pay for itself within ``PAYBACK_NS`` of that hour.
4. What a node has no room for goes to the other nodes of its group, in proportion.

Source: BWAP (IPDPS'20), section III, is the case of one guest; kMAF and Carrefour look at pages one by one.
Limits: a group's pages count alike, wherever they lie.  Bits do not tell how often a page is accessed: where
nothing else is known, guests that touch all their pages in each window seem to be equally busy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from vmplace.model.described_memory import MLP
from vmplace.model.memory_system import MemorySystem
from vmplace.model.metrics import Matrix
from vmplace.policy.descent import STEPS, PageTask, descended
from vmplace.policy.host_view import Bools, GuestEvidence

MOVE_NS = 2000.0
"""What moving a 4 KiB page takes of one vCPU: assumed, here and in the simulator (docs/simulate.md)."""
PAYBACK_NS = 60e9
"""Who shares pages changes in minutes; trials (``trial.py``) catch what changes sooner."""

LEFT = 0.002
"""What a plan may leave of what could be gained: around the best, time hardly rises where loads differ."""

TASK_STEPS, LEAST_STEPS = 1000, 8
"""Steps of the descent times guests that have something to place: a decision takes no longer than 100 ms.
The next one goes on from where this one ended."""


@dataclass(frozen=True)
class SharedPart:
    """A group of shared pages of one guest.

    ``touches[N]``: a window, by node; ``pages[N]``: where they are now; ``near[N]``: where they may be.
    """

    touches: Matrix
    pages: Matrix
    near: Bools


@dataclass(frozen=True)
class GuestLoad:
    """What one guest asks of the host's N nodes.

    ``fixed[N, N]``: touches a window by node to memory that has its place, by node.  ``rate``: accesses in a
    unit of time, in a unit that all guests have in common.  ``vcpus``: how many run at once.
    ``importance``: how many times the guest's time counts.
    """

    name: str
    fixed: Matrix
    parts: tuple[SharedPart, ...]
    rate: float
    vcpus: int
    importance: float = 1.0

    @cached_property
    def present(self) -> Matrix:
        """Return the touches [N, N] with all shared pages where they are now."""
        spread = [np.outer(one.touches, one.pages / max(one.pages.sum(), 1.0)) for one in self.parts]
        total: Matrix = np.sum([self.fixed, *spread], axis=0)
        return total


@dataclass(frozen=True)
class JointSpread:
    """The plan: for each guest, by name, the shares [N] of each of its parts; None: nobody uses the part.

    ``asked``: by guest, the accesses a ns [N] that each node's memory serves for it in the hour planned for.
    """

    shares: Mapping[str, tuple[Matrix | None, ...]]
    asked: Mapping[str, Matrix]

    def loader(self, node: int, but: str) -> str | None:
        """Return which guest loads the node most, other than ``but``."""
        others = {name: float(rates[node]) for name, rates in self.asked.items() if name != but}
        most = max(others, key=lambda name: others[name], default=None)
        return most if most is not None and others[most] > 0 else None


def joint_spread(system: MemorySystem, loads: Sequence[GuestLoad], room: Matrix) -> JointSpread:
    """Return where the shared pages ought to be; ``room[N]``: 4 KiB pages that each node can still take."""
    busy = [load for load in loads if load.rate > 0 and load.present.any()]
    scale = min((_full_load(system, load) for load in busy), default=0.0)
    pieces = [piece for load in _combined(busy) for piece in _pieces_of(system, load, scale)]
    shares: dict[str, list[Matrix | None]] = {load.name: [None] * len(load.parts) for load in loads}
    if any(len(piece.part_of) for piece in pieces):
        steps = int(np.clip(TASK_STEPS // len(pieces), LEAST_STEPS, STEPS))
        mixture = descended(system, [piece.task for piece in pieces], steps, LEFT)
        for number, piece in enumerate(pieces):
            wanted = mixture.shares(system, piece.task, number)
            for part in set(piece.part_of.tolist()):
                shares[piece.load.name][part] = piece.shares_of(part, wanted)
    fitted = _within(loads, shares, room)
    return JointSpread(fitted, {load.name: _asked(load, fitted[load.name], scale) for load in loads})


@dataclass(frozen=True)
class _Piece:
    """The shared parts of one guest that may be on the same nodes, as a task of the descent.

    ``part_of[R]``: of which part each row is a piece: there is one for each node that holds some of it.
    """

    load: GuestLoad
    task: PageTask
    part_of: npt.NDArray[np.intp]

    def shares_of(self, part: int, wanted: Matrix) -> Matrix | None:
        """Return the part's shares by node; None where the plan puts it nowhere that it may be."""
        one = self.load.parts[part]
        rows = self.part_of == part
        shares = one.pages[self.task.guest.node[rows]] @ wanted[rows] * one.near
        total = float(shares.sum())
        return shares / total if total else None


def _combined(loads: list[GuestLoad]) -> list[GuestLoad]:
    """Return the loads, as one those that have nothing to place and access one node from one: most do."""
    alike: dict[object, list[GuestLoad]] = {}
    for load in loads:
        pairs = tuple(np.flatnonzero(load.fixed).tolist())
        is_single = not load.parts and len(pairs) == 1
        alike.setdefault((pairs, load.importance) if is_single else load.name, []).append(load)
    return [some[0] if len(some) == 1 else _as_one(some) for some in alike.values()]


def _as_one(loads: list[GuestLoad]) -> GuestLoad:
    fixed = loads[0].fixed / loads[0].fixed.sum()
    rate, vcpus = sum(load.rate for load in loads), sum(load.vcpus for load in loads)
    return GuestLoad("", fixed, (), rate, vcpus, loads[0].importance)


def _asked(load: GuestLoad, shares: Sequence[Matrix | None], scale: float) -> Matrix:
    """Return the accesses a ns to each node once the shared parts are where they ought to be."""
    lie = [
        part.pages / max(part.pages.sum(), 1.0) if s is None else s
        for part, s in zip(load.parts, shares, strict=True)
    ]
    spread = [part.touches.sum() * one for part, one in zip(load.parts, lie, strict=True)]
    touches: Matrix = np.sum([load.fixed.sum(axis=0), *spread], axis=0)
    return touches * (load.rate * scale / max(float(touches.sum()), 1e-300))


def _full_load(system: MemorySystem, load: GuestLoad) -> float:
    """Return the accesses a ns for each unit of rate at which the guest's vCPUs do nothing but wait."""
    return load.vcpus * MLP / (_latency(system, load) * load.rate)


def _latency(system: MemorySystem, load: GuestLoad) -> float:
    """Return what an access of the guest takes now, without queues."""
    present = load.present
    return float((present * system.latency).sum() / present.sum())


def _pieces_of(system: MemorySystem, load: GuestLoad, scale: float) -> Iterator[_Piece]:
    """Yield a piece for each set of nodes that parts may be on; what is fixed goes with the first."""
    known = [i for i, part in enumerate(load.parts) if part.touches.any() and part.pages.any()]
    sets = dict.fromkeys(tuple(load.parts[i].near.tolist()) for i in known)
    fixed, each = load.fixed, load.rate * scale * PAYBACK_NS / float(load.present.sum())
    think_ns = load.vcpus / (load.rate * scale) - _latency(system, load) / MLP
    for near in sets or [(True,) * len(system.nids)]:
        rows = [
            (i, int(node))
            for i in known
            if tuple(load.parts[i].near.tolist()) == near
            for node in np.flatnonzero(load.parts[i].pages)
        ]
        yield _piece(load, rows, fixed * each, each, max(think_ns, 0.0), np.array(near))
        fixed = np.zeros_like(fixed)


def _piece(  # noqa: PLR0913  (what a loop of accesses is made of)
    load: GuestLoad, rows: list[tuple[int, int]], fixed: Matrix, each: float, think_ns: float, near: Bools
) -> _Piece:
    part_of, node = np.array(rows, np.intp).reshape(-1, 2).T
    held = np.array([load.parts[part].pages[nid] for part, nid in rows])
    lies = np.array([load.parts[part].pages[nid] / load.parts[part].pages.sum() for part, nid in rows])
    touches = np.array([one.touches for one in load.parts]).reshape(-1, len(near))
    heat = touches[part_of] * lies[:, None] * each
    share = float(heat.sum() + fixed.sum()) / (each * float(load.present.sum()))
    evidence = GuestEvidence(
        name=load.name,
        heat=heat,
        written=np.ones(len(rows), np.bool_),
        node=node.astype(np.int8),
        worker=heat.sum(axis=0) > 0,
        windows=np.ones(len(rows), np.int64),
        read_ratio=None,
        parallelism=load.vcpus * share,
        think_ns=think_ns,
        mlp=MLP,
    )
    price, unwritten = held * MOVE_NS * MLP, np.zeros(len(rows), np.bool_)
    task = PageTask(evidence, unwritten, price, importance=load.importance, allowed=near, fixed=fixed)
    return _Piece(load, task, part_of)


def _within(
    loads: Sequence[GuestLoad], shares: Mapping[str, Sequence[Matrix | None]], room: Matrix
) -> dict[str, tuple[Matrix | None, ...]]:
    """Return the shares with no more coming to a node than it has room for."""
    coming = np.zeros_like(room)
    for load in loads:
        for part, share in zip(load.parts, shares[load.name], strict=True):
            if share is not None:
                coming += np.maximum(share * part.pages.sum() - part.pages, 0.0)
    fits = np.divide(room, coming, out=np.ones_like(room), where=coming > room)
    return {
        load.name: tuple(
            share if share is None else _fitted(part, share, fits)
            for part, share in zip(load.parts, shares[load.name], strict=True)
        )
        for load in loads
    }


def _fitted(part: SharedPart, share: Matrix, fits: Matrix) -> Matrix:
    """Return the part's shares if of what comes to each node only the share ``fits`` may come."""
    wanted = share * part.pages.sum()
    lost = np.maximum(wanted - part.pages, 0.0) * (1 - fits)
    # To the others of its nodes; if none has room, it stays where it is.
    others = wanted * (fits == 1.0)
    to = others if others.any() else np.maximum(part.pages - wanted, 0.0)
    fitted: Matrix = (wanted - lost + lost.sum() * to / max(float(to.sum()), 1e-300)) / part.pages.sum()
    return fitted
