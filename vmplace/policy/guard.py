"""Is a plan worth its price, and did the last ones keep their promise?  Do no harm.

1. For each guest it is remembered where each page lay before anything was done.  At each look the model
   answers how long the time since the last one would have taken with all of them there: the gain so far
   (move_gains.py).
   A guest that would be faster back there, as long as the others stay away, loses nothing if all of them
   together would be slower: of guests that left a full controller each would like to be the one that returns.
   That is known only where the accesses of all are counted.
2. A guest's budget limits what may be spent on moves: a first credit, a small share of its time, and what was
   gained.  Copies are paid with the price of dropping them, a protected guest's credit is within its bound.
   What lies wrong once a pattern changes is lost on top until it is seen (bench/bench_hostile.py).
3. Every change is a trial, too: what would the guest lose if only its pages lay where they were?  Trials end
   after ``TRIAL_NS``; if those of late did not earn their cost, a move must promise a multiple of
   its cost (the hurdle), and a fraction if they earned it several times over.
4. If a guest lost time since it was best off, as when the program does something else now, and its budget is
   empty or the loss is long, every page goes back to where it was: a loss that was measured must end.  So the
   price of the way back is staked with each move.  Nothing is forgiven: a guest is behind doing nothing by no
   more than its credit, the slack of ``is_lost``, and what is lost within a look
   (tests/unit/policy/test_guard_bound.py).
5. Counters have the last word where they tell latency, as in the simulator: if it rises where the plan
   promised less, the source misleads; what was moved is moved back, and the guest is left alone for a while.
   The while doubles with each promise that is broken, and halves with each that is kept: one that fails after
   many is most likely a new phase.  A host's counters tell cycles per instruction, which other work changes,
   too: they judge ties of vCPUs (gather_trial.py), and guests that are placed by their vCPUs alone
   (agent/trials.py), but not the pages of a joint plan.

Example: a guest that lived for a second has a budget of 2 ms (the first credit) and 3 ms (0.3 % of its time).
Its trials of moves cost 4 ms and earned 4 ms.  With what trials are taken to have had before, 1.2 and 0.3 ms,
a move must promise sqrt(5.2 / 4.3) = 1.1 times its cost.  Copies were never tried: sqrt(1.2 / 0.3) = 2.

>>> memory = Memory(0.0, 0.0, np.zeros(4, np.int8), records_ns=((4e6, 4e6), (0.0, 0.0)))
>>> memory.budget_ns(1e9) / 1e6, round(memory.hurdle(copies=False), 2), memory.hurdle(copies=True)
(5.0, 1.1, 2.0)

Source: the demand of "never more than 1 % slower than doing nothing"; Carrefour (ASPLOS'13, section 4.4) has
gates instead, kMAF (PACT'14, section 3.3) halves a page's vector on a move.
Limits: a phase that ends within a trial is charged to the trial.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import (
    ABSENT,
    REPLICATED,
    Counters,
    GuestEvidence,
    HostView,
    Indexes,
    NodeIndexes,
)
from vmplace.policy.move_gains import (
    GuestTraffic,
    PastMove,
    slowdown_of_all,
    slowdowns,
    without_dropped_copies,
)

TRIAL_NS = 60e6
CREDIT_NS = 2e6
CREDIT_SHARE = 0.0025
"""The first credit grows by this share of the guest's time, so that a short life loses little, too."""
TIME_SHARE = 0.003
CREDIT_OF_BOUND = 0.5
"""Of what a protected guest may lose at most, the share that is its credit: the rest is for errors."""
HURDLE_RANGE = (0.25, 8.0)
PRIORS_NS = ((12e5, 3e5), (12e5, 3e5))
"""Cost and gain that trials are taken to have had before the first one: of moves, and of copies.

Trials below them do not sway the hurdle by much.  It begins at two: what a guest that is hardly known seems
to gain is partly chance, and its program may end before a move paid."""
FORGETTING = 0.7
"""Share of earlier trials' cost and gain that still counts when the next one ends."""
MEASURED_RISE = 0.005
"""Latency that rises by more than this share after a plan that promised less is no noise."""
SAME_WORK = 0.01
"""Work between two accesses that differs by less is the same phase of the program."""
LOSS_NS, LOSS_SHARE = 1e6, 0.003
"""What all that was moved may lose before it goes back: this share of the guest's time, and at first twice
that, up to ``LOSS_NS`` more: what is measured in a short time varies."""
MOST_LOST_NS = 0.4e9
"""And no more than this, 20 s of a guest's real time, however long it lived and whatever it gained before:
a share of a month would be hours."""
LEFT_ALONE_NS = 40e6
"""How long a guest is left alone if its first plan did harm."""
LEFT_ALONE_LEAST_NS = 2.5e6
RETURN_LOOKS = 30
"""So many looks in a row that find no page back end a return: there is no room, or others have the budget."""


