"""A bare QEMU's command line tells cells and sizes, or nothing."""

import time

import pytest

from vmplace.topology.description import GuestDescription, RamBlock
from vmplace.topology.qemu_command_line import parse_qemu

MIB = 1 << 20


def parse(line: str) -> GuestDescription | None:
    return parse_qemu(line.split())


def test_cells_and_backends_of_the_short_form():
    guest = parse(
        "/usr/bin/qemu-system-x86_64 -name guest=db1,debug-threads=on -M q35,accel=kvm -m 640M -smp 3"
        " -object memory-backend-ram,id=ram-node0,size=256M -object memory-backend-ram,id=ram-node1,size=384M"
        " -numa node,nodeid=0,cpus=0-1,memdev=ram-node0 -numa node,nodeid=1,cpus=2,memdev=ram-node1"
    )
    assert guest is not None
    assert (guest.name, guest.machine) == ("db1", "q35")
    assert guest.blocks == (RamBlock(256 * MIB, 0), RamBlock(384 * MIB, 1))
    assert [cell.vcpu_ids for cell in guest.cells] == [(0, 1), (2,)]


def test_what_libvirt_writes():
    guest = parse(
        "/usr/bin/qemu-system-x86_64 -name guest=a,,b,debug-threads=on"
        ' -object {"qom-type":"secret","id":"masterKey0","format":"raw","file":"/x"}'
        " -machine pc-i440fx-9.2,usb=off,memory-backend=pc.ram -m size=1048576k,slots=16,maxmem=16777216k"
        ' -object {"qom-type":"memory-backend-ram","id":"pc.ram","size":1073741824}'
        " -uuid 0f5b8a52-9b67-4c8e-9a5a-6a0a3f6d2a11"
    )
    assert guest == GuestDescription(
        "a,b", "0f5b8a52-9b67-4c8e-9a5a-6a0a3f6d2a11", "pc-i440fx-9.2", (RamBlock(1 << 30),)
    )


@pytest.mark.parametrize("uuid", ["x" * 100_000, "0f5b8a52-9b67-4c8e-9a5a-6a0a3f6d2a1\x1b", "", "0" * 36])
def test_a_uuid_is_one_or_none(uuid: str):
    """It goes into each answer of the agent: of any length, a few guests would fill that."""
    guest = parse_qemu(["qemu-system-x86_64", "-uuid", uuid])
    assert guest is not None
    assert guest.uuid is None


CELLS = " -numa node,nodeid=0,cpus=0-1,memdev=ram-node0 -numa node,nodeid=1,cpus=2-3,memdev=ram-node1"
BOUND = [
    pytest.param(
        # pve-qemu-server, PVE/QemuServer/Memory.pm: numa0: cpus=0-1,hostnodes=0,memory=2048,policy=bind
        " -object memory-backend-ram,id=ram-node0,size=2048M,host-nodes=0,policy=bind"
        " -object memory-backend-ram,id=ram-node1,size=2048M,host-nodes=1,host-nodes=3-4,policy=bind" + CELLS,
        {0: (0,), 1: (1, 3, 4), None: (0, 1, 3, 4)},
        id="Proxmox",
    ),
    pytest.param(
        ' -object {"qom-type":"memory-backend-ram","id":"m","size":1024,"host-nodes":[0,2],"policy":"bind"}'
        " -machine q35,memory-backend=m",
        {None: (0, 2)},
        id="JSON",
    ),
    pytest.param(
        " -object memory-backend-ram,id=ram-node0,size=1G,host-nodes=0,policy=bind"
        " -object memory-backend-ram,id=ram-node1,size=1G" + CELLS,
        {0: (0,)},
        id="one cell of two",
    ),
    pytest.param(
        " -object memory-backend-ram,id=ram-node0,size=1G,host-nodes=0,policy=preferred"
        " -object memory-backend-ram,id=ram-node1,size=1G,host-nodes=0-1,policy=interleave" + CELLS,
        {},
        id="other policies",
    ),
    pytest.param(
        " -m 1G -object memory-backend-file,id=shm,size=1M,host-nodes=0,policy=bind"
        " -device ivshmem-plain,memdev=shm",
        {},
        id="no RAM",
    ),
]


@pytest.mark.parametrize("words, bound", BOUND)
def test_nodes_that_a_backend_is_bound_to(words: str, bound: dict[int | None, tuple[int, ...]]):
    guest = parse("/usr/bin/kvm -name guest=db1" + words)
    assert guest is not None
    assert dict(guest.bound) == bound


@pytest.mark.parametrize("nodes", ["lots", "-1", "0-", "3-1", "1024", "0x1", "[[0]]", "9" * 60_000])
def test_host_nodes_that_are_none_tell_nothing(nodes: str):
    assert parse(f"kvm -object memory-backend-ram,id=m,size=1G,policy=bind,host-nodes={nodes}") is None


def test_defaults_of_qemu():
    assert parse("qemu-system-x86_64 -nodefaults -S") == GuestDescription(
        "", machine="pc", blocks=(RamBlock(128 * MIB),)
    )


def test_backends_in_another_order_than_cells_are_no_claim():
    guest = parse(
        "qemu-system-x86_64 -object memory-backend-ram,id=b,size=1G -object memory-backend-ram,id=a,size=1G"
        " -numa node,nodeid=0,memdev=a -numa node,nodeid=1,memdev=b"
    )
    assert guest is not None
    assert guest.blocks == ()


def test_dimms_and_a_moved_cut_make_the_place_unknown():
    moved = parse("qemu-system-x86_64 -M q35,max-ram-below-4g=1G -m 4G")
    dimm = parse("qemu-system-x86_64 -M q35 -m 4G -device pc-dimm,id=d,memdev=m")
    assert [guest and guest.machine for guest in (moved, dimm)] == [None, None]


@pytest.mark.parametrize(
    "line",
    ["/usr/bin/python3 -m http.server", "firecracker", "qemu-system-x86_64 -m lots", "kvm -object {bad"],
)
def test_other_programs_and_nonsense_tell_nothing(line: str):
    assert parse(line) is None


def test_no_command_line_at_all():
    assert parse_qemu([]) is None


BACKEND = "memory-backend-ram,id={},size=1,policy=bind,host-nodes=0-1023"
LONG = {
    "cells": ["-numa", "node," + ",".join(["cpus=0-16383"] * 5000)],
    "nodes of a backend": ["-object", BACKEND.format("m") + ",host-nodes=0-1023" * 3500],
    "backends": [word for name in range(14_000) for word in ("-object", BACKEND.format(name))],
}


@pytest.mark.parametrize("words", LONG.values(), ids=LONG)
def test_a_command_line_costs_no_more_than_its_size(words: list[str]):
    began = time.thread_time()
    assert parse_qemu(["qemu-system-x86_64", *words]) is None
    assert time.thread_time() - began < 0.5
