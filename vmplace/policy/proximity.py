"""How near to its vCPUs does memory lie that all of them use?

The data-to-worker proximity (DWP) scales weights by bandwidth: 1 puts all on the nodes of the vCPUs, 0 on
all nodes alike (the canonical weights); weights keep their proportions within each of the two.

Source: BWAP (IPDPS'20), section III-B.
"""

import numpy as np
import numpy.typing as npt

from vmplace.model.metrics import Matrix

STEP = 0.1
"""Section IV: 10 %."""


def with_dwp(weights: Matrix, worker: npt.NDArray[np.bool_], dwp: float) -> Matrix:
    """Return the weights at a data-to-worker proximity between 0 (as they are) and 1 (workers only)."""
    inside = float(weights[worker].sum())
    if inside == 0.0:
        return weights
    on_workers = inside + dwp * (1 - inside)
    outside = 1 - inside
    scale = np.where(worker, on_workers / inside, (1 - on_workers) / outside if outside else 0.0)
    scaled: Matrix = weights * scale
    return scaled
