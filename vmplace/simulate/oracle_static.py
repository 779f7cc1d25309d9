"""How fast could the guests run, if pages were first touched where they lie best, and stayed there?

The yardstick of kMAF (PACT'14, section 4): a mapping made from a trace of the whole run.  It costs nothing,
and has learnt all before it begins.  Unlike ``oracle`` it follows no change: a policy may gain more.
"""

import numpy as np

from vmplace.model.metrics import Matrix
from vmplace.simulate.oracle import Course, KnownGuest, followed, served
from vmplace.simulate.placement_costs import FREE, PlacementCosts


def static_course(known: KnownGuest, prices: Matrix, _costs: PlacementCosts) -> Course:
    """Return the schedule in which each page stays where all windows together are best at ``prices``."""
    total = np.zeros((len(known.first), len(known.states) + 1))
    for use, price in zip(known.uses, prices, strict=True):
        total[use.pages] += served(known, use, price)
    place = total.argmin(axis=1).astype(np.int8)
    wherever = [
        np.broadcast_to(place[use.pages, None], (len(use.pages), total.shape[1])) for use in known.uses
    ]
    return followed(known, wherever, FREE)
