"""A vCPU thread that was tied is tied again: which CPUs does an undo lead to?

To those that it had before the first tie, unless somebody else gave it others since.  What it had just before
the second tie tells that.  CPUs that were offline then, or not in its cpuset, are left out there
(sched_getaffinity(2)).  A thread that had none left had all that were usable: the kernel shows it those of
its cpuset, and drops the tie if the last one went offline (select_fallback_rq).  None of that was somebody
else.
"""

import msgspec

from vmplace.actuation.journal_records import AffinityRecord
from vmplace.topology.cpulist import parse_cpulist


def tied_again(first: AffinityRecord, again: AffinityRecord) -> AffinityRecord:
    """Return the sum of a record and of a later one of the same thread."""
    if again.set_to is None:
        return first
    had = _ours(first, again)
    if first.thread_start_time != again.thread_start_time or had is None:
        # From what somebody else has set meanwhile.
        return again
    # From what vmplace had set: undo still leads to what was before that.
    return msgspec.structs.replace(first, set_to=again.set_to, or_set_to=had)


def _ours(first: AffinityRecord, again: AffinityRecord) -> tuple[int, ...] | None:
    """Return what the thread had before it was tied again, all of it; None if others had set that."""
    known = [cpus for cpus in (first.set_to, first.or_set_to, first.cpus) if cpus is not None]
    if first.set_to is None or again.cpus in known:
        return again.cpus
    if not again.usable:
        return None
    usable = frozenset(parse_cpulist(again.usable))
    now = usable.intersection(again.cpus)
    for cpus in known:
        if now == usable.intersection(cpus):
            return cpus
    is_dropped = usable.isdisjoint(first.set_to) and now >= usable.intersection(first.cpus)
    return again.cpus if is_dropped else None
