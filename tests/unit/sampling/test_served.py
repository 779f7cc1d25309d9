"""What served sampled accesses, against the perf tool's own words for the same samples."""

import re
from pathlib import Path

import numpy as np

from vmplace.sampling.served import Served, ServedTally, served_by

PERF = Path(__file__).parents[2] / "data/perf"
SAMPLE = re.compile(r"\s([0-9a-f]+) \|OP \w+\|LVL ([^|]+)\|")
# tools/perf/util/mem-events.c, perf_mem__lvl_scnprintf().
WORDS = {
    "L1 hit": Served.L1,
    "L2 hit": Served.CACHE,
    "RAM hit": Served.LOCAL,
    "Remote node, same socket RAM hit": Served.REMOTE,
    "N/A": Served.UNKNOWN,
}


def recorded(name: str) -> list[tuple[int, Served]]:
    """Return union perf_mem_data_src of each sample, and what perf says of it."""
    text = (PERF / name).read_text()
    return [(int(source, 16), WORDS[words]) for source, words in SAMPLE.findall(text)]


def test_the_kind_is_the_one_that_perf_tells() -> None:
    samples = recorded("two-vcpus.samples.txt")
    served = served_by(np.array([source for source, _ in samples], np.uint64))
    assert served.tolist() == [kind for _, kind in samples]
    assert {kind for _, kind in samples} == {Served.L1, Served.LOCAL, Served.REMOTE, Served.UNKNOWN}


def test_only_the_threads_of_the_guest_are_counted() -> None:
    tally = ServedTally((7, 8))
    served = np.array([Served.REMOTE, Served.REMOTE, Served.L1, Served.REMOTE])
    tally.add(served, np.array([200, 220, 0, 999], np.uint64), np.array([7, 8, 7, 9], np.uint64))
    total = tally.total(period=1000, window_ns=5)
    assert total.samples == (1, 0, 0, 2, 0)
    assert total.accesses == (1000, 0, 0, 2000, 0)
    assert total.waited == (0, 0, 0, 420_000, 0)


def test_windows_of_different_periods_add_up() -> None:
    tally = ServedTally((7,))
    tally.add(np.array([Served.LOCAL]), np.array([100], np.uint64), np.array([7], np.uint64))
    both = tally.total(65_536, 10) + tally.total(262_144, 20)
    assert (both.window_ns, both.samples[Served.LOCAL]) == (30, 2)
    assert both.accesses[Served.LOCAL] == 65_536 + 262_144
    assert both.waited[Served.LOCAL] == 100 * (65_536 + 262_144)
