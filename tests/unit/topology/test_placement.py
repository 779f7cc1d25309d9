"""Parts of the program share one placement fd of a guest; opening it takes a patched KVM, and is faked."""

import os
from pathlib import Path

import pytest

from vmplace.topology import placement
from vmplace.topology.guest import GuestTopology
from vmplace.topology.placement import Placement, open_placement


def guest(pid: int) -> GuestTopology:
    return GuestTopology(f"guest{pid}", pid, 1, "kvm", (), ())


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


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
