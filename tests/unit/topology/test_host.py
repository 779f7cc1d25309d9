"""Hosts are read as their sysfs trees show them: sparse nids, nodes without CPUs or memory, SMT."""

import os
import shutil
from pathlib import Path

import pytest

from vmplace.errors import UnsupportedHostError, VmplaceError
from vmplace.topology.cpulist import parse_cpulist
from vmplace.topology.sysfs import read_cache_bytes, read_free_bytes, read_host

HOSTS = Path(__file__).parents[2] / "data/hosts"
MEMORY = 16384000 << 10


def test_four_nodes_with_a_diagonal():
    host = read_host(HOSTS / "16amd64-4n8c")
    assert host.nids == (0, 1, 2, 3)
    assert host.distances[0, 3] == 22
    assert host.node(2).cpus == (4, 5)
    assert host.node(1).free_bytes == MEMORY - (1000000 << 10)


def test_sockets_that_have_several_nodes_are_known_where_the_kernel_tells(tmp_path: Path):
    shutil.copytree(HOSTS / "16amd64-4n8c", tmp_path / "sys")
    assert read_host(tmp_path / "sys").sockets is None
    assert not read_host(tmp_path / "sys").has_split_sockets
    for package, cpu in enumerate((0, 2, 4, 6)):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        (topology / "physical_package_id").write_text(f"{package // 2}\n")
    host = read_host(tmp_path / "sys")
    assert host.sockets == 2 and host.has_split_sockets


def test_the_largest_cache_of_a_cpu_is_known_where_the_kernel_tells(tmp_path: Path):
    assert read_cache_bytes(0, tmp_path) == 0
    for index, size in enumerate(("32K", "1024K", "98304K", "junk")):
        folder = tmp_path / f"devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(f"{size}\n")
    assert read_cache_bytes(0, tmp_path) == 96 << 20


def test_nids_may_be_sparse():
    host = read_host(HOSTS / "12amd64-3n6c-sparse")
    assert host.nids == (0, 2, 5)
    assert host.distances == {
        (0, 0): 10, (0, 2): 20, (0, 5): 32,
        (2, 0): 20, (2, 2): 10, (2, 5): 24,
        (5, 0): 32, (5, 2): 24, (5, 5): 10,
    }  # fmt: skip
    assert host.nid_of_cpu(4) == 5


def test_a_node_may_lack_cpus():
    node = read_host(HOSTS / "24amd64-3n4c-cxl").node(2)
    assert (node.cpus, node.memory_bytes) == ((), 2 * MEMORY)


def test_hmat_tells_only_the_best_initiators():
    host = read_host(HOSTS / "24amd64-3n4c-cxl")
    assert host.bandwidths == {(0, 0): 80 * 10**9, (1, 1): 80 * 10**9, (0, 2): 20 * 10**9}
    assert host.latencies[0, 2] == 250


def test_a_node_may_lack_memory():
    host = read_host(HOSTS / "8amd64-2n4c-memoryless")
    assert (host.nids, host.memory_nids) == ((0, 1), (0,))


def test_siblings_share_a_core_and_offline_cpus_are_absent():
    host = read_host(HOSTS / "32amd64-2n8c-smt-offline")
    assert host.smt_siblings[4] == (0, 4)
    assert 7 not in host.smt_siblings
    assert host.nid_of_cpu(7) is None


def test_a_cpu_going_offline_is_left_out(tmp_path: Path):
    # The node's list was read before the CPU left, the list of online CPUs after.
    shutil.copytree(HOSTS / "32amd64-2n8c-smt-offline", tmp_path / "sys", symlinks=True)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-5\n")
    assert read_host(tmp_path / "sys").node(1).cpus == (2, 3)


def test_hugepage_pools_are_per_node():
    pools = read_host(HOSTS / "16amd64-4n8c").node(3).hugepages
    assert [(pool.page_size_bytes, pool.total, pool.free) for pool in pools] == [
        (2 << 20, 192, 192),
        (1 << 30, 0, 0),
    ]


def test_free_memory_alone():
    assert read_free_bytes(3, HOSTS / "16amd64-4n8c") == MEMORY - (3000000 << 10)


def test_a_kernel_without_numa_is_named(tmp_path: Path):
    with pytest.raises(UnsupportedHostError, match="no NUMA nodes"):
        read_host(tmp_path)


def test_nodes_that_come_meanwhile_are_no_wrong_distances(tmp_path: Path):
    shutil.copytree(HOSTS / "12amd64-3n6c-sparse", tmp_path / "sys", symlinks=True)
    (tmp_path / "sys/devices/system/node/node5/distance").write_text("32 24 21 10\n")
    with pytest.raises(VmplaceError, match="4 distances, but 3 nodes"):
        read_host(tmp_path / "sys")


def test_this_machine_agrees_with_its_own_count_of_cpus():
    host = read_host()
    assert {cpu for node in host.nodes for cpu in node.cpus} >= os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", ()), ("\n", ()), ("3", (3,)), ("0-2,8,10-11\n", (0, 1, 2, 8, 10, 11)), ("0-4,^2", (0, 1, 3, 4))],
)
def test_cpu_lists(text: str, cpus: tuple[int, ...]):
    assert parse_cpulist(text) == cpus


def test_a_device_that_is_nearer_does_not_hide_the_best_cpus(tmp_path: Path):
    # Node 1 without CPUs holds a device: access0 ranks it first for node 2, access1 knows CPUs only.
    shutil.copytree(HOSTS / "24amd64-3n4c-cxl", tmp_path / "sys", symlinks=True)
    root = tmp_path / "sys/devices/system/node"
    (root / "node1/cpulist").write_text("\n")
    (root / "node2/access0/initiators/node0").rename(root / "node2/access0/initiators/node1")
    (root / "node2/access0/initiators/read_bandwidth").write_text("64000\n")
    assert read_host(tmp_path / "sys").bandwidths == {(0, 0): 80 * 10**9, (0, 2): 20 * 10**9}
