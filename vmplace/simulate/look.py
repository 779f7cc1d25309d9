"""All accesses of a guest since the last look; source_views.py shows what a source would see of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import Indexes, row_sums

RUN_PAGES = 64
"""Neighbours that tell of each other's heat."""


@dataclass(frozen=True)
class WindowTruth:
    """Of one window, by page and node of the vCPU: DRAM accesses, touches of any kind that missed a private
    cache, and stores.

    ``hits``: all accesses, those that private caches serve among them, as an instruction sampler sees them;
    None unless the guest's source asks for them.
    """

    dram: Matrix
    touches: Matrix
    stores: Matrix
    hits: Matrix | None = None

    @cached_property
    def rows(self) -> Indexes:
        """Return the pages that were touched, and all that lie in a run of RUN_PAGES with one of them."""
        touched = np.flatnonzero(row_sums(self.touches) + row_sums(self.dram))
        runs = np.zeros(-(-len(self.touches) // RUN_PAGES), np.bool_)
        runs[touched // RUN_PAGES] = True
        rows: Indexes = np.flatnonzero(np.repeat(runs, RUN_PAGES)[: len(self.touches)])
        return rows

    @cached_property
    def compact(self) -> "WindowTruth":
        """Return ``rows`` only."""
        return self.of(self.rows)

    def of(self, rows: Indexes) -> "WindowTruth":
        """Return these pages only."""
        hits = None if self.hits is None else self.hits[rows]
        return WindowTruth(self.dram[rows], self.touches[rows], self.stores[rows], hits)


@dataclass(frozen=True)
class Part:
    """Of a window of the trace, which share passed, and in how long; evenly, as nothing else is recorded.

    ``vcpu_ns``: the time of all vCPUs that ran.
    """

    truth: WindowTruth
    share: float
    span_ns: float
    vcpu_ns: float = 0.0


@dataclass(frozen=True)
class Look:
    """Parts of windows, one after the other, at least one.

    ``before[P, N]``: the accesses that the source had shown before, faded.
    """

    parts: Sequence[Part]
    before: Matrix

    @cached_property
    def rows(self) -> Indexes:
        """Return the pages near which something happened."""
        each = [part.truth.rows for part in self.parts]
        return each[0] if len(each) == 1 else np.unique(np.concatenate(each))

    @property
    def near(self) -> "Look":
        """Return ``rows`` only."""
        alone = len(self.parts) == 1
        parts = [
            replace(one, truth=one.truth.compact if alone else one.truth.of(self.rows)) for one in self.parts
        ]
        return Look(parts, self.before[self.rows])

    @property
    def span_ns(self) -> float:
        """Return how long the guest ran."""
        return sum(part.span_ns for part in self.parts)

    @property
    def dram(self) -> Matrix:
        """Return the DRAM accesses."""
        return _total([part.truth.dram * part.share for part in self.parts])

    @property
    def touches(self) -> Matrix:
        """Return all touches."""
        return self.touches_until(self.span_ns)

    @property
    def stores(self) -> Matrix:
        """Return the stores."""
        return _total([part.truth.stores * part.share for part in self.parts])

    @property
    def hits(self) -> Matrix:
        """Return all accesses, those that private caches serve among them."""
        each = [part.truth.hits if part.truth.hits is not None else part.truth.touches for part in self.parts]
        return _total([hits * part.share for hits, part in zip(each, self.parts, strict=True)])

    @property
    def vcpu_ns(self) -> float:
        """Return the time of all vCPUs that ran."""
        return sum(part.vcpu_ns for part in self.parts)

    def touches_until(self, span_ns: float) -> Matrix:
        """Return the touches in the first ``span_ns``."""
        left, each = span_ns, []
        for part in self.parts:
            passed = min(left / part.span_ns, 1.0) if part.span_ns else 1.0
            each.append(part.truth.touches * (part.share * max(passed, 0.0)))
            left -= part.span_ns
        return _total(each)


def _total(parts: list[Matrix]) -> Matrix:
    total = parts[0]
    for one in parts[1:]:
        total = total + one
    return total
