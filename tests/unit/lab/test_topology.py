"""Which machine does a topology file become?"""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.topology import (
    GIB,
    LabTopology,
    MemoryRange,
    cpu_nids,
    memory_ranges,
    parse_topology,
    qemu_arguments,
    read_topology,
    topology_names,
)


def topology(*nodes: tuple[int, int, int], local: int = 10) -> LabTopology:
    """Return a topology from (nid, cpus, memory_mib)."""
    count = len(nodes)
    matrix = [[local if i == j else 20 for j in range(count)] for i in range(count)]
    text = f'description = "test"\ndistances = {matrix}\nbandwidth_mib_per_s = {matrix}\n'
    for nid, cpus, memory in nodes:
        text += f"[[node]]\nnid = {nid}\ncpus = {cpus}\nmemory_mib = {memory}\n"
    return parse_topology(text, name="test")


def pairs(arguments: list[str], option: str) -> list[str]:
    return [value for name, value in pairwise(arguments) if name == option]


def test_small_memory_lies_below_the_hole() -> None:
    assert memory_ranges(topology((0, 1, 1024), (1, 1, 1024))) == (
        MemoryRange(0, GIB, 0),
        MemoryRange(GIB, 2 * GIB, 1),
    )


def test_a_node_across_the_hole_has_two_ranges() -> None:
    assert memory_ranges(topology((0, 1, 1536), (1, 1, 1536))) == (
        MemoryRange(0, 3 * GIB // 2, 0),
        MemoryRange(3 * GIB // 2, 2 * GIB, 1),
        MemoryRange(4 * GIB, 5 * GIB, 1),
    )


def test_a_node_without_memory_has_no_range() -> None:
    assert {r.nid for r in memory_ranges(topology((0, 1, 1024), (1, 1, 0)))} == {0}


def test_cpus_are_numbered_through_the_nodes_that_have_any() -> None:
    assert cpu_nids(topology((0, 2, 512), (2, 2, 512), (5, 2, 512))) == (0, 0, 2, 2, 5, 5)


def test_a_gap_is_a_node_whose_cpus_are_not_plugged_in() -> None:
    arguments = qemu_arguments(topology((0, 2, 512), (2, 2, 512)), "/ram")
    assert pairs(arguments, "-smp") == ["2,maxcpus=6,sockets=3,cores=2,threads=1"]
    assert "cpu,node-id=1,socket-id=1" in pairs(arguments, "-numa")
    assert all("socket-id=2" in device for device in pairs(arguments, "-device"))
    assert len(pairs(arguments, "-device")) == 2


def test_without_gaps_no_cpu_is_missing() -> None:
    arguments = qemu_arguments(topology((0, 2, 512), (1, 2, 512), (2, 0, 512)), "/ram")
    assert pairs(arguments, "-smp") == ["4,sockets=2,cores=2,threads=1"]
    assert not pairs(arguments, "-device")


def test_every_distance_is_reported() -> None:
    numa = pairs(qemu_arguments(topology((0, 1, 512), (2, 1, 512)), "/ram"), "-numa")
    assert len([option for option in numa if option.startswith("dist")]) == 6
    assert "dist,src=0,dst=2,val=20" in numa


@pytest.mark.parametrize(
    ("nodes", "fault"),
    [
        ([(1, 1, 512), (0, 1, 512)], "ascend"),
        ([(0, 0, 512), (1, 1, 512)], "come last"),
        ([(0, 1, 512), (1, 2, 512)], "equally many"),
        ([(0, 1, 512), (2, 0, 512)], "gap"),
    ],
)
def test_what_the_kernel_would_number_otherwise_is_refused(
    nodes: list[tuple[int, int, int]], fault: str
) -> None:
    with pytest.raises(LabError, match=fault):
        topology(*nodes)


def test_a_node_is_ten_from_itself() -> None:
    with pytest.raises(LabError, match="itself"):
        topology((0, 1, 512), (1, 1, 512), local=11)


def test_an_unknown_topology_names_the_known_ones() -> None:
    with pytest.raises(LabError) as caught:
        read_topology("nowhere")
    assert "n4-full" in (caught.value.hint or "")


@pytest.mark.parametrize("name", topology_names())
def test_every_carried_topology_is_sound(name: str) -> None:
    carried = read_topology(name)
    assert sum(r.end - r.start for r in memory_ranges(carried)) == carried.memory_bytes
    assert len(cpu_nids(carried)) <= 64


@pytest.mark.parametrize("wrong", ["nan", "inf", "-1", "1e400", str(10**18), '"x"', "[" * 9 + "]" * 9])
def test_a_topology_with_a_number_that_cannot_be_is_refused_with_its_place(wrong: str) -> None:
    carried = (Path(__file__).parents[3] / "lab/topologies/n4-full.toml").read_text()
    for key in ("cpus", "memory_mib"):
        with pytest.raises(LabError, match=key):
            parse_topology(re.sub(rf"{key} = [0-9]+", f"{key} = {wrong}", carried, count=1), name="x")