@dataclass(frozen=True)
class Promise:
    """What a plan said of a guest's latency, to be held against the counters at the next look.

    ``by_node[N]``: share of the guest's accesses that came from each node.
    """

    pages: Indexes
    before: NodeIndexes
    latency_ns: float
    think_ns: float
    by_node: Matrix


@dataclass(frozen=True)
class Return:
    """All pages are on their way back: the fewest 4 KiB that a look found still away, and how many looks
    since then found no fewer."""

    away: float
    looks: int = 0


@dataclass(frozen=True)
class Memory:
    """What is remembered of one guest; ``moves``: how many plans moved pages of it."""

    born_ns: float
    looked_ns: float
    origin: NodeIndexes
    records_ns: tuple[tuple[float, float], tuple[float, float]] = ((0.0, 0.0), (0.0, 0.0))
    spent_ns: float = 0.0
    gained_ns: float = 0.0
    best_ns: float = 0.0
    trials: tuple[PastMove, ...] = ()
    promise: Promise | None = None
    left_alone_ns: float = LEFT_ALONE_NS
    alone_until_ns: float = 0.0
    moves: int = 0
    returning: Return | None = None

    def hurdle(self, *, copies: bool) -> float:
        """Return how many times its cost a move, or a copy, must promise."""
        (cost, gain), (prior_cost, prior_gain) = self.records_ns[copies], PRIORS_NS[copies]
        ratio = (cost + prior_cost) / (gain + prior_gain)
        return float(np.clip(np.sqrt(ratio), *HURDLE_RANGE))

    def budget_ns(self, now_ns: float, bound: float | None = None) -> float:
        """Return how much time the guest may yet spend on moves; ``bound``: how much slower it may get."""
        return max(self.left_ns(now_ns, bound), 0.0) if now_ns >= self.alone_until_ns else 0.0

    def left_ns(self, now_ns: float, bound: float | None = None) -> float:
        """Return what is left of the credit and of what was gained; below zero what was lost beyond them."""
        lived = now_ns - self.born_ns
        credit = min(CREDIT_NS, CREDIT_SHARE * lived) + TIME_SHARE * lived
        if bound is not None:
            credit = min(credit, CREDIT_OF_BOUND * bound * lived)
        return credit + self.gained_ns - self.spent_ns


def remembered(memories: Mapping[str, Memory], view: HostView) -> dict[str, Memory]:
    """Return the memories after the time since the last look: what was gained, and which trials are over."""
    answers = {g.name: _origins_kept(memories.get(g.name), g, view.now_ns) for g in view.guests}
    known = [guest for guest in view.guests if guest.name in memories]
    traffics = [GuestTraffic.of(guest) for guest in known]
    trials = [[without_dropped_copies(t, view, g) for t in answers[g.name].trials] for g in known]
    asked = [
        [now.without_moves(answers[g.name].origin), *[now.without(trial) for trial in some]]
        for g, now, some in zip(known, traffics, trials, strict=True)
    ]
    alone, together = slowdowns(view, traffics, asked), slowdown_of_all(view, traffics, asked)
    for guest, some, lost, of_all in zip(known, trials, alone, together, strict=True):
        memory = answers[guest.name]
        span = view.now_ns - memory.looked_ns
        gain = lost[0] if lost[0] >= 0 else max(lost[0], of_all)
        seen = tuple(
            replace(t, gained_ns=t.gained_ns + share * span) for t, share in zip(some, lost[1:], strict=True)
        )
        memory = replace(memory, looked_ns=view.now_ns)
        answers[guest.name] = _judged(memory, seen, span * gain)
    return answers


def _origins_kept(memory: Memory | None, guest: GuestEvidence, now_ns: float) -> Memory:
    """Return the memory with the origins of pages that came or went since the last look."""
    if memory is None:
        return Memory(now_ns - guest.known_ns, now_ns, guest.node.copy())
    origin = np.where((memory.origin == ABSENT) | (guest.node == ABSENT), guest.node, memory.origin)
    return replace(memory, origin=origin.astype(np.int8))


