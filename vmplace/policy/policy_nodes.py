"""Where does each page belong, if it is known which nodes read and write it?  Guest by guest.

1. Where all vCPUs of a guest run on one node there is nothing to learn: policy "home".
2. Pages are sorted by who uses them (``page_kinds.py``): to the node that does, alone or nearly so;
   copies of what nobody writes.
3. Other shared pages are interleaved over the nodes of the vCPUs by bandwidth, as policy "home" does.

A range whose source does not see nodes is left to policy "home".
Limits: what other guests ask of a node's memory is not looked at (``policy_host.py`` does).
"""

from collections.abc import Iterator

from vmplace.policy import policy_home as home
from vmplace.policy.page_kinds import (
    Answer,
    PageKinds,
    iter_kinds,
    plan_of,
    settled_answers,
    spread_wishes,
)
from vmplace.policy.plan import PlacementPlan, Snapshot


def plan(snapshot: Snapshot) -> PlacementPlan:
    """Return moves and replications within the snapshot's budgets."""
    return plan_of(_iter_answers(snapshot), snapshot.budget_bytes)


def _iter_answers(snapshot: Snapshot) -> Iterator[Answer]:
    room = home.room_pages(snapshot.host)
    for guest in snapshot.guests:
        for one in iter_kinds(snapshot, guest, room):
            if isinstance(one, PageKinds):
                yield from settled_answers(snapshot, one, room)
                yield from _spread(snapshot, one, room)
            else:
                yield one


def _spread(snapshot: Snapshot, kinds: PageKinds, room: dict[int, float]) -> Iterator[Answer]:
    allowed = home.allowed_nids(snapshot.host, kinds.guest)
    target = home.target_of(snapshot.host, kinds.guest, kinds.pages.ram, allowed)
    if target:
        yield from spread_wishes(kinds.guest, kinds.pages, kinds.rest, target, room)
