"""What is opened of a guest that cannot be asked is closed again."""

import os
from pathlib import Path

import pytest

from vmplace.held import HeldError
from vmplace.topology import placement
from vmplace.topology.guest import GuestTopology
from vmplace.topology.placement import Placement, open_placement
from vmplace.topology.vcpus import VM_DESCRIPTOR


class Opened:
    """Descriptors in the place of placement fds, all of which are refused by ``error`` when asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        self.fds: list[int] = []

        def opened(pid: int, vm_fd: int) -> Placement:
            self.fds.append(os.open(os.devnull, os.O_RDWR))
            return Placement(self.fds[-1], pid=pid)

        def refuse(one: Placement) -> None:
            raise error

        monkeypatch.setattr(placement, "_opened", opened)
        monkeypatch.setattr(placement, "read_descriptors", lambda *_: {3: VM_DESCRIPTOR})
        monkeypatch.setattr(placement, "read_start_time", lambda *_: 1)
        monkeypatch.setattr(Placement, "info", refuse)


@pytest.mark.parametrize("error", [HeldError(), OSError(5, "the VM is dead")])
def test_a_guest_that_does_not_answer_leaks_no_descriptor(monkeypatch: pytest.MonkeyPatch, error: Exception):
    opened = Opened(monkeypatch, error)
    with pytest.raises(type(error)):
        open_placement(GuestTopology("guest", 1, 1, "kvm", (), ()), Path("/proc"))
    (fd,) = opened.fds
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
