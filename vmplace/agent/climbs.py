"""How near to the vCPUs does shared memory lie best?  Verdicts of trials in, steps out (proximity.py)."""

import logging
from collections.abc import Callable, Iterable, Mapping

from vmplace.agent.guests import TrackedGuest
from vmplace.policy.proximity import Climb
from vmplace.policy.trial import Verdict
from vmplace.topology.host import HostTopology

LOG = logging.getLogger(__name__)


def advance(
    guests: Iterable[TrackedGuest],
    verdicts: Mapping[str, Verdict],
    host: HostTopology,
    may_move: Callable[[str], bool],
) -> None:
    """Let the guests' climbs go on after a window; a guest that may not move waits where it is."""
    guests = tuple(guests)
    busy = any(guest.trial.trying or guest.climb.stepping for guest in guests)
    for guest in guests:
        verdict = verdicts.get(guest.name)
        if guest.settings.proximity is not None or (verdict is None and not may_move(guest.name)):
            continue
        before = _of_its_workers(guest, host)
        # One at a time: two steps at once would be judged for each other.
        ready = not busy and guest.trial.is_resting
        guest.climb = before.after_window(verdict, trying=guest.trial.trying, ready=ready)
        busy = busy or guest.climb.stepping
        if (guest.climb.dwp, guest.climb.settled) != (before.dwp, before.settled):
            _log(guest.name, before, guest.climb)


def _of_its_workers(guest: TrackedGuest, host: HostTopology) -> Climb:
    """Return the guest's climb, or a new one if its vCPUs run on other nodes now."""
    cpus = {cpu for vcpu in guest.topology.vcpus for cpu in vcpu.cpus}
    workers = host.nids_of_cpus(tuple(sorted(cpus)))
    return guest.climb if guest.climb.workers == workers else Climb(workers)


def _log(name: str, before: Climb, now: Climb) -> None:
    reason = now.summary or "its memory rests, and what an instruction takes is known"
    LOG.info('guest=%s proximity=%.1f->%.1f reason="%s"', name, before.dwp, now.dwp, reason)
