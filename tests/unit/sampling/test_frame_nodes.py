"""Frames to nodes by memory blocks."""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from tests.unit.sampling.guest_process import frame_of
from vmplace.sampling.frame_nodes import SEVERAL, UNKNOWN, read_frame_nodes


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Give blocks of 128 MiB: 0-1 on node 0, 2 on nodes 0 and 5, 4 on node 5; 3 is a hole."""
    (tmp_path / "devices/system/memory").mkdir(parents=True)
    (tmp_path / "devices/system/memory/block_size_bytes").write_text("8000000\n")
    for nid, blocks in ((0, (0, 1, 2)), (5, (2, 4))):
        for block in blocks:
            (tmp_path / f"devices/system/node/node{nid}/memory{block}").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("pfn", "index"),
    [(0, UNKNOWN), (1, 0), (65535, 0), (65536, SEVERAL), (98304, UNKNOWN), (131072, 1), (1 << 40, UNKNOWN)],
)
def test_a_frame_is_on_the_node_that_lists_its_block(sysfs: Path, pfn: int, index: int) -> None:
    nodes = read_frame_nodes((0, 5), sysfs)
    assert nodes.node_index(np.array([pfn], np.uint64)).tolist() == [index]


@pytest.mark.skipif(os.geteuid() != 0, reason="frame numbers need root (CAP_SYS_ADMIN)")
def test_frames_of_this_machine_are_where_the_kernel_says() -> None:
    with mmap.mmap(-1, 64 * 4096) as area:
        area[:] = bytes(len(area))
        view = ctypes.c_char.from_buffer(area)
        hva = ctypes.addressof(view)
        frames = np.array([frame_of(os.getpid(), hva + 4096 * i) for i in range(64)], np.uint64)
        maps = Path("/proc/self/numa_maps").read_text()
        line = next(line for line in maps.splitlines() if line.startswith(f"{hva:x} "))
        del view
    reported = {int(field[1:].split("=")[0]) for field in line.split() if field.startswith("N")}
    nids = tuple(sorted(int(p.name[4:]) for p in Path("/sys/devices/system/node").glob("node[0-9]*")))
    found = read_frame_nodes(nids).node_index(frames)
    assert {nids[i] for i in found.tolist() if i >= 0} == reported
