"""How near to its vCPUs ought memory lie that all of them use?  One step at a time, and each step is a trial.

1. The data-to-worker proximity (DWP) scales weights by bandwidth: 1 puts all on the nodes of the vCPUs, 0 on
   all nodes alike (the canonical weights); weights keep their proportions within each of the two.
2. A climb begins at 1, where policy "home" puts memory anyway, once that placement rests and the guest's cost
   is known.  It takes a step outward, which ``trial.py`` judges as it judges every placement.
3. While a step makes the guest's instructions cheaper, beyond the noise, the next one follows.  One that does
   not is taken back, and the climb is over until the vCPUs run on other nodes.

Source: BWAP (IPDPS'20), section III-B: DWP and its hill climb on the stall rate.
Differs: BWAP begins at 0.  A guest that is not bound by bandwidth pays for one step here, not for all of
them; where the cost is convex in DWP, as BWAP assumes, both come to the same end.
Limits: the guest's own cost alone is looked at, not that of those on the nodes that it spreads to.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vmplace.model.metrics import Matrix
from vmplace.policy.trial import Verdict

STEP = 0.1
"""Section IV: 10 %."""
PATIENCE = 4
"""Windows in which a step may begin to move pages; after them it cannot be taken."""


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


@dataclass(frozen=True)
class Climb:
    """Where one guest's climb stands.

    ``workers``: the nodes of the vCPUs it is for.  ``stepping``: the way to ``dwp`` is not judged yet;
    ``waited`` windows without a move belong to it.  ``summary``: the last step in words.
    """

    workers: tuple[int, ...] = ()
    dwp: float = 1.0
    stepping: bool = False
    settled: bool = False
    waited: int = 0
    summary: str = ""

    def after_window(self, verdict: Verdict | None, *, trying: bool, ready: bool) -> "Climb":
        """Return the climb after a window.

        ``verdict``: of the trial that ended with it.  ``trying``: a trial is under way.  ``ready``: the guest
        rests at a known cost, and a step would disturb nobody else's trial.
        """
        if self.settled:
            return self
        if not self.stepping:
            return self._outward() if ready else self
        if verdict is Verdict.KEEP:
            summary = f"proximity {self.dwp:.1f} is better than {self.dwp + STEP:.1f}"
            return replace(self, summary=summary)._outward()
        if verdict is not None:
            return self._back("is no better")
        if trying:
            return replace(self, waited=0)
        return (
            replace(self, waited=self.waited + 1) if self.waited < PATIENCE else self._back("moves nothing")
        )

    def _outward(self) -> "Climb":
        if self.dwp <= 0.0:
            return replace(
                self, stepping=False, settled=True, summary=f"{self.summary}; no more is left to try"
            )
        return replace(self, dwp=round(max(self.dwp - STEP, 0.0), 6), stepping=True, waited=0)

    def _back(self, why: str) -> "Climb":
        before = round(self.dwp + STEP, 6)
        summary = f"proximity {self.dwp:.1f} {why}: back to {before:.1f}"
        return replace(self, dwp=before, stepping=False, settled=True, summary=summary)
