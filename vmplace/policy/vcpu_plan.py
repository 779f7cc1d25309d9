"""On which nodes should the vCPUs of all guests run, if their memory may follow them?

1. Guests whose vCPUs are spread are gathered, the largest first, each on the node with most of its accesses
   that has CPUs for all of its vCPUs, and room for its memory.  Who fits on no node is distributed over the
   CPUs that are left.  Protected guests stay.
2. The model tells how long accesses take with the memory where it would be best, in this layout and in the
   present one; a guest that bandwidth of one node does not serve stays spread if that is better.
3. All that was touched may have to move: that must pay within as long as the layout was watched already, so
   no more is ever staked than was already seen to be lost.
4. Counters have the last word: guests that do the same work as before must do it faster, or all go back, and
   the next try waits twice as long.

Source: numad(8) gathers by free CPUs and memory, whatever it does to bandwidth; kMAF (PACT'14), section 3.4,
maps vCPUs before pages.
Limits: guests are gathered on one node, never on two; vCPUs of one node are taken to be alike.
"""

from dataclasses import dataclass, replace

import numpy as np

from vmplace.model.cpu_shares import cpu_shares
from vmplace.model.memory_system import solved
from vmplace.model.metrics import Matrix
from vmplace.policy.descent import descended
from vmplace.policy.host_view import Bools, GuestEvidence, HostView, Indexes, demand, row_sums
from vmplace.policy.page_task import PageTask
from vmplace.policy.vcpu_moves import vcpu_shift

SETTLE_NS = 100e6
"""How long a layout is watched before it is judged, and before another one is thought of."""
WORTH = 0.02
"""A layout that saves less than this share of the time is none: the model errs by more."""
LAYOUTS = 4
"""So many are tried for the agent, each without one more guest."""
LOSS = 0.005
"""Of its time, what a guest may lose by the model for what others gain."""
SAME_WORK = 0.01
FEW = 8
"""Up to so many guests that would be gathered, layouts without one of them are tried, too."""
SAMPLED_PAGES = 1 << 14
PROTECTED_LAYOUT = 10.0
"""How many times the time of a protected guest counts here: its vCPUs stay, so this is its memory's time."""

Layout = list[Indexes]
"""The node index of each vCPU, by guest."""


def gathered(view: HostView, stay: frozenset[str] = frozenset()) -> tuple[Layout, frozenset[str]]:
    """Return the layout with every guest gathered that may be and fits, and who that is.

    Guests named in ``stay`` are not.
    """
    layout = [_nodes(guest) for guest in view.guests]
    loose = [index for index, guest in enumerate(view.guests) if _may_move(guest) and guest.name not in stay]
    free = _places(view) - sum(
        (np.bincount(one, minlength=len(view.system.nids)) for i, one in enumerate(layout) if i not in loose),
        np.zeros(len(view.system.nids)),
    )
    room = None if view.room is None else view.room.free.copy()
    spread = []
    for index in sorted(loose, key=lambda i: -len(layout[i])):
        guest = view.guests[index]
        missing = _missing(guest, len(free))
        fits = (free >= len(layout[index])) & guest.holds(view.system) & _may_tie(guest)
        fits = fits if room is None else fits & (missing <= room)
        if fits.any():
            node = int(np.where(fits, guest.heat.sum(axis=0), -1.0).argmax())
            layout[index] = np.full(len(layout[index]), node)
            free[node] -= len(layout[index])
            if room is not None:
                room[node] -= missing[node]
        else:
            spread.append(index)
    for index in spread if view.cores is None else ():
        layout[index], free = _distributed(layout[index], free)
    there = frozenset(view.guests[index].name for index in loose if index not in spread)
    return layout, there


def _may_tie(guest: GuestEvidence) -> Bools:
    return np.zeros(guest.heat.shape[1], np.bool_) if guest.may_tie is None else guest.may_tie


def _missing(guest: GuestEvidence, nodes: int) -> Matrix:
    """Return the 4 KiB pages [N] that were touched, and are not on each node."""
    touched = np.flatnonzero(row_sums(guest.heat) > 0)
    sizes, place = guest.sizes_of(touched), guest.node[touched].astype(np.intp)
    missing: Matrix = sizes.sum() - np.bincount(place[place >= 0], sizes[place >= 0], nodes)
    return missing


