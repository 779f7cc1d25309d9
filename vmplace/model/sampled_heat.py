"""How hot is what a source sampled, and which of it is written?"""

from typing import Any

import numpy as np
import numpy.typing as npt

from vmplace.model.heat_horizon import HORIZON_S, SHORTEST_S, watched_s
from vmplace.model.metrics import Matrix
from vmplace.model.pages import GuestPages
from vmplace.model.remembered import Memory
from vmplace.model.sampled_entries import NEAR_BLOCKS, SampleUnits, believed
from vmplace.model.touched_pages import TouchedPages
from vmplace.sampling.page_arrays import Bools, Bytes, Indexes

TELLING = 20
"""Of so many entries that were sampled, one write is to be expected where pages are written now and then."""


def newest_rates(guest: GuestPages, lengths_s: tuple[float, ...], memory: int) -> list[float]:
    """Return of each range how many samples a second the newest windows have of those of the windows before.

    A range has ``memory`` windows, or as many as it was sampled in; what has been there for as long tells.
    """
    windows = [min(memory, len(one.counted)) for one in guest.ranges]
    rates = {some: _newest_rate(guest, lengths_s, some) for some in set(windows)}
    return [rates[some] for some in windows]


def _newest_rate(guest: GuestPages, lengths_s: tuple[float, ...], windows: int) -> float:
    ranges = [one for one in guest.ranges if len(one.counted) >= windows]
    newest, whole = (
        sum(len(hits.pages) for one in ranges for hits in one.counted[:some])
        / max(watched_s(lengths_s, some), SHORTEST_S)
        for some in (Memory().windows, max(windows, 1))
    )
    return newest / whole if whole else 1.0


def sampled_heat(
    pages: TouchedPages,
    lengths_s: tuple[float, ...],
    units: SampleUnits,
    changed: Indexes,
    rate_now: float,
) -> Matrix:
    """Return what samples imply, in samples per horizon; of blocks that ``changed`` the newest alone."""
    if len(pages.counted) <= Memory().windows:
        rate_now = 1.0
    heat = _samples_expected(pages, lengths_s, units, len(pages.counted)) * rate_now
    if len(changed):
        some = pages.of_block(np.isin(pages.blocks, changed))
        heat[some] = _samples_expected(pages, lengths_s, units, Memory().windows)[some]
    return heat


def _samples_expected(
    pages: TouchedPages, lengths_s: tuple[float, ...], units: SampleUnits, windows: int
) -> Matrix:
    windows = min(windows, len(pages.counted))
    counted_s = max(watched_s(lengths_s, windows), SHORTEST_S)
    return believed(pages, pages.counted.newest(windows), units) * (HORIZON_S / counted_s)


def written_by_samples(pages: TouchedPages, stored: Bytes | None) -> Bools:
    """Return which entries count as written: seen to be, or in a block of which one entry in 20 was.

    Of a block without samples those of the 32 MiB around it tell, and all of the range; so does a store that
    is older, but within the windows whose samples count.  ``stored``: as in RangePages.
    """
    wrote, touched = (pages.wrote > 0) | pages.all_written, pages.seen > 0
    by_block = [pages.by_block(one / pages.sizes) for one in (touched, wrote)]
    is_written = _one_in_20(*by_block)
    near = pages.blocks // NEAR_BLOCKS
    around = _one_in_20(*(np.bincount(near, one) for one in by_block))[near]
    anywhere = _one_in_20(*(one.sum(keepdims=True) for one in by_block))
    older = np.bool_(False) if stored is None else stored[pages.blocks] < len(pages.counted)
    written: Bools = wrote | pages.of_block(is_written | older | (by_block[0] == 0) & (around | anywhere))
    return written


def _one_in_20(touched: npt.NDArray[Any], wrote: npt.NDArray[Any]) -> Bools:
    """Return whether so many entries that were sampled were written that the others may be."""
    enough: Bools = wrote * TELLING > touched
    return enough
