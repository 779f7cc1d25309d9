"""Which entries of a plan have copies?  What KVM made, not what was planned.

KVM makes a part of the copies that a plan wants: it refuses pages, the budget ends, an order comes between.
So the replicator tells page by page which have some (``GuestView.copied_pages``), and an entry has copies if
more than half of its pages have.  The others are planned anew, and have to pay anew.  Copies of fewer are
still there: they count where copies are limited, and are dropped where the plan wants none.
"""

from itertools import pairwise

import numpy as np

from vmplace.model.evidence import Entries
from vmplace.model.metrics import Matrix
from vmplace.policy.plan import GuestView
from vmplace.policy.plan_state import State
from vmplace.sampling.page_set import PageSet
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES


def copied_in(state: State, guest: GuestView, entries: Entries) -> Matrix:
    """Return how many 4 KiB pages of each entry have copies; where nobody tells, all that were planned."""
    name = guest.topology.name
    if guest.copied_pages is not None or guest.copied_bytes == 0 or name not in state.known:
        return pages_in(entries, guest.copied_pages)
    return np.where(state.known[name].copied, entries.sizes, 0.0)


def pages_in(entries: Entries, some: PageSet | None) -> Matrix:
    """Return how many 4 KiB pages of each entry are among ``some``, None: none."""
    counts = np.zeros(len(entries.node))
    if some is None or not len(some):
        return counts
    for pages, (start, end) in zip(entries.pages, pairwise(entries.starts), strict=True):
        hva, edge = pages.hva_of(np.arange(pages.entries)), start + pages.edge
        counts[start:edge] = some.are_in(hva[: pages.edge] // PAGE_BYTES)
        counts[edge:end] = some.counts_of(hva[pages.edge :] // HUGE_BYTES)
    return counts
