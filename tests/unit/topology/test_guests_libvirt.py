"""libvirt may be absent, down or stuck: the caller learns it within a moment and goes on."""

import importlib.util
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from vmplace.errors import UnsupportedHostError
from vmplace.topology.guest_finder import GuestFinder
from vmplace.topology.guests_libvirt import Libvirt

needs_libvirt = pytest.mark.skipif(
    importlib.util.find_spec("libvirt") is None, reason="Python has no libvirt module"
)


@needs_libvirt
def test_domains_of_the_test_driver():
    libvirt = Libvirt("test:///default", answer_s=10)
    answer = libvirt.read()
    assert answer.problem is None
    assert [domain.name for domain in answer.descriptions.values()] == ["test"]


@needs_libvirt
def test_a_domain_without_a_kvm_process_is_told():
    scan = GuestFinder(Libvirt("test:///default", answer_s=10)).find()
    assert "domain test: no process that runs it with KVM is to be seen" in [s.reason for s in scan.skipped]


@needs_libvirt
def test_libvirtd_that_is_down_is_a_problem_not_a_failure(tmp_path: Path):
    libvirt = Libvirt(f"qemu+unix:///system?socket={tmp_path}/none", answer_s=10)
    answer = libvirt.read()
    assert answer.descriptions == {}
    assert "Failed to connect" in (answer.problem or "")


@needs_libvirt
def test_libvirtd_that_never_answers_holds_nobody_up(tmp_path: Path):
    # Accepts, reads, and says nothing, as a stopped libvirtd does.
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "stuck"))
        server.listen()
        libvirt = Libvirt(f"qemu+unix:///system?socket={tmp_path}/stuck", answer_s=0.3)
        started = time.monotonic()
        assert [libvirt.read().problem for _ in range(3)] == ["libvirt does not answer"] * 3
        assert time.monotonic() - started < 1


@needs_libvirt
def test_the_last_answer_counts_while_libvirt_is_stuck():
    libvirt = Libvirt("test:///default", answer_s=10)
    fresh = libvirt.read()
    gate = threading.Event()
    libvirt._answer_s = 0.1
    with pytest.raises(UnsupportedHostError, match="does not answer"):
        libvirt.run(lambda _: gate.wait(10))
    stale = libvirt.read()
    assert (stale.descriptions, stale.problem) == (fresh.descriptions, "libvirt does not answer")
    gate.set()
    time.sleep(0.1)
    libvirt._answer_s = 10
    assert libvirt.read().problem is None


@needs_libvirt
def test_a_connection_that_was_lost_is_made_again():
    libvirt = Libvirt("test:///default", answer_s=10)
    assert libvirt.read().problem is None
    libvirt.run(lambda connection: connection.close())
    answers = [libvirt.read().problem for _ in range(2)]
    assert answers[-1] is None


def test_a_host_without_the_module(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "libvirt", None)
    with pytest.raises(UnsupportedHostError) as caught:
        Libvirt()
    assert "apt install python3-libvirt" in (caught.value.hint or "")
