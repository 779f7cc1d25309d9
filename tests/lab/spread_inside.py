"""Deals a process's memory out over two nodes by move_pages(2): PID NEAR FAR SHARE, the far node's share.

By 2 MiB, as evenly over the addresses as it goes: huge pages move as a whole.
"""

import sys
from pathlib import Path

import numpy as np

from vmplace import native
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES


def deal(pid: int, near: int, far: int, share: float) -> None:
    start, end = max(mappings(pid), key=lambda span: span[1] - span[0])
    hvas = np.arange(start, end, PAGE_BYTES, dtype=np.uint64)
    status = np.zeros(len(hvas), np.int32)
    native.page_nids(pid, hvas, status)
    hvas = hvas[status >= 0]
    _, block = np.unique(hvas // np.uint64(HUGE_BYTES), return_inverse=True)
    is_far = np.floor((block + 1) * share) > np.floor(block * share)
    for nid, mine in ((far, hvas[is_far]), (near, hvas[~is_far])):
        native.move_pages(pid, mine, np.full(len(mine), nid, np.int32), np.zeros(len(mine), np.int32))


def mappings(pid: int) -> list[tuple[int, int]]:
    spans = [line.split()[0].split("-") for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return [(int(start, 16), int(end, 16)) for start, end in spans]


if __name__ == "__main__":
    pid, near, far = (int(arg) for arg in sys.argv[1:4])
    deal(pid, near, far, float(sys.argv[4]))
