"""What a source would show of a trace: all accesses, reduced to what the real sensor sees.

full: every DRAM access.  ad: node-rooted accessed and dirty bits, read some times before they are cleared
(model/touch_rates.py).  hints: one page in ``HINT_PAGES`` is unmapped per look; the first access tells its
vCPU, and how soon it came tells how hot the page is.  ad+hints: bits, which tell the same of each page and
node that such a fault tells of a few; vCPUs and code, which faults tell alone, do not matter here.  ibs: one
of ``period`` DRAM accesses, read or write.  ibs-hits: a sample every ``period`` cycles of a vCPU, of which
those of memory accesses count, whatever cache served them, as Carrefour takes them (ASPLOS'13, section
3.3.1).  ad+ibs, ad+hints+ibs: who touched and wrote a page by bits, how
hot it is by samples, too (model/fusion.py).  Each view's heat is scaled to the DRAM accesses of each node,
which counters tell every source.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from vmplace.errors import OutsideError, WrongUsageError
from vmplace.model.metrics import Matrix
from vmplace.model.touch_rates import expected_touches, reading_times
from vmplace.outside import whole
from vmplace.policy.host_view import Bools, Indexes, row_sums
from vmplace.simulate.look import Look
from vmplace.simulate.watch_costs import HINT_FAULT_NS, SAMPLE_NS, SET_BIT_NS

CLOCK_SCALE = 50
"""How many times longer real runs last than traces do (docs/simulate.md): clocks and rates of the papers
are scaled by it, so that a trace is looked at as often as the program would be."""
IBS_PERIOD = 39_000 // CLOCK_SCALE
"""DRAM accesses per sample: Carrefour's 130,000 cycles (section 3.3) at Streamcluster's IPC of 0.30."""
IBS_CYCLES = 65_000
"""Cycles per sample: Carrefour's higher rate (section 3.3.1), all the time."""
CLOCK_GHZ, MEMORY_SHARE = 2.3, 1 / 3
"""Of Carrefour's machine A; one operation in three accesses memory (guest_run.py, ACCESS_NS)."""
FIRST_READING_NS = 6.25e6 / CLOCK_SCALE
"""Bits are read for the first time a sixteenth of the agent's shortest look after they were cleared."""
FULL_PERIOD = 16
"""DRAM accesses per sample that the agent is shown under source full, at no price.  Of each access,
samples took half of all CPU time (streamcluster beside redis)."""
HINT_PAGES = 8
"""Of so many pages one is unmapped per look."""
HINT_CEILING = 64.0
"""The delay of the first access does not distinguish more accesses per look than this."""


@dataclass(frozen=True)
class SourceView:
    """What a source shows: estimated DRAM accesses [P, N], and to which pages it saw a write.

    ``read_ratio``: share of reads among what was seen; None if no written page can go unseen.
    ``samples[P, N]``: how many observations the heat rests on, where these are few; else None.  ``certain``:
    the samples are another source's than the heat's, which is zero only where nothing was touched.
    ``vcpu_ns`` and ``flushes``: what it cost the guest's vCPUs to be seen so, and how often all of them
    waited for a flush of TLBs.  ``full`` is a bound, which costs nothing.
    """

    heat: Matrix
    written: Bools
    read_ratio: float | None = None
    samples: Matrix | None = None
    certain: bool = False
    vcpu_ns: float = 0.0
    flushes: int = 0

    def held_up_ns(self, parallelism: float, flush_ns: float) -> float:
        """Return for how long the guest was held up, of the trace's time: it is looked at more often."""
        return (self.vcpu_ns / max(parallelism, 1.0) + self.flushes * flush_ns) / CLOCK_SCALE


Source = Callable[[Look, np.random.Generator], SourceView]


def looked(source: Source, look: Look, chance: np.random.Generator) -> SourceView:
    """Return what ``source`` shows; it is asked only for pages near which something happened."""
    seen, npages = source(look.near, chance), len(look.before)
    written = np.zeros(npages, np.bool_)
    written[look.rows] = seen.written
    samples = None if seen.samples is None else _spread(seen.samples, look.rows, npages)
    return replace(seen, heat=_spread(seen.heat, look.rows, npages), written=written, samples=samples)


def _spread(some: Matrix, rows: Indexes, npages: int) -> Matrix:
    """Return ``some`` at ``rows`` of ``npages``, and zeros elsewhere."""
    whole = np.zeros((npages, some.shape[1]))
    whole[rows] = some
    return whole


