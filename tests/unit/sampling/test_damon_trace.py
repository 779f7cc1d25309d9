"""What DAMON's trace point tells, by records as perf_event_open(2) lays them out."""

import struct

import numpy as np
import pytest

from tests.unit.sampling.damon_files import FORMAT
from vmplace.errors import OutsideError
from vmplace.sampling.damon_trace import Aggregation, parse_trace_layout

LAYOUT = parse_trace_layout(FORMAT)
OLD = FORMAT.replace("\tfield:unsigned int age;\toffset:44;\tsize:4;\tsigned:0;\n", "")
Region = tuple[int, int, int]
"""Start, end, and in how many samples it was touched."""


def record(region: Region, count: int, at_ns: int, kind: int = 9) -> bytes:
    """Return a record: the time, and the raw data of the trace point with its size."""
    start, end, touched = region
    reported = struct.pack("<HBBiQI4xQQII", 767, 0, 0, 99, 0, count, start, end, touched, 3) + bytes(4)
    body = struct.pack("<QI", at_ns, len(reported)) + reported
    return struct.pack("<IHH", kind, 0, 8 + len(body)) + body


def reported(*regions: Region, at_ns: int, of: int | None = None) -> list[bytes]:
    """Return an aggregation's records as they are written: by ascending addresses."""
    return [record(region, of or len(regions), at_ns + i) for i, region in enumerate(regions)]


def newest(*records: bytes, layout: str = FORMAT, cut: int = 0) -> Aggregation | None:
    content = b"".join(reversed(records))
    return parse_trace_layout(layout).newest(np.frombuffer(content[: len(content) - cut], np.uint8))


BEFORE = reported((0, 8, 1), (8, 16, 2), at_ns=100)
LAST = reported((0, 4, 0), (4, 8, 5), (8, 16, 0), (32, 64, 1), at_ns=200)


@pytest.mark.parametrize("layout", [FORMAT, OLD], ids=["with age", "without"])
def test_the_newest_aggregation_is_what_was_touched_in_it(layout: str):
    found = newest(*BEFORE, *LAST, layout=layout)
    assert found and (found.starts.tolist(), found.ends.tolist()) == ([32, 4], [64, 8])
    assert found.ended_ns == 203


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_one_that_is_being_written_is_not_the_newest_yet(missing: int):
    found = newest(*BEFORE, *LAST[:-missing])
    assert found and found.ended_ns == 101 and sorted(found.starts.tolist()) == [0, 8]


def test_one_whose_first_records_were_written_over_is_none():
    assert newest(*LAST[1:]) is None
    assert newest(*LAST, cut=8) is None
    assert newest(*BEFORE[1:], *LAST[:-1]) is None


def test_a_guest_that_touched_nothing_was_looked_at():
    found = newest(*reported((0, 8, 0), (8, 16, 0), at_ns=500))
    assert found and found.ended_ns == 501 and not len(found.starts)


def test_a_guest_of_one_region_is_reported_each_time():
    found = newest(*reported((0, 8, 1), at_ns=100), *reported((0, 8, 0), at_ns=200))
    assert found and found.ended_ns == 200 and not len(found.starts)


def test_records_of_another_kind_or_none_end_what_is_read():
    assert newest() is None
    assert newest(record((0, 8, 1), 1, 1, kind=5)) is None
    assert newest(*LAST, record((0, 8, 1), 1, 1, kind=5)) is None
    found = newest(record((0, 8, 1), 1, 1, kind=5), *LAST)
    assert found and found.ended_ns == 203


@pytest.mark.parametrize(
    "text",
    [
        "",
        FORMAT.replace("ID: 767", "ID: x"),
        FORMAT.replace("nr_accesses;", "touches;"),
        FORMAT.replace("offset:24", "offset:9999"),
        FORMAT.replace("offset:24", "offset:99999"),
        FORMAT.replace("offset:40;\tsize:4", "offset:40;\tsize:3"),
    ],
)
def test_a_layout_that_is_not_understood_is_refused(text: str):
    with pytest.raises(OutsideError):
        parse_trace_layout(text)
