"""The table of `make fuzz` counts what was fed, and shows what was bad; logs are those of Atheris."""

import pytest

from tests.fuzz.table import HEADING, MARK, row

ROUND = """INFO: seed corpus: files: 3 min: 7b max: 24b total: 51b rss: 93Mb
#4\tINITED cov: 31 ft: 52 corp: 3/51b exec/s: 0 rss: 93Mb
#512\tpulse  cov: 31 ft: 60 corp: 9/131b lim: 8 exec/s: 256 rss: 94Mb
#{last}\tDONE   cov: 33 ft: 71 corp: 12/180b lim: 8 exec/s: 700 rss: 95Mb
"""
RAISED = """ === Uncaught Python exception: ===
MemoryError: cpus=0-9999999999
Traceback (most recent call last):
"""
SLOW = "==77== ERROR: libFuzzer: timeout after 6 seconds\n"


def test_a_row_counts_the_inputs_of_all_rounds():
    log = "".join(f"{MARK}{last}\n" + ROUND.format(last=last) for last in (20_000, 5_000))
    assert row("cpulist", log, 12.34, 0).split() == ["cpulist", "25000", "12.3", "s", "0"]


@pytest.mark.parametrize(("end", "shown"), [(RAISED, "MemoryError: cpus="), (SLOW, "timeout after 6")])
def test_a_row_shows_what_was_bad(end: str, shown: str):
    reported = row("cpulist", MARK + "20000\n" + ROUND.format(last=900) + end, 1.0, 1)
    assert reported.split()[1] == "900"
    assert shown in reported
    assert reported.index("1: ") == HEADING.index("bad")


def test_a_fuzzer_that_was_killed_is_bad_though_it_tells_nothing():
    assert row("cpulist", "", 1.0, -9).endswith("1: see its log")
