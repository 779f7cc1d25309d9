"""Where ought the pages of all guests lie, together?  vmplace's own answer for hosts that see nodes.

1. A page that no write was seen to may be replicated, if every node of its guest's vCPUs has memory.
   A source that may miss writes must show a guest that hardly writes at all.
2. A move must pay for itself within as many windows as the page was seen touched in: what lasted n
   windows is expected to last n more, so no more is ever staked than was already seen to be lost.
3. Pages of all guests go to where the whole host's accesses cost least time (``descent``): controllers
   and links are shared, so a page's best node depends on everybody's pages.

Source: BWAP (IPDPS'20), section III, is the case of one guest with pages that all nodes share alike;
the replicas are Carrefour's (ASPLOS'13, section 3.2), per page instead of per application.
A moved page earns its next move anew (kMAF, PACT'14, halves its vector).
Limits: no guard yet, a trial that does not help is not undone; vCPUs stay; a phase that ends as soon as it
was seen is lost to any policy that looks back.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from vmplace.policy.descent import PageTask, descended, rounded
from vmplace.policy.host_view import ABSENT, GuestEvidence, HostView, NodeIndexes

READ_RATIO = 0.95
"""Carrefour (ASPLOS'13, section 3.2): replicate if at least this share of the accesses are reads."""


def plan_host(view: HostView) -> list[NodeIndexes]:
    """Return each guest's pages where the host's accesses cost the least time, moves included."""
    # Pages that nobody touched cost nothing anywhere: left out, they cost no time to decide on, either.
    touched = [np.flatnonzero((guest.node != ABSENT) & guest.heat.any(axis=1)) for guest in view.guests]
    tasks = [_task(view, guest, pages) for guest, pages in zip(view.guests, touched, strict=True)]
    mixture = descended(view.system, tasks)
    plans = [guest.node.copy() for guest in view.guests]
    for plan, pages, placements in zip(plans, touched, mixture.placements, strict=True):
        plan[pages] = rounded(placements, mixture.weights)
    return plans


def _task(view: HostView, guest: GuestEvidence, pages: npt.NDArray[np.intp]) -> PageTask:
    part = replace(
        guest,
        heat=guest.heat[pages],
        written=guest.written[pages],
        node=guest.node[pages],
        windows=guest.windows[pages],
    )
    near = bool((view.system.controller[guest.worker] > 0).all())
    # Time of the guest is latency / (mlp x parallelism); the price is in latency per window.
    price = view.move_ns * guest.mlp * guest.parallelism / np.maximum(part.windows, 1)
    reads = guest.read_ratio is None or guest.read_ratio >= READ_RATIO
    return PageTask(part, ~part.written & np.bool_(near and reads), price)
