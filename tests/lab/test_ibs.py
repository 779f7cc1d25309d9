"""Samples of IBS as perf in the emulated host tells them, against the code and the lines of a known loop.

The loop runs on node 0; its code and data are on node 1, at twice the distance.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.machine import LabHost, boot_host

pytestmark = [pytest.mark.lab, pytest.mark.slow]

HERE = Path(__file__).parent
# As modules inside, too.
FILES = {f"/root/tests/lab/{name}": HERE / name for name in ("ibs_inside.py", "sampling_inside.py")}
INSIDE = "/root/tests/lab/ibs_inside.py"
KINDS = ["process", "kvm"]
CACHE_WINDOW = 4096
# AMD64 Architecture Programmer's Manual, volume 2, chapter 13: MSR C001_1030.
COMPLETE, IC_MISS, PHYSICAL_VALID = 1 << 50, 1 << 51, 1 << 52
LATENCY_SHIFT, LATENCY_MASK = 32, 0xFFFF
# docs/system/i386/ibs.rst of the series: 100 counts, in proportion to the distance.
REMOTE_LATENCY = 200
# union perf_mem_data_src (linux/perf_event.h): mem_lvl.
HIT, L1, REMOTE_RAM = 0x02 << 5, 0x08 << 5, 0x100 << 5
LEVELS = 0x3FFF << 5


@pytest.fixture(scope="module")
def plain() -> Iterator[LabHost]:
    with boot_host("n2", files=FILES) as booted:
        yield booted


@pytest.fixture(scope="module")
def cached() -> Iterator[LabHost]:
    with boot_host("n2", files=FILES, cache_window=CACHE_WINDOW) as booted:
        yield booted


def inside(host: LabHost, *words: str) -> dict[str, Any]:
    argv = ["numactl", "-N", "0", "-m", "1", "python3", INSIDE, *words]
    reported: dict[str, Any] = json.loads(host.run(argv, timeout=180).stdout)
    return reported


def fetches_of_the_loop(host: LabHost, kind: str) -> list[tuple[int, int]]:
    """Return control and physical address of the samples of the loop; 8 million fetches are 128 samples."""
    reported = inside(host, "fetch", kind)
    found = [(control, phys) for control, linear, phys in reported["samples"] if linear == reported["linear"]]
    # How much the kernel does besides depends on how busy the machine outside is.
    assert len(found) > 60
    assert {phys for _, phys in found} == {reported["physical"]}
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_fetch_samples_have_the_addresses_of_the_code(plain: LabHost, kind: str) -> None:
    for control, _ in fetches_of_the_loop(plain, kind):
        assert control & (COMPLETE | PHYSICAL_VALID) == COMPLETE | PHYSICAL_VALID
        assert control & IC_MISS
        assert control >> LATENCY_SHIFT & LATENCY_MASK == REMOTE_LATENCY


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_of_a_loop_is_in_the_cache(cached: LabHost, kind: str) -> None:
    controls = [control for control, _ in fetches_of_the_loop(cached, kind)]
    assert sum(bool(control & IC_MISS) for control in controls) < 0.02 * len(controls)


def share_of(reported: dict[str, Any], level: int) -> float:
    """Return the share of the loads in memory that were served from there."""
    sources = reported["sources"]
    loads: int = sum(count for _, count in sources)
    there: int = sum(count for source, count in sources if source & LEVELS == level)
    # 32 million ops, one in four a load, are 128 samples.
    assert loads > 60
    return there / loads


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_that_is_loaded_over_and_over_is_a_hit(cached: LabHost, kind: str) -> None:
    assert share_of(inside(cached, "op", kind, "0"), HIT | L1) > 0.98


@pytest.mark.parametrize("kind", KINDS)
def test_lines_that_are_loaded_once_come_from_memory(cached: LabHost, kind: str) -> None:
    assert share_of(inside(cached, "op", kind, "64"), HIT | REMOTE_RAM) > 0.98


def test_without_a_window_all_loads_come_from_memory(plain: LabHost) -> None:
    assert share_of(inside(plain, "op", "kvm", "0"), HIT | REMOTE_RAM) == 1
