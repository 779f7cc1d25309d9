"""Did it help that a guest's vCPUs were tied to a node?  By what an instruction takes, before and after: in
cycles, and, where that is known, with the time in which vCPUs waited for a CPU.

1. It is judged once the guest's memory has followed, or follows no more.
2. If the guest itself is worse off beyond the noise (trial.py), or a guest that may still run on the node, it
   was harm.  Of the others there may be many, and chance must not find one among them: for them twice the
   tolerance and twice the standard errors are asked for, unless they are protected.
3. A guest that accesses memory ``OTHER_WORK`` times as often per instruction, or as seldom, does something
   else than before, or misses a cache that it has to share now: it cannot be compared.
4. If the guest itself cannot be compared within ``UNJUDGED_S``, nobody knows, and that counts as harm.

Limits: of a guest with a quota waits are not known (sampling/cpu_waits.py).  That a node's cores are not
shared is seen to beforehand (vcpu_places.py), and looked at again (gather_ties.py, gather_waits.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np

from vmplace.policy.gather_waits import known_waits, usual_waits
from vmplace.policy.plan import CostSample, GuestView
from vmplace.policy.trial import AFTER, ERRORS, TOLERANCE, is_worse
from vmplace.topology.guest import Identity

NOBODY = (-1, -1)
TINY = 1e-9
OTHER_WORK = 2.0
FOLLOWED, GROWN = 0.9, 0.001
"""Share of the memory in use that is on the node once it has followed; by which it grows while it follows."""
STUCK_S, LONGEST_S = 20.0, 600.0
"""Memory that did not come for so long will not come; what has not come after the second is too much."""
UNJUDGED_S = 240.0
FRESH_S = 60.0
"""The longest while between two samples, and since the last one: what was before tells of something else."""
HARMED = "an instruction takes {:.0%} longer since its vCPUs were tied"
OTHERS_HARMED = "an instruction of {} takes {:.0%} longer since these vCPUs came to its node"
NOT_JUDGED = "nothing tells whether it helped to tie its vCPUs"


@dataclass(frozen=True)
class GatherTrial:
    """What was measured before of ``who`` is tied, and of others.

    ``share``: of the guest's memory in use on the node, ``grew_s``: when it last grew, ``begun_s``: when the
    vCPUs were there; ``followed_s``: since when memory follows no more.
    """

    who: Identity = NOBODY
    costs: Mapping[Identity, tuple[CostSample, ...]] = field(default_factory=dict)
    share: float = 0.0
    grew_s: float = 0.0
    begun_s: float = 0.0
    followed_s: float | None = None

    @classmethod
    def of(cls, guest: GuestView, others: Sequence[GuestView], now_s: float) -> "GatherTrial":
        """Return what is known before vCPUs are tied of the guest and of those that may run on the node."""
        known = [(one.topology.identity, fresh(one, now_s)) for one in (guest, *others)]
        return cls(
            guest.topology.identity, {identity: costs for identity, costs in known if len(costs) >= AFTER}
        )

    def begun(self, now_s: float) -> "GatherTrial":
        """Return the trial as the vCPUs are there."""
        return replace(self, grew_s=now_s, begun_s=now_s)

    def watched(self, views: Mapping[Identity, GuestView], nid: int, now_s: float) -> "GatherTrial":
        """Return the trial with whether memory has followed by now."""
        guest = views.get(self.who)
        if guest is None or self.followed_s is not None:
            return self
        if not guest.may_change:
            return replace(self, grew_s=now_s, begun_s=now_s)
        share = _share_on(guest, nid)
        if self.share + GROWN < share < FOLLOWED and now_s - self.begun_s < LONGEST_S:
            return replace(self, share=share, grew_s=now_s)
        is_late = now_s - self.grew_s >= STUCK_S or now_s - self.begun_s >= LONGEST_S
        is_over = share >= FOLLOWED or is_late
        return replace(self, followed_s=now_s) if is_over else self

    def harm(self, views: Mapping[Identity, GuestView], now_s: float) -> str | None:
        """Return which harm was done, in words, empty for none; None: it is too early to tell."""
        if self.followed_s is None:
            return None
        after = {who: self._after(views[who]) for who in self.costs if who in views}
        mine = after.get(self.who, ())
        if len(mine) < AFTER or self._does_other_work(self.who, mine):
            return NOT_JUDGED if now_s - self.followed_s >= UNJUDGED_S else None
        for who, costs in after.items():
            is_own = who == self.who
            if len(costs) < AFTER or self._does_other_work(who, costs):
                continue
            times = 1 if is_own or views[who].settings.protected else 2
            for before, now in _compared(self.costs[who], costs):
                if self._is_worse(before, now, times):
                    rise = fmean(now) / max(fmean(before), TINY) - 1
                    name = views[who].topology.name
                    return HARMED.format(rise) if is_own else OTHERS_HARMED.format(name, rise)
        return ""

    def usual_waits(self, views: Mapping[Identity, GuestView]) -> float | None:
        """Return how long the guest usually waits for a CPU, by the trial; None: not known."""
        guest = views.get(self.who)
        return usual_waits(self.costs.get(self.who, ()), self._after(guest) if guest else ())

    def _after(self, guest: GuestView) -> tuple[CostSample, ...]:
        """Return the last whole samples since memory followed."""
        since = [one for one in guest.costs if one.at_s > (self.followed_s or 0.0)]
        return tuple(since[1:][-AFTER:])

    def _does_other_work(self, who: Identity, after: Sequence[CostSample]) -> bool:
        was, now = (float(np.mean([one.accesses for one in some])) for some in (self.costs[who], after))
        return bool(was and now) and max(was / now, now / was) >= OTHER_WORK

    def _is_worse(self, before: Sequence[float], after: Sequence[float], times: int) -> bool:
        return is_worse(before, after, tolerance=times * TOLERANCE, errors=times * ERRORS)


def fresh(guest: GuestView, now_s: float) -> tuple[CostSample, ...]:
    """Return the samples of a guest's cost that tell how it is doing now."""
    kept: list[CostSample] = []
    for one in reversed(guest.costs):
        if (kept[-1].at_s if kept else now_s) - one.at_s > FRESH_S:
            break
        kept.append(one)
    return tuple(reversed(kept))


def _compared(
    before: Sequence[CostSample], after: Sequence[CostSample]
) -> Iterator[tuple[list[float], list[float]]]:
    """Yield what an instruction took before and after: in cycles, and with waits for a CPU."""
    yield [one.cost for one in before], [one.cost for one in after]
    if known_waits(before) and known_waits(after):
        yield _with_waits(before), _with_waits(after)


def _with_waits(samples: Sequence[CostSample]) -> list[float]:
    return [one.cost * (1 + one.waits) for one in samples if one.waits is not None]


def _share_on(guest: GuestView, nid: int) -> float:
    """Return which share of the guest's pages in use is on the node."""
    pages = guest.pages
    if pages is None or nid not in pages.nids:
        return 0.0
    used = sum(
        (one.by_node(len(pages.nids), hot_only=True) for one in pages.ranges), np.zeros(len(pages.nids))
    )
    return float(used[pages.nids.index(nid)]) / max(float(used.sum()), 1.0)
