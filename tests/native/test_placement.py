"""The placement fd's wrappers where KVM is stock or absent; tests/lab has them on a patched one."""

import errno
import os
from pathlib import Path

import pytest

from vmplace import native


def test_a_descriptor_that_is_no_vm_has_no_placement_fd() -> None:
    with Path(os.devnull).open() as no_vm, pytest.raises(OSError) as caught:
        native.placement_open(os.getpid(), no_vm.fileno())
    assert caught.value.errno == errno.EBADF


def test_a_process_that_ended_is_reported() -> None:
    with pytest.raises(ProcessLookupError):
        native.placement_open(2**22 + 1, 0)
