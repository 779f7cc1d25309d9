"""How often was a page touched, if its accessed bit was read a few times before it was cleared?

A bit that is read once tells that a page was touched, not whether once or a thousand times: a page that its
own node uses all the time and a neighbour now and then looks as if both used it alike.  Reading clears
nothing, so bits are read soon after they were cleared, and again when ``FASTER`` times as long has passed.

1. The answer for a page and node is the first reading that showed its bit: what is set early is hot.
2. Touches at rate r leave the bit off until t with chance exp(-r t).  Which rates there are, and how many
   pages of each, is learnt from how many bits each reading was the first to show.
3. The touches to be expected of a page are the mean of these rates, each weighed by how well it explains the
   page's reading.
4. Rates are learnt by themselves among pages that were about as hot before: so what a page showed in many
   windows counts, and one early reading does not make a hot page of one that is seldom used.

Source: empirical Bayes with a prior that is not parametric (Robbins, Berkeley Symposium 1956), found by
expectation and maximisation (Laird, JASA 1978).
Limits: touches are taken to come evenly.  A page that is read from end to end in one go, and then not for
long, is taken for a hot one if that happens before the first reading.
"""

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.model.metrics import Matrix

Indexes = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]
FASTER = 4.0
RATES = 48
FEWEST, MOST = 0.02, 4.0
"""Touches in all the time, and until the first reading: rates beyond these give the same readings."""
ROUNDS = 400
"""Until what is learnt changes no more: stopped early, it finds differences among pages that have none."""
KINDS = 20
"""Octaves of heat that count as different kinds: the hottest ones."""
FAR_BELOW, NEVER = np.iinfo(np.intp).min, 1e-300


def reading_times(first: float, end: float) -> Floats:
    """Return when to read bits that were cleared at 0: at ``first``, and so on until ``end``."""
    times = [first]
    while times[-1] * FASTER < end:
        times.append(times[-1] * FASTER)
    return np.array([*times, end]) if first < end else np.array([end])


def expected_touches(first: Indexes, times: Floats, before: Matrix) -> Matrix:
    """Return how many touches until ``times[-1]`` are to be expected, in the shape of ``first``.

    ``first``: index of the first of ``times`` at which the bit was set, ``len(times)`` where it never was.
    ``before``: how hot the pages were known to be, in any unit; 0 where that is not known.
    """
    kind, answers = kinds(before), len(times) + 1
    key = kind * answers + first
    pages = np.bincount(key.ravel(), minlength=(KINDS + 1) * answers).reshape(-1, answers)
    expected: Matrix = touches_by_answer(pages, times).ravel()[key]
    return expected


def touches_by_answer(pages: npt.NDArray[np.integer], times: Floats) -> Matrix:
    """Return what ``expected_touches`` does, by kind and answer, for so many ``pages`` [kinds, answers].

    The last answer, no touch at all, has 0.
    """
    touches = np.zeros(pages.shape)
    touches[:, :-1] = _mean_rates(times, pages[:, :-1].astype(np.float64)) * times[-1]
    return touches


def kinds(before: Floats) -> Indexes:
    """Return which pages were about as hot: 0 where that is not known, else by octave, up to ``KINDS``."""
    kind = np.zeros(before.shape, np.intp)
    known = before > 0
    octave = np.floor(np.log2(before[known])).astype(np.intp)
    kind[known] = np.maximum(octave - octave.max(initial=FAR_BELOW) + KINDS, 1)
    return kind


def _mean_rates(times: Floats, pages: Matrix) -> Matrix:
    """Return the mean rate of pages [kinds, readings] of which there are so many.

    Only pages with a touch are asked: of the others most are not in use.
    """
    rates = np.geomspace(FEWEST / times[-1], MOST / times[0], RATES)
    still_off = np.exp(-np.outer(np.append(0.0, times), rates))
    likely = (still_off[:-1] - still_off[1:]) / (1 - still_off[-1])
    share = np.full((len(pages), RATES), 1 / RATES)
    native.learn_shares(likely.T.copy(), np.ascontiguousarray(pages), share, RATES, ROUNDS)
    mean: Matrix = ((share * rates) @ likely.T) / np.maximum(share @ likely.T, NEVER)
    return mean