def see_full(look: Look, chance: np.random.Generator) -> SourceView:
    """Return the truth."""
    return SourceView(look.dram, row_sums(look.stores) > 0)


def see_bits(look: Look, chance: np.random.Generator) -> SourceView:
    """Return accessed and dirty bits, and how hot pages are by how soon their bits were seen."""
    times = reading_times(FIRST_READING_NS, look.span_ns)
    # A bit is set by the first touch: after this many, were they counted in fractions.
    due = chance.exponential(1.0, look.touches.shape)
    first = np.zeros(due.shape, np.intp)
    for time in times:
        first += look.touches_until(time) < due
    dirty = chance.random(due.shape) < _chance_of_any(look.stores)
    heat = expected_touches(first, times, look.before)
    cost = SET_BIT_NS * float(np.count_nonzero(first < len(times)))
    return SourceView(_scaled(heat, look), row_sums(dirty.astype(np.float64)) > 0, vcpu_ns=cost, flushes=1)


def see_idle(look: Look, chance: np.random.Generator) -> SourceView:
    """Refuse: accessed bits of the host's own page tables tell of no node, and these policies need them."""
    raise WrongUsageError("source idle shows no nodes", hint="it is for policies agent:NAME")


def see_hints(look: Look, chance: np.random.Generator) -> SourceView:
    """Return what the faults on a few unmapped pages tell: a node, and a heat from the delay."""
    nodes, counts, armed = _hints(look, chance)
    heat = np.zeros_like(look.dram)
    heat[np.arange(len(counts)), nodes] = counts * HINT_PAGES
    # A fault tells whether its access wrote.
    wrote = chance.random(len(counts)) < row_sums(look.stores) / np.maximum(row_sums(look.touches), 1e-9)
    ratio = 1 - float((wrote & armed).sum()) / max(int(armed.sum()), 1)
    samples, cost = (heat > 0).astype(np.float64), HINT_FAULT_NS * float(armed.sum())
    return SourceView(_scaled(heat, look), wrote & armed, ratio, samples, vcpu_ns=cost, flushes=1)


def see_samples(look: Look, chance: np.random.Generator, period: int = IBS_PERIOD) -> SourceView:
    """Return samples of one access in ``period``: most writes go unseen, as they do on real hosts."""
    dram, stores = look.dram, look.stores
    sampled = chance.poisson(dram / period).astype(np.float64)
    writes = chance.binomial(sampled.astype(np.int64), np.clip(stores / np.maximum(dram, 1e-9), 0, 1))
    return _sampled(look, sampled, writes)


def see_hits(look: Look, chance: np.random.Generator, period: int = IBS_CYCLES) -> SourceView:
    """Return samples of all accesses, hits of caches among them: one every ``period`` cycles of a vCPU."""
    taken = look.vcpu_ns * CLOCK_GHZ * MEMORY_SHARE * CLOCK_SCALE / period
    hits, stores = look.hits, look.stores
    sampled = chance.poisson(hits * (taken / max(float(hits.sum()), 1.0))).astype(np.float64)
    writes = chance.binomial(sampled.astype(np.int64), np.clip(stores / np.maximum(hits, 1e-9), 0, 1))
    return _sampled(look, sampled, writes)


def see_bits_and_samples(look: Look, chance: np.random.Generator, period: int = IBS_PERIOD) -> SourceView:
    """Return bits, and samples beside them."""
    who, often = see_bits(look, chance), see_samples(look, chance, period)
    cost = who.vcpu_ns + often.vcpu_ns
    written = who.written | often.written
    return replace(who, written=written, samples=often.samples, certain=True, vcpu_ns=cost)


def _sampled(look: Look, sampled: Matrix, writes: Indexes) -> SourceView:
    """Return what so many samples of each page and node show, so many of which wrote."""
    total, wrote = float(sampled.sum()), row_sums(writes.astype(np.float64))
    ratio = 1 - float(wrote.sum()) / max(total, 1.0)
    return SourceView(_scaled(sampled, look), wrote > 0, ratio, sampled, vcpu_ns=SAMPLE_NS * total)


def _chance_of_any(expected: Matrix) -> Matrix:
    chance: Matrix = -np.expm1(-expected)
    return chance


