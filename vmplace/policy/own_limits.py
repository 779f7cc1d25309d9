"""What does a guest's own policy leave of what may be done with its memory?

agent/limits.py cuts any plan to that, whichever policy made it.  A plan that did not know would charge
budget, room and the guard's purse for what is cut then, and so take them from others.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from vmplace.model.evidence import Entries
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import Bools
from vmplace.policy.plan import GuestView
from vmplace.topology.guest import PAGE_BYTES, RamRange

NO_MOVES = "its policy does not allow to move memory"
NO_HUGE = "its policy leaves huge pages"
RATE_USED = "its policy's move_mb_per_s is used up for now"


def is_free(guest: GuestView, ram: RamRange, nids: Iterable[int]) -> bool:
    """Tell whether memory of the range may be on any of these nodes: it may be bound to others."""
    bound = guest.numatune.of_cell(ram.cell)
    return bound is None or set(nids) <= set(bound)


def may_not_move(guest: GuestView, entries: Entries, huge: Bools, allowed: Sequence[int]) -> Bools | None:
    """Return which entries may not move, None: all may.

    What is bound to one of the allowed nodes has no choice; what is bound to several see ``barred``.
    """
    if not guest.settings.moves:
        return np.ones(len(entries.node), np.bool_)
    stays = _entries_of(entries, [_choices(guest, one.ram, allowed) < 2 for one in entries.pages])
    if guest.settings.huge_pages:
        return stays
    return huge if stays is None else huge | stays


def barred(guest: GuestView, entries: Entries, nids: Sequence[int]) -> Bools | None:
    """Return on which nodes [P, N] of ``nids`` which entries may not be by their cell, None: none says so."""
    bound = [guest.numatune.of_cell(one.ram.cell) for one in entries.pages]
    if all(one is None for one in bound):
        return None
    rows = np.array([[one is not None and nid not in one for nid in nids] for one in bound])
    return np.repeat(rows, np.diff(entries.starts), axis=0)


def may_not_copy(  # noqa: PLR0913 - a guest, and what is known of its pages
    guest: GuestView,
    entries: Entries,
    huge: Bools,
    workers: Sequence[int],
    copied: Bools,
    pages_left: float,
) -> Bools | np.bool_:
    """Return which entries may have no copies on ``workers``, the nodes of the guest's vCPUs.

    ``copied``: which have some: these stay.  ``pages_left``: so many 4 KiB pages may yet become copies.
    """
    settings = guest.settings
    if not settings.may_copy or guest.copies_wait or pages_left < 1:
        return ~copied
    bound = _bound(guest, entries, workers)
    held = np.False_ if bound is None else bound
    return ~copied & (held if settings.huge_pages else held | huge)


def copy_pages_left(guest: GuestView, sizes: Matrix, workers: Sequence[int]) -> float:
    """Return how many 4 KiB pages may yet become copies by ``replica_bytes``; ``sizes`` of what has some."""
    copies = float(sizes.sum()) * max(len(workers) - 1, 1)
    return max(pages_left(guest.settings.replica_bytes) - copies, 0.0)


def pages_left(size_bytes: int | None) -> float:
    """Return as how many 4 KiB pages a limit counts, None: no limit."""
    return np.inf if size_bytes is None else size_bytes / PAGE_BYTES


def _bound(guest: GuestView, entries: Entries, nids: Sequence[int]) -> Bools | None:
    """Return which entries may not be on all of these nodes, None: none of them."""
    return _entries_of(entries, [not is_free(guest, pages.ram, nids) for pages in entries.pages])


def _choices(guest: GuestView, ram: RamRange, nids: Sequence[int]) -> int:
    """Return on how many of the nodes the range may be; 2 where nothing binds it."""
    bound = guest.numatune.of_cell(ram.cell)
    return 2 if bound is None else len(set(nids) & set(bound))


def _entries_of(entries: Entries, ranges: Sequence[bool]) -> Bools | None:
    return np.repeat(ranges, np.diff(entries.starts)) if any(ranges) else None