def _distributed(vcpus: Indexes, free: Matrix) -> tuple[Indexes, Matrix]:
    """Return the vCPUs on the CPUs that are left, few of them elsewhere, and what is left then."""
    kept, free = vcpus.copy(), free.copy()
    for vcpu, node in enumerate(vcpus):
        target = node if free[node] > 0 else int(free.argmax())
        kept[vcpu] = target
        free[target] -= 1
    return np.sort(kept), free


def _may_move(guest: GuestEvidence) -> bool:
    nodes, is_free = _nodes(guest), guest.may_tie is not None and guest.slowdown_bound is None
    return is_free and len(nodes) > 0 and bool((nodes != nodes[0]).any())


def _nodes(guest: GuestEvidence) -> Indexes:
    return np.zeros(0, np.intp) if guest.vcpu_node is None else guest.vcpu_node


def _places(view: HostView) -> Matrix:
    """Return how many vCPUs each node takes."""
    known = view.cpus if view.cores is None else view.cores
    return np.zeros(len(view.system.nids)) if known is None else known.astype(np.float64)


def _shares(view: HostView, layout: Layout) -> Matrix:
    """Return each guest's share of a CPU in a layout, as a multiple of what it has now."""
    if view.cpus is None:
        return np.ones(len(layout))
    cpus = view.cpus.astype(np.float64)
    shares: Matrix = cpu_shares(layout, cpus) / cpu_shares([_nodes(guest) for guest in view.guests], cpus)
    return shares