def _judged(memory: Memory, trials: tuple[PastMove, ...], gained_ns: float) -> Memory:
    """Return the memory with the trials that are over counted in."""
    records = list(memory.records_ns)
    for trial in trials:
        if memory.looked_ns - trial.born_ns >= TRIAL_NS:
            cost, gain = records[trial.copies]
            records[trial.copies] = (
                FORGETTING * cost + trial.cost_ns,
                FORGETTING * gain + max(trial.gained_ns, 0.0),
            )
    kept = tuple(trial for trial in trials if memory.looked_ns - trial.born_ns < TRIAL_NS)
    total_ns = memory.gained_ns + gained_ns
    return replace(
        memory,
        trials=kept,
        records_ns=(records[0], records[1]),
        gained_ns=total_ns,
        best_ns=max(memory.best_ns, total_ns),
    )


def goes_back(memory: Memory, now_ns: float, bound: float | None = None) -> bool:
    """Return whether all pages go back to where they were, or are on their way there."""
    return memory.returning is not None or is_lost(memory, now_ns, bound)


def is_lost(memory: Memory, now_ns: float, bound: float | None = None) -> bool:
    """Return whether all pages are to go back: the guest loses by where they are; nothing is left to try."""
    lost_ns = memory.best_ns - memory.gained_ns
    if lost_ns > MOST_LOST_NS:
        return True
    return lost_ns > slack_ns(now_ns - memory.born_ns) and memory.left_ns(now_ns, bound) <= 0


def slack_ns(lived_ns: float) -> float:
    """Return how much a guest that lived so long may lose until its pages go back."""
    return LOSS_SHARE * lived_ns + min(LOSS_NS, LOSS_SHARE * lived_ns)


def on_its_way(memory: Memory, now_ns: float, away: float) -> Memory:
    """Return the memory of a guest whose pages go back to where they were, of which ``away`` are not there.

    What was lost is lost.  One window's budget may be a small part of the way.
    """
    before = memory.returning
    if before is None:
        memory, before = left_alone(memory, now_ns), Return(np.inf)
    looks = before.looks + 1 if away >= before.away else 0
    is_over, now = not away or looks >= RETURN_LOOKS, Return(min(away, before.away), looks)
    return replace(memory, best_ns=memory.gained_ns, returning=None if is_over else now)


def measured_rise(memory: Memory, guest: GuestEvidence) -> float | None:
    """Return by which share the counters say that latency rose since the last plan, which promised less.

    None where there was no plan, and where the guest began to do something else: it does another amount of
    work per access, or its accesses come from other nodes.
    """
    promise = memory.promise
    if promise is None or guest.counters is None:
        return None
    if abs(guest.think_ns - promise.think_ns) > SAME_WORK * promise.think_ns:
        return None
    if np.abs(shares_by_node(guest.counters) - promise.by_node).sum() > SAME_WORK:
        return None
    return guest.counters.latency_ns / promise.latency_ns - 1


def shares_by_node(counters: Counters) -> Matrix:
    """Return the share of the accesses that came from each node: no move of pages changes it."""
    rates: Matrix = counters.accesses.sum(axis=1)
    return rates / max(float(rates.sum()), 1e-300)


def resettled(memory: Memory, guest: GuestEvidence, granted_ns: float = 0.0) -> Memory:
    """Return the memory after the guest's vCPUs moved: gains count from where its pages are now.

    ``granted_ns``: what was staked on it that memory follows, there to be spent on that.
    """
    # Of a page with copies, the node that it was on before them.
    origin = np.where(guest.node == REPLICATED, memory.origin, guest.node).astype(np.int8)
    spent_ns = memory.spent_ns - granted_ns
    return replace(memory, origin=origin, trials=(), promise=None, spent_ns=spent_ns)


def trusted(memory: Memory) -> Memory:
    """Return the memory after a kept promise: whoever is right time and again is soon forgiven an error."""
    return replace(memory, left_alone_ns=max(memory.left_alone_ns / 2, LEFT_ALONE_LEAST_NS))


def left_alone(memory: Memory, now_ns: float) -> Memory:
    """Return the memory after a broken promise: nothing is tried for a while, which doubles."""
    return replace(
        memory,
        promise=None,
        trials=(),
        alone_until_ns=now_ns + memory.left_alone_ns,
        left_alone_ns=2 * memory.left_alone_ns,
    )
