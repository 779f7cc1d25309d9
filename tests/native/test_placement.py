"""The placement fd's wrappers where KVM is stock or absent; tests/lab has them on a patched one."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from vmplace import held, native
from vmplace.topology.placement import KVM_CREATE_VM


def test_a_descriptor_that_is_no_vm_has_no_placement_fd() -> None:
    with Path(os.devnull).open() as no_vm, pytest.raises(OSError) as caught:
        native.placement_open(os.getpid(), no_vm.fileno())
    assert caught.value.errno == errno.EBADF


@pytest.mark.kvm
def test_a_vm_is_known_as_one_by_a_thread_that_does_steps() -> None:
    """Its file table is not that of /proc/self, which is the main thread's."""
    kvm = os.open("/dev/kvm", os.O_RDWR)
    vm = fcntl.ioctl(kvm, KVM_CREATE_VM, 0)
    try:
        os.close(held.opened(os.getpid(), lambda: native.placement_open(os.getpid(), vm)))
    except OSError as err:
        # Of a stock KVM.
        assert err.errno not in {errno.EBADF, errno.ENOENT}
    finally:
        os.close(vm)
        os.close(kvm)


def test_a_process_that_ended_is_reported() -> None:
    with pytest.raises(ProcessLookupError):
        native.placement_open(2**22 + 1, 0)
