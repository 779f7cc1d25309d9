"""What would a source have shown of a window?  The truth of a trace, dimmed as the real sensor dims it.

full: every DRAM access.  ad: node-rooted accessed and dirty bits, one per page and node, so no counts.
ibs: one of ``period`` DRAM accesses, read or write.  Each view's heat is scaled to the window's DRAM
accesses, which counters tell every source.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from vmplace.errors import VmplaceError
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import Bools

IBS_PERIOD = 39_000
"""DRAM accesses per sample: Carrefour's 130,000 cycles (section 3.3) at Streamcluster's IPC of 0.30."""


@dataclass(frozen=True)
class WindowTruth:
    """Of one window, by page and node of the vCPU: DRAM accesses, any touches, and stores."""

    dram: Matrix
    touches: Matrix
    stores: Matrix


@dataclass(frozen=True)
class Seen:
    """What a source shows: estimated DRAM accesses [P, N], and to which pages it saw a write.

    ``read_ratio``: share of reads among what was seen; None if no written page can go unseen.
    """

    heat: Matrix
    written: Bools
    read_ratio: float | None = None


Source = Callable[[WindowTruth, np.random.Generator], Seen]


def see_full(truth: WindowTruth, chance: np.random.Generator) -> Seen:
    """Return the truth."""
    return Seen(truth.dram, truth.stores.max(axis=1) > 0)


def see_bits(truth: WindowTruth, chance: np.random.Generator) -> Seen:
    """Return accessed and dirty bits."""
    return Seen(_scaled((truth.touches > 0).astype(float), truth), truth.stores.max(axis=1) > 0)


def see_samples(truth: WindowTruth, chance: np.random.Generator, period: int = IBS_PERIOD) -> Seen:
    """Return samples of one access in ``period``: most writes go unseen, as they do on real hosts."""
    sampled = chance.binomial(truth.dram.astype(np.int64), 1 / period).astype(float)
    writes = chance.binomial(np.minimum(truth.stores, truth.dram).astype(np.int64), 1 / period)
    ratio = 1 - float(writes.sum()) / max(float(sampled.sum()), 1.0)
    return Seen(_scaled(sampled, truth), writes.max(axis=1) > 0, ratio)


def _scaled(heat: Matrix, truth: WindowTruth) -> Matrix:
    total = float(heat.sum())
    return heat * (float(truth.dram.sum()) / total) if total else heat


SOURCES: Mapping[str, Source] = {"full": see_full, "ad": see_bits, "ibs": see_samples}


def source_named(text: str) -> Source:
    """Return the source of that name; ``ibs:N`` samples one DRAM access in N.  Raises VmplaceError."""
    name, _, period = text.partition(":")
    if name == "ibs" and period.isdigit() and int(period) > 0:
        return partial(see_samples, period=int(period))
    if name not in SOURCES or period:
        raise VmplaceError(f"there is no source {text!r}", hint="known: full, ad, ibs, ibs:PERIOD")
    return SOURCES[name]
