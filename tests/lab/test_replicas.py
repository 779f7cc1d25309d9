"""Replicas in a host that is short of memory, and in one with automatic NUMA balancing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.machine import LabHost, boot_host

pytestmark = pytest.mark.lab

FILES = ("replicas_inside.py", "sampling_inside.py")
NPAGES = 16384
ALL_MIB = 64
"""A copy of each page on the other one of two nodes."""


@pytest.fixture
def host() -> Iterator[LabHost]:
    """Yield a host of its own for each test: what was swapped or merged once is no start for another try."""
    files = {f"/root/{name}": Path(__file__).with_name(name) for name in FILES}
    with boot_host("n2", files=files) as booted:
        yield booted


BUSY = 6
"""KVM_PLACEMENT_BUSY (kvm-patches/kvm_placement.h)."""


def asked(host: LabHost, command: str) -> Any:
    return json.loads(host.run(["python3", "/root/replicas_inside.py", command], timeout=600).stdout)


@pytest.mark.slow
def test_numa_balancing_leaves_replicas_alone(host: LabHost) -> None:
    seen = asked(host, "balancing")
    at_first, later = seen["mib"]
    assert seen["replicated"] > 0.99 * NPAGES and at_first > 0.95 * ALL_MIB
    assert later > 0.99 * at_first
    # The control: it went on, and moved what it could get at.
    assert seen["moved"] > 0
    assert seen["intact"]


def test_replicas_are_given_back_before_the_host_swaps(host: LabHost) -> None:
    seen = asked(host, "pressure")
    steps = seen["steps"]
    assert seen["replicated"] > 0.99 * NPAGES and steps[0][1] > 0.95 * ALL_MIB
    with_replicas = [step for step in steps if step[1] > 0.05 * ALL_MIB]
    # Reclaim takes from all it finds at once: a page or two of others goes with the last of the copies.
    assert all(pages_in + pages_out <= 0.001 * NPAGES for _, _, pages_in, pages_out in with_replicas)
    # The control: there was pressure enough to swap in the end.
    assert steps[-1][3] > 0
    assert seen["intact"]


@pytest.mark.slow
def test_pages_that_ksm_merges_get_no_copies_or_lose_them_and_are_intact(host: LabHost) -> None:
    seen = asked(host, "ksm")
    assert seen["merged_first"] > 0.9 * NPAGES
    assert set(seen["statuses"]) == {str(BUSY)}
    assert seen["replicated"] == NPAGES - 1
    assert seen["merged_with_replicas"] > 0.9 * NPAGES and seen["replica_mib"] < 0.05 * ALL_MIB
    assert seen["intact_merged"] and seen["intact_replicated"]
