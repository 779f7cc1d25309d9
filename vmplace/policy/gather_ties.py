"""What became of ties of vCPUs that were asked for, tried, kept or given back?

1. Guests that the model wants gathered (vcpu_plan.py) are asked for, in each plan until their vCPUs are seen
   there.  Who is not seen there within ``ASKED_S`` may not be changed just now, and is left out for a while.
2. Then it is tried until counters tell (gather_trial.py): kept, or all vCPUs of the guest get the CPUs back
   that they had.  That is asked for until it is seen, after ``LOOSE_S`` only once each ``LOOSE_S``: the
   kernel may refuse, as the CPUs are offline.  No other guest is chosen as long as one is asked for or tried.
3. What was kept is given back, too, once the operator's word on the guest is another one, once some of its
   vCPUs run elsewhere, or once others come to the cores: vCPUs that have no other node, or somebody for whom
   its vCPUs have to wait (gather_waits.py).  Who was given back is left out, twice as long each time.
4. vCPUs that somebody else gave other CPUs are no business of vmplace any more, once they had these for
   ``GONE_S``: which CPUs are online may be known as late as that.

As long as a guest may not be changed, nothing is late.  What is not known of one for ``KEPT_S`` is forgotten.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from vmplace.policy.gather_trial import GatherTrial
from vmplace.policy.gather_waits import WaitWatch
from vmplace.policy.gathering import EarlierTie, Gathering, Refusal, Stage, Tie
from vmplace.policy.home import allowed_nids
from vmplace.policy.plan import GuestView, Snapshot, VcpuMove
from vmplace.policy.vcpu_places import is_allowed
from vmplace.policy.vcpu_ties import cores_of, cpus_on
from vmplace.topology.guest import GuestTopology, Identity
from vmplace.topology.host import HostTopology

ASKED_S, LOOSE_S, KEPT_S, GONE_S = 90.0, 600.0, 600.0, 90.0
FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 3600.0
TAKEN_AWAY = "its policy does not allow any more that its vCPUs are gathered there"
CROWDED = "vCPUs that have no other node came to the cores"
WAITING = "its vCPUs wait longer for a CPU than when they were tied"
ELSEWHERE = "some of its vCPUs run elsewhere"
EARLIER = "an earlier agent tied them"


def followed(before: Gathering, snapshot: Snapshot) -> Gathering:
    """Return what became of the ties by now."""
    before, now_s = _with_earlier(before, snapshot), snapshot.now_ns / 1e9
    views = {guest.topology.identity: guest for guest in snapshot.guests}
    ties: dict[Identity, Tie] = {}
    for identity, tie in before.ties.items():
        after = _seen(tie, views.get(identity), snapshot.host, now_s)
        if after is not None and after.stage is Stage.TRIED:
            after = _judged(after, _touched(after, views, snapshot.host), now_s)
        if after is not None:
            ties[identity] = after
    ties = _without_waits(_uncrowded(ties, snapshot), views, now_s)
    refused = {who: one for who, one in before.refused.items() if now_s < one.until_s + LONGEST_WAIT_S}
    for identity, tie in before.ties.items():
        if _has_failed(tie, ties.get(identity), now_s):
            wait_s = refused[identity].wait_s if identity in refused else FIRST_WAIT_S
            refused[identity] = Refusal(now_s + wait_s, min(2 * wait_s, LONGEST_WAIT_S))
    return replace(before, ties=ties, refused=refused)


def _has_failed(before: Tie, after: Tie | None, now_s: float) -> bool:
    """Tell whether a tie failed just now: it is to be given back, or was asked for too long."""
    if after is None:
        return before.stage is Stage.ASKED and now_s - before.asked_s >= ASKED_S
    return after.stage is Stage.LOOSE is not before.stage


def _seen(tie: Tie, view: GuestView | None, host: HostTopology, now_s: float) -> Tie | None:
    """Return the tie by where the vCPUs run now, None if there is nothing to do about it any more."""
    if view is None or not view.topology.vcpus:
        return tie if now_s - tie.seen_s < KEPT_S else None
    if view.settings.place_vcpus:
        # Another technique ties them, wherever they fit.
        return None
    tie = replace(tie, seen_s=now_s, move=replace(tie.move, guest=view.topology.name))
    return (_asked if tie.stage is Stage.ASKED else _held)(tie, view, host, now_s)


def _asked(tie: Tie, view: GuestView, host: HostTopology, now_s: float) -> Tie | None:
    """Return a tie that was asked for, as it is by now."""
    is_whole, is_welcome = _is_whole(tie, view, host), _is_welcome(tie, view, host)
    if is_welcome and is_whole:
        return replace(tie, stage=Stage.TRIED, since_s=now_s, trial=tie.trial.begun(now_s))
    if is_welcome and now_s - tie.asked_s < ASKED_S:
        return tie
    why = ELSEWHERE if is_welcome else TAKEN_AWAY
    return loose(tie, why, now_s) if tie.tied(view.topology, host) else None


def _held(tie: Tie, view: GuestView, host: HostTopology, now_s: float) -> Tie | None:
    """Return a tie that was seen, as it is by now."""
    if not tie.tied(view.topology, host):
        gone_s = now_s if tie.gone_s is None else tie.gone_s
        return None if now_s - gone_s >= GONE_S else replace(tie, gone_s=gone_s)
    tie = replace(tie, gone_s=None, since_s=tie.since_s if view.may_change else now_s)
    if tie.stage is Stage.LOOSE:
        return tie if now_s - tie.since_s < LOOSE_S else replace(tie, since_s=now_s, is_refused=True)
    if not _is_welcome(tie, view, host):
        return loose(tie, TAKEN_AWAY, now_s)
    if not _is_whole(tie, view, host):
        return loose(tie, ELSEWHERE, now_s)
    if tie.stage is not Stage.KEPT:
        return tie
    # What was while nothing might be changed is old by the time when it may.
    waits = tie.waits.after(view.costs) if view.may_change else WaitWatch.of(tie.waits.usual, now_s)
    return replace(tie, waits=waits)


def _is_welcome(tie: Tie, view: GuestView, host: HostTopology) -> bool:
    return is_allowed(view.settings) and tie.nid in allowed_nids(host, view)


def _is_whole(tie: Tie, view: GuestView, host: HostTopology) -> bool:
    """Tell whether all vCPUs that the guest has run where they were tied."""
    return 0 < len(tie.tied(view.topology, host)) == len(view.topology.vcpus)


def loose(tie: Tie, why: str, now_s: float) -> Tie:
    """Return the tie as it is to be given back; what was measured is not needed any more."""
    return replace(tie, stage=Stage.LOOSE, since_s=now_s, why=why, trial=GatherTrial())


def _touched(tie: Tie, views: Mapping[Identity, GuestView], host: HostTopology) -> dict[Identity, GuestView]:
    """Return the guest, and those that may run on its node now: another one may have been tied elsewhere."""
    is_there = tie.nid in host.nids
    return {
        who: one
        for who, one in views.items()
        if who == tie.trial.who
        or (is_there and any(cpus_on(host, vcpu, tie.nid) for vcpu in one.topology.vcpus))
    }


def _judged(tie: Tie, views: Mapping[Identity, GuestView], now_s: float) -> Tie:
    """Return the tie with what counters tell by now."""
    trial = tie.trial.watched(views, tie.nid, now_s)
    harm = trial.harm(views, now_s)
    if harm:
        return loose(tie, harm, now_s)
    if harm is None:
        return replace(tie, trial=trial)
    waits = WaitWatch.of(tie.trial.usual_waits(views), now_s)
    return replace(tie, stage=Stage.KEPT, since_s=now_s, trial=GatherTrial(), waits=waits)


def _uncrowded(ties: dict[Identity, Tie], snapshot: Snapshot) -> dict[Identity, Tie]:
    """Return the ties, the last of a node loose where more vCPUs have no other node than it has cores.

    One after the other: as long as one is being given back, the others of its node stay.
    """
    bound: Counter[tuple[int, ...]] = Counter()
    for guest in snapshot.guests if ties else ():
        bound.update(snapshot.host.nids_of_cpus(vcpu.cpus) for vcpu in guest.topology.vcpus)
    for nid in sorted({tie.nid for tie in ties.values()} & set(snapshot.host.nids)):
        here = {
            who: one
            for who, one in ties.items()
            if one.nid == nid and one.stage is not Stage.ASKED and not one.is_refused
        }
        is_full = bound[(nid,)] > cores_of(snapshot.host, snapshot.host.node(nid).cpus)
        if is_full and here and all(one.stage is not Stage.LOOSE for one in here.values()):
            last = max(here, key=lambda who: here[who].asked_s)
            ties = ties | {last: loose(ties[last], CROWDED, snapshot.now_ns / 1e9)}
    return ties


def _without_waits(
    ties: dict[Identity, Tie], views: Mapping[Identity, GuestView], now_s: float
) -> dict[Identity, Tie]:
    """Return the ties, of each node one loose where vCPUs wait too much: the one that waits most.

    As long as it is being given back, the others of its node stay; they waited for it, too.
    """
    free = {who: one for who, one in ties.items() if who in views and views[who].may_change}
    for nid in {one.nid for one in free.values() if one.stage is Stage.KEPT and one.waits.is_over}:
        here = [(who, one) for who, one in free.items() if one.nid == nid]
        leaving = [one for _, one in here if one.stage is Stage.LOOSE and not one.is_refused]
        if any(now_s - one.since_s < GONE_S for one in leaving):
            continue
        kept = {who: one for who, one in here if one.stage is Stage.KEPT}
        worst = max(kept, key=lambda who: kept[who].waits.excess)
        relieved = {
            who: replace(one, waits=WaitWatch.of(one.waits.usual, now_s)) for who, one in kept.items()
        }
        ties = ties | relieved | {worst: loose(kept[worst], WAITING, now_s)}
    return ties


def _with_earlier(before: Gathering, snapshot: Snapshot) -> Gathering:
    """Return the ties with those of an earlier agent, of guests that are there: these are judged no more."""
    here = {guest.topology.identity: guest.topology for guest in snapshot.guests if guest.topology.vcpus}
    new = {who: _taken_up(one, here[who], snapshot) for who, one in before.earlier.items() if who in here}
    left = {who: one for who, one in before.earlier.items() if who not in here}
    return replace(before, ties={**new, **before.ties}, earlier=left) if new else before


def _taken_up(earlier: EarlierTie, guest: GuestTopology, snapshot: Snapshot) -> Tie:
    cpus = [tuple({cpu for one in some.values() for cpu in one}) for some in (earlier.before, earlier.since)]
    before, now = (snapshot.host.nids_of_cpus(one) for one in cpus)
    move = VcpuMove(guest.name, earlier.since, before, now[0] if len(now) == 1 else None, EARLIER)
    now_s = snapshot.now_ns / 1e9
    return Tie(
        move, earlier.before, now_s, now_s, now_s, Stage.KEPT, granted=True, waits=WaitWatch.of(None, now_s)
    )
