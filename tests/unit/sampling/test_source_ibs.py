"""What samples say of pages, and IBS on a host that lacks it."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from vmplace.errors import UnsupportedHostError
from vmplace.sampling.page_frames import FrameChunk
from vmplace.sampling.served import Served
from vmplace.sampling.source import SourceSetup
from vmplace.sampling.source_ibs import (
    COUNT_OPS,
    L3_MISS_ONLY,
    PMU,
    IbsSource,
    _by_row,
    _hits,
    _in_order,
    _migrated_pages,
    _touched_frames,
    _whole_folios,
    event_config,
)
from vmplace.topology.host import HostTopology


def test_a_host_without_the_pmu_gets_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedHostError, match="no ibs_op PMU"):
        IbsSource(SourceSetup(HostTopology((), {}), sysfs=tmp_path))


def test_only_misses_are_sampled_where_the_cpu_can_filter(tmp_path: Path) -> None:
    assert event_config(tmp_path) == COUNT_OPS
    (tmp_path / PMU / "format").mkdir(parents=True)
    (tmp_path / PMU / "format/l3missonly").write_text("config:16\n")
    assert event_config(tmp_path) == COUNT_OPS | L3_MISS_ONLY


def frames(*pfns: int) -> npt.NDArray[np.uint64]:
    return np.array(pfns, np.uint64)


def test_samples_go_to_the_node_of_their_cpu_and_stores_count_as_writes() -> None:
    first = frames(7, 9, 0), np.array([0, 1, 0], np.int8), np.array([False, True, False])
    second = frames(7, 7), np.array([2, 0], np.int8), np.array([True, False])
    touched, written = _by_row([first, second], rows=3)
    assert [row.tolist() for row in touched] == [[7], [9], [7]]
    assert [row.tolist() for row in written] == [[], [9], [7]]


def test_hits_of_caches_behind_the_first_touch_no_page() -> None:
    served = np.array([Served.L1, Served.CACHE, Served.REMOTE, Served.UNKNOWN])
    addresses = np.array([0x7008, 0x8008, 0x9008, 0xA008], np.uint64)
    assert _touched_frames(addresses, served).tolist() == [7, 0, 9, 10]


def test_each_sample_of_a_page_counts_for_its_node() -> None:
    first = frames(9, 0, 7), np.array([1, 1, 0], np.int8), np.zeros(3, np.bool_)
    second = frames(7, 40), np.array([2, 0], np.int8), np.zeros(2, np.bool_)
    # Page 2 is absent; no page of the guest has frame 9, and two have frame 7 (KSM).
    chunk = FrameChunk(first=100, pfns=frames(40, 7, 0, 7), heads=frames(0, 0, 0, 0))
    hits = _hits(chunk, _in_order([first, second]))
    assert hits.pages.tolist() == [100, 101, 101, 103, 103]
    assert hits.rows.tolist() == [0, 0, 2, 0, 2]


def test_a_sampled_tail_touches_its_whole_folio_and_no_page_that_is_absent() -> None:
    chunk = FrameChunk(first=0, pfns=frames(512, 513, 0, 40, 514), heads=frames(512, 512, 0, 40, 512))
    assert _whole_folios(chunk, frames(513)).tolist() == [0, 1, 4]
    assert _whole_folios(chunk, frames(41)).tolist() == []


def test_moved_pages_are_those_that_the_kernel_counts(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("pgmigrate_fail 3\npgmigrate_success 4711\n")
    assert _migrated_pages(tmp_path / "vmstat") == 4711