def times(view: HostView, layout: Layout) -> Matrix:
    """Return each guest's time per access in this layout, with all memory where it is best for it."""
    shares = _shares(view, layout)
    every = -(-sum(len(guest.node) for guest in view.guests) // SAMPLED_PAGES)
    tasks = [
        _free_task(view, guest, after, float(share), every)
        for guest, after, share in zip(view.guests, layout, shares, strict=True)
    ]
    mixture = descended(view.system, tasks)
    load = solved(view.system, demand(tuple(task.guest for task in tasks), [*mixture.traffics]))
    answer: Matrix = 1 / load.rates
    return answer


def _free_task(view: HostView, guest: GuestEvidence, after: Indexes, share: float, every: int) -> PageTask:
    """Return the guest's pages as a task without prices, its vCPUs where ``after`` says."""
    nodes, some = len(view.system.nids), slice(every // 2, None, every)
    shifted = (
        guest.heat[some] if not len(after) else guest.heat[some] @ vcpu_shift(_nodes(guest), after, nodes)
    )
    there = replace(
        guest,
        heat=shifted,
        written=guest.written[some],
        node=np.ascontiguousarray(guest.node[some]),
        windows=guest.windows[some],
        worker=np.bincount(after, minlength=nodes) > 0 if len(after) else guest.worker,
        parallelism=guest.parallelism * share,
    )
    near = bool((view.system.controller[there.worker] > 0).all())
    importance = PROTECTED_LAYOUT if guest.slowdown_bound is not None else 1.0
    nothing = np.zeros(len(there.node))
    return PageTask(there, ~there.written & np.bool_(near), nothing, nothing, importance)


def better_layout(view: HostView, watched_ns: float) -> Layout | None:
    """Return a layout that saves more within ``watched_ns`` than it may cost, or None."""
    present = [_nodes(guest) for guest in view.guests]
    importances = np.array([PROTECTED_LAYOUT if g.slowdown_bound is not None else 1.0 for g in view.guests])
    first, _ = gathered(view)
    moved = [g.name for g, a, b in zip(view.guests, present, first, strict=True) if (a != b).any()]
    if not moved:
        return None
    now = times(view, present)
    others = [gathered(view, frozenset((name,)))[0] for name in moved] if 1 < len(moved) <= FEW else []
    best, most = None, 0.0
    for layout in [first, *others]:
        saved = 1 - float(np.average(times(view, layout) / now, weights=importances))
        kept = watched_ns * saved - _stake_ns(view, layout)
        if saved > WORTH and kept > most:
            best, most = layout, kept
    return best


def worth_gathering(view: HostView, lived_ns: Matrix) -> dict[str, tuple[int, float]]:
    """Return who is worth gathering, on which node, and which share of its time that saves.

    ``lived_ns[G]``: for how long each guest was watched; what all of them save in as long, and each that is
    gathered, must be more than what it costs that memory follows, and nobody may lose ``LOSS``.
    """
    if not any(map(_may_move, view.guests)) or not gathered(view)[1]:
        return {}
    now = times(view, [_nodes(guest) for guest in view.guests])
    best, most, stay = dict[str, tuple[int, float]](), 0.0, frozenset[str]()
    least = np.array([-LOSS if guest.slowdown_bound is None else 0.0 for guest in view.guests])
    for _ in range(LAYOUTS):
        layout, who = gathered(view, stay)
        if not who:
            break
        saved = 1 - times(view, layout) / now
        chosen = {
            guest.name: (int(nodes[0]), float(share))
            for guest, nodes, share in zip(view.guests, layout, saved, strict=True)
            if guest.name in who
        }
        own_ns = {
            guest.name: float(lived * share) - following_ns(view, guest)
            for guest, lived, share in zip(view.guests, lived_ns, saved, strict=True)
            if guest.name in who
        }
        kept = float(np.mean(lived_ns * saved)) - _stake_ns(view, layout)
        is_worth_it = kept > most and np.mean([share for _, share in chosen.values()]) > WORTH
        if is_worth_it and bool((saved >= least).all()) and min(own_ns.values()) > 0:
            best, most = chosen, kept
        # Without who gains least, or loses most, the others may do better.
        stay |= {min(own_ns, key=lambda name: own_ns[name])}
    return best


def _stake_ns(view: HostView, layout: Layout) -> float:
    """Return how long the guests are held up, on average, if all that was touched has to follow."""
    pauses = [
        following_ns(view, guest) if (_nodes(guest) != after).any() else 0.0
        for guest, after in zip(view.guests, layout, strict=True)
    ]
    return float(np.mean(pauses))


def following_ns(view: HostView, guest: GuestEvidence) -> float:
    """Return how long a guest is held up if all that was touched follows its vCPUs."""
    touched = np.flatnonzero(row_sums(guest.heat))
    return float(view.worth(guest, touched).sum()) * view.pause_ns(guest)


@dataclass(frozen=True)
class LayoutTrial:
    """By guest: vCPUs before, accesses per ns, and work between two accesses."""

    before: dict[str, Indexes]
    rates: dict[str, float]
    think_ns: dict[str, float]

    @classmethod
    def of(cls, view: HostView) -> "LayoutTrial":
        """Return what is to be remembered of the present layout."""
        reported = [(g, g.counters) for g in view.guests if g.counters is not None]
        return cls(
            {guest.name: _nodes(guest) for guest in view.guests},
            {guest.name: float(counters.accesses.sum()) for guest, counters in reported},
            {guest.name: guest.think_ns for guest, _ in reported},
        )

    def gain(self, now: "LayoutTrial") -> float | None:
        """Return by which share accesses of guests with the same work come faster; None: no such guest."""
        same = [
            name
            for name, think in self.think_ns.items()
            if abs(now.think_ns.get(name, np.inf) - think) <= SAME_WORK * think
        ]
        return float(np.mean([now.rates[n] / self.rates[n] - 1 for n in same])) if same else None


@dataclass
class VcpuPlanner:
    """Gathers vCPUs, and takes back what did harm."""

    since_ns: float | None = None
    next_ns: float = 0.0
    wait_ns: float = SETTLE_NS
    trial: LayoutTrial | None = None

    def plan(self, view: HostView) -> Layout | None:
        """Return where vCPUs ought to run, or None if all stay."""
        if self.since_ns is None:
            self.since_ns, self.next_ns = view.now_ns, view.now_ns + SETTLE_NS
        if view.cpus is None or view.now_ns < self.next_ns:
            return None
        self.next_ns = view.now_ns + SETTLE_NS
        now, trial, self.trial = LayoutTrial.of(view), self.trial, None
        gain = None if trial is None else trial.gain(now)
        if trial is not None and gain is not None and gain < 0:
            self.wait_ns *= 2
            return self._go(view, [trial.before.get(g.name, _nodes(g)) for g in view.guests], self.wait_ns)
        layout = better_layout(view, view.now_ns - self.since_ns)
        if layout is None:
            return None
        self.trial = now
        return self._go(view, layout, SETTLE_NS)

    def _go(self, view: HostView, layout: Layout, wait_ns: float) -> Layout:
        self.since_ns, self.next_ns = view.now_ns, view.now_ns + wait_ns
        return layout
