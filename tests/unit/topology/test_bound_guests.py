"""Which guests does QEMU bind to nodes?  Processes of a /proc that is made; no KVM is asked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_waits_for_processes import GUEST, UUID, OneDomain, put_guest
from vmplace import held
from vmplace.agent.wiring import found_of
from vmplace.topology.guest_finder import GuestFinder, GuestScan
from vmplace.topology.guests_libvirt import Libvirt

# As Proxmox starts a guest with "numa: 1" and two lines "numaN: ...,hostnodes=N,policy=bind".
WORDS = (
    "-name guest=db1 -m 8192 -object memory-backend-ram,id=ram-node0,size=4096M,host-nodes=0,policy=bind"
    " -numa node,nodeid=0,cpus=0,memdev=ram-node0"
    " -object memory-backend-ram,id=ram-node1,size=4096M,host-nodes=1,policy=bind"
    " -numa node,nodeid=1,cpus=1,memdev=ram-node1"
)


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[Path]:
    put_guest(tmp_path / "proc")
    yield tmp_path / "proc"
    held.keep(set())


def look(proc: Path, words: str, libvirt: Libvirt | None = None) -> GuestScan:
    line = ["qemu-system-x86_64", "-uuid", UUID, *words.split()]
    (proc / f"{GUEST}/cmdline").write_text("\0".join(line) + "\0")
    run = proc.with_name("run")
    return GuestFinder(libvirt, proc=proc, debugfs=proc.with_name("debug"), run=run).find()


def test_a_guest_without_libvirt_is_bound_as_its_qemu_was_asked_to(proc: Path):
    scan = look(proc, WORDS)
    (guest,) = scan.guests
    assert dict(scan.bound[guest.identity].nids) == {0: (0,), 1: (1,), None: (0, 1)}
    assert found_of(scan, 1 << 30).bound == scan.bound
    assert look(proc, WORDS.replace(",policy=bind", "")).bound == {}


def test_of_a_guest_of_libvirt_its_xml_counts(proc: Path):
    scan = look(proc, WORDS, OneDomain())
    assert [guest.origin for guest in scan.guests] == ["libvirt"] and scan.bound == {}
