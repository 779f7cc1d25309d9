"""Shares follow the weakest path from the workers (BWAP, equation 5)."""

from dataclasses import replace
from pathlib import Path

import pytest

from vmplace.topology.bandwidth import bandwidth_weights
from vmplace.topology.sysfs import read_host

HOSTS = Path(__file__).parents[2] / "data/hosts"
FOUR = read_host(HOSTS / "16amd64-4n8c")


def test_equal_paths_give_equal_shares():
    equal = replace(FOUR, distances=dict.fromkeys(FOUR.distances, 10))
    assert bandwidth_weights(equal, (0, 1)) == dict.fromkeys(range(4), 0.25)


def test_measured_bandwidth_counts_by_the_weakest_worker():
    # BWAP equation 5: minbw = min over workers {0, 1}: 6, 6, 4, 2 of 18.
    rows = {0: (10, 6, 4, 2), 1: (6, 10, 4, 6)}
    known = {(cpu, mem): rows[cpu][mem] for cpu in rows for mem in range(4)}
    shares = bandwidth_weights(replace(FOUR, bandwidths=known), (0, 1))
    assert shares == pytest.approx({0: 6 / 18, 1: 6 / 18, 2: 4 / 18, 3: 2 / 18})


def test_distance_stands_in_for_unknown_bandwidth():
    shares = bandwidth_weights(FOUR, (0,))
    assert shares[0] / shares[3] == pytest.approx(22 / 10)
    assert sum(shares.values()) == pytest.approx(1)


def test_firmware_figures_reach_other_paths_by_distance():
    host = read_host(HOSTS / "24amd64-3n4c-cxl")
    # From node 1: node 0 is 80 GB/s x 10/21, node 1 is 80, node 2 is 20 x 14/24 (node 0 is its best).
    worth = {0: 80 * 10 / 21, 1: 80, 2: 20 * 14 / 24}
    total = sum(worth.values())
    assert bandwidth_weights(host, (1,)) == pytest.approx({nid: w / total for nid, w in worth.items()})


def test_nodes_without_memory_get_no_share():
    assert bandwidth_weights(read_host(HOSTS / "8amd64-2n4c-memoryless"), (1,)) == {0: 1.0}


def test_only_wanted_nodes_share():
    assert bandwidth_weights(FOUR, (0, 1), mem_nids=(0, 1)) == {0: 0.5, 1: 0.5}


@pytest.mark.parametrize(("workers", "mem_nids"), [((), None), ((0,), (9,))])
def test_nobody_to_share_is_refused(workers: tuple[int, ...], mem_nids: tuple[int, ...] | None):
    with pytest.raises(ValueError, match="at least one"):
        bandwidth_weights(FOUR, workers, mem_nids)