def _hints(look: Look, chance: np.random.Generator) -> tuple[Indexes, Matrix, Bools]:
    """Return each page's node of the first access, accesses that its delay tells, whether it faulted."""
    touches = look.touches
    total = row_sums(touches)
    armed = chance.random(len(total)) * HINT_PAGES < 1.0
    delay = chance.exponential(1.0, len(total)) / np.maximum(total, 1e-9)
    faulted = armed & (delay < 1.0)
    counts = np.where(faulted, np.minimum(1 / np.maximum(delay, 1e-9), HINT_CEILING), 0.0)
    draw = chance.random(len(total)) * total
    nodes, rows = np.zeros(len(total), np.intp), np.flatnonzero(faulted)
    before = (np.cumsum(touches[rows], axis=1) <= draw[rows, None]).sum(axis=1)
    nodes[rows] = np.minimum(before, touches.shape[1] - 1)
    return nodes, counts, faulted


def _scaled(heat: Matrix, look: Look) -> Matrix:
    """Scale the heat of each node to the DRAM accesses that its CPUs' counters tell."""
    counted, total = (np.ones(len(heat)) @ one for one in (look.dram, heat))
    scaled: Matrix = heat * np.divide(counted, total, out=np.zeros_like(total), where=total > 0)
    return scaled


SAMPLING: Mapping[str, Callable[..., SourceView]] = {
    "ibs": see_samples,
    "ibs-hits": see_hits,
    "ad+ibs": see_bits_and_samples,
    "ad+hints+ibs": see_bits_and_samples,
}
"""Those that take one sample per so many accesses: ``period``."""

SOURCES: Mapping[str, Source] = {
    "full": see_full,
    "ad": see_bits,
    "idle": see_idle,
    "hints": see_hints,
    "ad+hints": see_bits,
    **SAMPLING,
}


MOST_PERIOD = 1 << 32
"""Beyond all counts of a trace; hardware counts to 2^27 (IBS: 2^20 times 16, and its extensions)."""


def wants_hits(source: Source) -> bool:
    """Return whether the source sees accesses that caches serve."""
    return (source.func if isinstance(source, partial) else source) is see_hits


def source_named(text: str) -> Source:
    """Return the source of that name; ``ibs:N`` samples one DRAM access in N, ``ibs-hits:N`` each N cycles.

    Raises WrongUsageError.
    """
    name, colon, period = text.partition(":")
    if name in SAMPLING and colon:
        return partial(SAMPLING[name], period=_period_of(name, period))
    if name not in SOURCES or colon:
        known = ", ".join([*SOURCES, *(f"{one}:PERIOD" for one in SAMPLING)])
        raise WrongUsageError(f"there is no source {text!r}", hint=f"known: {known}")
    return SOURCES[name]


def _period_of(name: str, text: str) -> int:
    try:
        return whole(text, least=1, most=MOST_PERIOD, what=f"{name}'s period")
    except OutsideError as err:
        usual = IBS_CYCLES if SAMPLING[name] is see_hits else IBS_PERIOD
        raise WrongUsageError(f"--source: {err}", hint=f"for example {name}:{usual}") from err


@dataclass(frozen=True)
class Sensor:
    """What an agent's source reads: node bits, samples of one DRAM access in ``period``, both, or neither.

    Neither: idle page tracking, which knows no nodes.  ``free``: samples cost the guest nothing.
    """

    name: str
    bits: bool = False
    period: int | None = None
    free: bool = False


def sensor_of(source: Source) -> Sensor:
    """Return the agent's source that sees what ``source`` shows; raises WrongUsageError without one."""
    function = source.func if isinstance(source, partial) else source
    period = source.keywords["period"] if isinstance(source, partial) else IBS_PERIOD
    if function is see_bits:
        return Sensor("kvm", bits=True)
    if function is see_idle:
        return Sensor("idle")
    if function is see_samples:
        return Sensor("ibs", period=period)
    if function is see_bits_and_samples:
        return Sensor("kvm+ibs", bits=True, period=period)
    if function is see_full:
        # Nearly all that a sensor could tell: who touched and wrote each page, and how often.
        return Sensor("kvm+ibs", bits=True, period=FULL_PERIOD, free=True)
    raise WrongUsageError(
        "the agent has no source that sees this", hint="--source full, ad, ibs, ad+ibs or idle"
    )
