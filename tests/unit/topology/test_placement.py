"""Parts of the program share one placement fd of a guest; opening it takes a patched KVM, and is faked."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from tests.unit.held_process import is_open
from vmplace import native
from vmplace.topology import placement
from vmplace.topology.guest import GuestTopology
from vmplace.topology.placement import Placement, open_placement


def guest(pid: int) -> GuestTopology:
    return GuestTopology(f"guest{pid}", pid, 1, "kvm", (), ())


@pytest.fixture(autouse=True)
def _opens_devnull(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(guest: GuestTopology, proc: Path) -> Placement:
        return Placement(os.open(os.devnull, os.O_RDWR))

    monkeypatch.setattr(placement, "_opened_of", opened)


def test_a_guest_has_one_fd_until_its_last_user_closes() -> None:
    first, second, other = open_placement(guest(1)), open_placement(guest(1)), open_placement(guest(2))
    fd = first.fd
    assert second.fd == fd
    assert other.fd != fd
    first.close()
    first.close()
    assert is_open(fd)
    second.close()
    assert not is_open(fd)
    assert is_open(other.fd)
    other.close()


def test_a_guest_opened_anew_has_another_file() -> None:
    first = open_placement(guest(1))
    first.close()
    again = open_placement(guest(1))
    assert is_open(again.fd)
    again.close()
    assert not is_open(again.fd)


def test_a_file_that_is_no_vm_gets_no_ioctl(tmp_path: Path) -> None:
    # What a descriptor that was a VM when it was looked up may be when it is borrowed.
    named = tmp_path / "anon_inode:kvm-vm"
    named.touch()
    for fd in (os.eventfd(0), os.open("/dev/null", os.O_RDWR), os.open(named, os.O_RDWR)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            native.placement_open(os.getpid(), fd)
        os.close(fd)


@pytest.mark.skipif(not os.access("/dev/kvm", os.R_OK | os.W_OK), reason="needs /dev/kvm")
def test_a_vm_gets_it() -> None:
    kvm = os.open("/dev/kvm", os.O_RDWR)
    vm = fcntl.ioctl(kvm, placement.KVM_CREATE_VM, 0)
    try:
        os.close(native.placement_open(os.getpid(), vm))
    except OSError as err:
        # A stock KVM's answer.
        assert err.errno in {errno.ENOTTY, errno.EIO}
    finally:
        os.close(vm)
        os.close(kvm)
