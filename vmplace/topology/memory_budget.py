"""How much memory may the agent take on this host, and which guests can it afford?

1. It needs BASE_BYTES, and for each 4 KiB page of guests STATE_BYTES of statistics, and READING_BYTES more
   while it reads one guest (docs/design/block-rows.md); for each guest GUEST_BYTES, and for each range of its
   RAM RANGE_BYTES, as anybody can start thousands of guests without memory.  Its libvirt workers need
   WORKERS_BYTES, which count for its control group but not for its own limits.
2. A host needs ``host_limit_bytes``: as if one guest had all of its memory.  More is never asked for.
3. A limit that somebody set is kept to: memory.max of its control group and those above, RLIMIT_AS and
   RLIMIT_DATA.
4. If not all guests fit, those that cost most are left alone: noted, rather than ended by the kernel with all
   others.  Guests that libvirt vouches for come first: anybody who may open /dev/kvm can start others.  Of
   those, users come in equal shares (max-min): many guests of one push out no smaller total of another.
   Subordinate ids are their owner's (users.py).
5. Then small guests count by what they have resident, too (resident.py).

The unit's MemoryMax is a net under that, not the budget: 5% of a host's memory is more than 2 from 4 GiB on.
"""

import resource
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from vmplace.errors import OutsideError
from vmplace.outside import lines, read_text, read_whole
from vmplace.topology.guest import PAGE_BYTES, GuestTopology
from vmplace.topology.procfs import PROC
from vmplace.users import owner_of

BASE_BYTES = 96 << 20
SPARE_BYTES = 96 << 20
WORKERS_BYTES = 64 << 20
"""Two processes of 10 MiB, their libraries of 20 MiB; with 200 domains 10 MiB more, and 3 for the answer."""
STATE_BYTES, READING_BYTES = 6, 6
"""What eight nodes take, all pages differing; and a byte each for touches and nodes, bits by node."""
GUEST_BYTES, RANGE_BYTES = 320 << 10, 4 << 10
"""Of Python objects: 16 KiB for a guest of one range and one vCPU, before it has moved; and of the process
that counts what its vCPUs do, of which a control group is charged 200 to 250 KiB (counting.py)."""
MIB, GIB = 1 << 20, 1 << 30


def host_limit_bytes(memory_bytes: int) -> int:
    """Return the memory that the agent of a host with so much takes at the most."""
    return BASE_BYTES + SPARE_BYTES + memory_bytes // PAGE_BYTES * (STATE_BYTES + READING_BYTES)


def guests_budget_bytes(
    memory_bytes: int, proc: Path = PROC, sysfs: Path = Path("/sys"), *, with_libvirt: bool = False
) -> int:
    """Return what is left for guests on a host with so much memory, within the limits that were set."""
    own = [host_limit_bytes(memory_bytes), *_process_limits()]
    workers_bytes = WORKERS_BYTES if with_libvirt else 0
    shared = [limit - workers_bytes for limit in _group_limits(proc, sysfs)]
    return max(min(own + shared) - BASE_BYTES, 0)


def affordable(
    guests: Iterable[GuestTopology], budget_bytes: int, owner_of: Callable[[int], int] = owner_of
) -> tuple[tuple[GuestTopology, ...], tuple[tuple[GuestTopology, str], ...]]:
    """Return the guests that fit, in their order, and those to be left alone, each with the reason.

    ``owner_of`` tells which user answers for a user id.
    """
    guests = tuple(guests)
    kept: set[tuple[int, int]] = set()
    taken = largest = 0
    for guest in _in_turn(guests, owner_of):
        kept_bytes, reading = _kept_bytes(guest), READING_BYTES * _pages(guest)
        if taken + kept_bytes + max(largest, reading) <= budget_bytes:
            taken, largest = taken + kept_bytes, max(largest, reading)
            kept.add(guest.identity)
    why = f"the agent has {budget_bytes // MIB} MiB of memory for all guests"
    left = tuple(
        (guest, f"guest {guest.name}: left alone, its {_pages(guest) * PAGE_BYTES / GIB:.1f} GiB need "
                f"{needed_bytes([guest]) // MIB} MiB, and {why}")
        for guest in guests
        if guest.identity not in kept
    )  # fmt: skip
    return tuple(guest for guest in guests if guest.identity in kept), left


def needed_bytes(guests: Sequence[GuestTopology]) -> int:
    """Return what the agent needs for all of ``guests``, read one after the other."""
    return sum(map(_kept_bytes, guests)) + READING_BYTES * max(map(_pages, guests), default=0)


def _kept_bytes(guest: GuestTopology) -> int:
    """Return what is kept of a guest between windows."""
    return GUEST_BYTES + RANGE_BYTES * len(guest.ram) + STATE_BYTES * _pages(guest)


def _in_turn(guests: Iterable[GuestTopology], owner_of: Callable[[int], int]) -> list[GuestTopology]:
    """Order guests: those of libvirt, smaller ones first; then by what their user has with them, least first.

    libvirt runs all guests as one user, so that does not distinguish them.  A user with many guests comes
    after a user who has as much in one guest.
    """
    share: Counter[int | None] = Counter()
    turns = []
    for guest in sorted(guests, key=lambda one: (_pages(one), one.pid)):
        is_libvirts = guest.origin == "libvirt"
        user = None if guest.uid is None else owner_of(guest.uid)
        if not is_libvirts:
            share[user] += _kept_bytes(guest)
        turns.append((not is_libvirts, 0 if is_libvirts else share[user], _pages(guest), guest))
    return [guest for *_, guest in sorted(turns, key=lambda turn: (*turn[:3], turn[3].pid))]


def _pages(guest: GuestTopology) -> int:
    return sum(ram.npages for ram in guest.ram)


def _process_limits() -> list[int]:
    soft = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return [limit for limit in soft if limit != resource.RLIM_INFINITY]


def _group_limits(proc: Path, sysfs: Path) -> list[int]:
    """Return the limits of this process's control group and of those above it; none where there are none."""
    try:
        reported = lines(read_text(proc / "self/cgroup"))
    except OSError:
        return []
    limits = []
    for _, controllers, path in (line.split(":", 2) for line in reported if line.count(":") >= 2):
        if controllers == "":
            limits += _limits_upwards(sysfs / "fs/cgroup", path, ("memory.max", "memory.high"))
        elif "memory" in controllers.split(","):
            limits += _limits_upwards(sysfs / "fs/cgroup/memory", path, ("memory.limit_in_bytes",))
    return limits


def _limits_upwards(root: Path, path: str, names: tuple[str, ...]) -> list[int]:
    group = root / path.lstrip("/")
    limits = []
    for folder in (group, *group.parents):
        if not folder.is_relative_to(root):
            break
        for name in names:
            try:
                limits.append(read_whole(folder / name))
            except (OSError, OutsideError):
                # "max", or no such controller here.
                continue
    return limits
