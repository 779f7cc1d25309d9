"""What was weighed for a guest: the way that the plan takes, and the best of those that it does not.

All figures are of the plan's own model.  Where it has none, ``unknown`` has the reason.
"""

import msgspec

STAY, PLANNED, WANTED, NODE, COPIES = "stay", "planned", "all wanted", "one node", "copies"
"""Ways: nothing changes; what the plan does; that without guard, room and budget; all on ``nid``; copies of
all that nobody writes."""
VCPUS = "vcpus"
"""No memory moves, but vCPUs, to ``nid``."""
GATHER = "gather"
"""vCPUs go to ``nid``, and memory follows."""
COLD_NS = 0.5e6
"""kernel/sched/fair.c: sysctl_sched_migration_cost, what a thread loses that goes to another CPU."""


class Option(msgspec.Struct, frozen=True):
    """One way to place a guest's memory, beside what is planned for the other guests.

    ``moved_bytes``: to be moved; ``copied_bytes``: of new copies; ``dropped_bytes``: pages that lose theirs.
    ``price_ns``: what the change takes of the guest's time.  ``saved_ns``: what the guest waits less for
    memory afterwards, in the time that the plan looks ahead; ``saved_share``: of all its time then.
    ``why_not``: empty for the way that is taken.
    """

    way: str
    moved_bytes: int
    copied_bytes: int
    dropped_bytes: int
    price_ns: float
    saved_ns: float
    saved_share: float | None
    why_not: str = ""
    nid: int | None = None


class Weighing(msgspec.Struct, frozen=True):
    """One guest's options.

    ``chosen`` is None where the model has no figures.  ``ahead_s``: for how long what was seen is expected to
    go on, None where nothing counts accesses.  ``unknown``: which figures are missing, and why.
    """

    guest: str
    chosen: Option | None = None
    others: tuple[Option, ...] = ()
    ahead_s: float | None = None
    unknown: str = ""
