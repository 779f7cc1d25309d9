"""What bits and samples of the same pages show together."""

import numpy as np

from vmplace.simulate.learnt import Learnt
from vmplace.simulate.look import Look, Part, WindowTruth
from vmplace.simulate.source_views import CLOCK_SCALE, HINT_PAGES, SourceView, looked, source_named
from vmplace.simulate.trace import NEAR_PAGES
from vmplace.simulate.watch_costs import HINT_FAULT_NS, SAMPLE_NS, SET_BIT_NS

NPAGES = 2048
HERE = np.zeros(NPAGES, np.int8)


def truth() -> WindowTruth:
    """Half of the pages are touched by two nodes, one ten times as much; every fourth of these is written."""
    dram = np.zeros((NPAGES, 2))
    dram[::2] = np.array([20_000.0, 2_000.0])
    stores = np.zeros_like(dram)
    stores[::8, 0] = 50.0
    return WindowTruth(dram, dram, stores)


def seen_by(source: str) -> SourceView:
    look = Look([Part(truth(), 1.0, 2e6, 8e6)], np.zeros((NPAGES, 2)))
    return looked(source_named(source), look, np.random.default_rng(5))


def test_to_be_watched_costs_what_each_bit_fault_and_sample_costs() -> None:
    assert (seen_by("full").vcpu_ns, seen_by("full").flushes) == (0.0, 0)
    # Half of the pages, by both nodes: thousands of touches set each bit.
    bits = 2 * (NPAGES // 2)
    assert (seen_by("ad").vcpu_ns, seen_by("ad").flushes) == (SET_BIT_NS * bits, 1)
    faults = seen_by("hints").vcpu_ns / HINT_FAULT_NS
    assert abs(faults - NPAGES / 2 / HINT_PAGES) < 4 * (NPAGES / 2 / HINT_PAGES) ** 0.5
    samples = seen_by("ibs:5000")
    assert samples.samples is not None
    assert (samples.vcpu_ns, samples.flushes) == (SAMPLE_NS * samples.samples.sum(), 0)
    both = seen_by("ad+ibs:5000")
    assert both.vcpu_ns > SET_BIT_NS * bits + 0.9 * samples.vcpu_ns and both.flushes == 1


def test_a_cost_is_shared_by_the_vcpus_and_a_flush_holds_up_all_of_a_longer_time() -> None:
    seen = SourceView(np.zeros((1, 1)), np.zeros(1, np.bool_), vcpu_ns=8000.0, flushes=1)
    assert seen.held_up_ns(4.0, 5000.0) == (2000.0 + 5000.0) / CLOCK_SCALE


def learnt_from(source: str) -> Learnt:
    learnt = Learnt(NPAGES, 2, tuple(np.arange(NPAGES) // size for size in NEAR_PAGES))
    look = Look([Part(truth(), 1.0, 2e6)], learnt.shown)
    learnt.absorb(looked(source_named(source), look, np.random.default_rng(5)), 2e6)
    return learnt


def test_samples_tell_which_node_uses_shared_pages_more_and_bits_that_both_do() -> None:
    heat = learnt_from("ad+ibs:5000").heat(HERE)[::2]
    assert (heat[:, 0] > heat[:, 1]).all() and heat.all()
    assert not learnt_from("ibs:5000").samples[::2].all()  # type: ignore[index]


def test_untouched_pages_beside_hot_ones_have_no_heat() -> None:
    assert not learnt_from("ad+ibs").heat(HERE)[1::2].any()
    # The control: samples alone give each page a part of its block's mean.
    assert learnt_from("ibs").heat(HERE)[1::2].any()


def test_all_written_pages_are_known_by_bits() -> None:
    suspect = learnt_from("ad+ibs:5000").suspect(HERE)
    assert suspect[::8].all() and not suspect[2::8].any()


def test_a_sampler_that_keeps_hits_sees_pages_that_caches_hide() -> None:
    # All pages miss alike; half of them are accessed a hundred times as often, in caches.
    dram = np.full((NPAGES, 2), 10.0)
    hits = dram.copy()
    hits[::2] *= 100
    look = Look(
        [Part(WindowTruth(dram, dram, np.zeros_like(dram), hits), 1.0, 2e6, 8e6)], np.zeros((NPAGES, 2))
    )
    chance = np.random.default_rng(3)
    kept = looked(source_named("ibs-hits"), look, chance).samples
    only_misses = looked(source_named("ibs"), look, chance).samples
    assert kept is not None and only_misses is not None
    # 8 ms of vCPUs at 2.3 GHz, a sample each 65,000 cycles, one in three of memory, 50 times as many.
    assert abs(kept.sum() - 8e6 * 2.3 / 65_000 / 3 * 50) < 300
    assert kept[::2].sum() > 80 * kept[1::2].sum()
    assert only_misses.sum() < kept.sum() / 50
