"""In which proportion should a few placements be mixed, so that the guests' accesses cost the least time?

1. Each corner is a placement of all pages: its cost but for the waits, and its rates at the resources, are
   linear in the mixture; the waits are convex in the rates.
2. Weight goes from the corner that costs most at the margin to the one that costs least, as far as the total
   falls; again, until nothing is left to gain.

Source: the correction step of the fully corrective conditional-gradient method (Holloway, 1974); the plain
method creeps to and fro between corners on a crowded host.
Limits: rates per access stay as they are at the start; ``descent`` solves for them before each step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vmplace.model.memory_system import MemorySystem
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import Bools

ROUNDS = 24
"""Pairs of corners between which weight is moved, at most."""
PARTS = 32
"""A weight to be moved is found to one part of PARTS squared."""
ENOUGH = 1e-4
"""A difference between corners below this share of the total is none."""


def asked_of(system: MemorySystem, scale: Matrix, traffics: Matrix) -> Matrix:
    """Return the rate at each resource if guests [G] made ``scale`` accesses per ns for each one given."""
    pairs = len(system.nids) ** 2
    total: Matrix = scale @ traffics.reshape(-1, pairs)
    rates: Matrix = total @ system.visits.reshape(pairs, -1)
    return rates


@dataclass(frozen=True)
class CornerMix:
    """K corners: cost without waits [K], rates at the resources [K, R], these by importance."""

    system: MemorySystem
    plain: Matrix
    asked: Matrix
    weighted: Matrix

    @classmethod
    def of(
        cls,
        system: MemorySystem,
        traffics: Sequence[Matrix],
        paid: Sequence[Matrix],
        scale: Matrix,
        importances: Matrix,
    ) -> "CornerMix":
        """Return the corners with ``traffics[G, N, N]``; the way there costs each guest ``paid[G]``."""
        weighed = importances * scale
        plain = [
            float(weighed @ (moves + np.einsum("gkj,kj->g", one, system.latency)))
            for one, moves in zip(traffics, paid, strict=True)
        ]
        asked = np.stack([asked_of(system, scale, one) for one in traffics])
        weighted = np.stack([asked_of(system, weighed, one) for one in traffics])
        return cls(system, np.array(plain), asked, weighted)

    def total_and_gap(self, weights: Matrix) -> tuple[float, float]:
        """Return the total at its own margin, and how much less of it the last corner costs there."""
        margins = self.margins(weights)
        total = float(margins @ weights)
        return total, total - float(margins[-1])

    def margins(self, weights: Matrix) -> Matrix:
        """Return what each corner costs at the margin of the mixture."""
        asked, weighted = weights @ self.asked, weights @ self.weighted
        waits, margins_of_all = self.system.waits_and_margins(asked)
        rise = (margins_of_all - waits) / np.maximum(asked, 1e-300)
        margins: Matrix = self.plain + self.weighted @ waits + self.asked @ (weighted * rise)
        return margins

    def best(self, weights: Matrix) -> Matrix:
        """Return the weights with the least total, from ``weights`` on."""
        weights = weights.copy()
        for _ in range(ROUNDS):
            margins = self.margins(weights)
            to, source = int(margins.argmin()), int(np.where(weights > 0, margins, -np.inf).argmax())
            if margins[source] - margins[to] <= ENOUGH * float(margins @ weights):
                break
            shift = self._shift(weights, source, to)
            if shift == 0.0:
                break
            weights[source] -= shift
            weights[to] += shift
        return weights

    def _shift(self, weights: Matrix, source: int, to: int) -> float:
        """Return how much weight to move so that both corners cost the same, or all that there is.

        The total is convex in what is moved: where ``to`` is as dear as ``source``, it no longer falls.
        """
        whole, low, parts = float(weights[source]), 0.0, np.arange(1.0, 1.0 + PARTS) / PARTS
        for width in (1.0, 1.0 / PARTS):
            tried = whole * (low + width * parts)
            falls = self._still_falls(weights, source, to, tried)
            if falls.all():
                return float(tried[-1])
            low += width * (float(falls.argmin()) / PARTS)
        return whole * low

    def _still_falls(self, weights: Matrix, source: int, to: int, shifts: Matrix) -> Bools:
        """Return whether the total still falls where so much was moved, for each of ``shifts`` [S]."""
        asked = weights @ self.asked + shifts[:, None] * (self.asked[to] - self.asked[source])
        weighted = weights @ self.weighted + shifts[:, None] * (self.weighted[to] - self.weighted[source])
        waits, margins = self.system.waits_and_margins(asked)
        rise = weighted * (margins - waits) / np.maximum(asked, 1e-300)
        steeper = waits @ (self.weighted[to] - self.weighted[source]) + rise @ (
            self.asked[to] - self.asked[source]
        )
        falls: Bools = self.plain[to] - self.plain[source] + steeper < 0
        return falls
