"""What samples say of pages, and IBS on a host that lacks it."""

from pathlib import Path

import numpy as np
import pytest

from vmplace.errors import UnsupportedHostError
from vmplace.sampling.served import Served
from vmplace.sampling.source import SourceSetup
from vmplace.sampling.source_ibs import (
    COUNT_OPS,
    L3_MISS_ONLY,
    PMU,
    IbsSource,
    _migrated_pages,
    _touched_frames,
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


def test_hits_of_caches_behind_the_first_touch_no_page() -> None:
    served = np.array([Served.L1, Served.CACHE, Served.REMOTE, Served.UNKNOWN])
    addresses = np.array([0x7008, 0x8008, 0x9008, 0xA008], np.uint64)
    assert _touched_frames(addresses, served).tolist() == [7, 0, 9, 10]


def test_moved_pages_are_those_that_the_kernel_counts(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("pgmigrate_fail 3\npgmigrate_success 4711\n")
    assert _migrated_pages(tmp_path / "vmstat") == 4711
