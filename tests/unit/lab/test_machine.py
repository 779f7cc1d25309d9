"""What of the emulated machine can be said without running it?"""

import pytest

from lab import build
from lab.build import GIB, check_machine
from lab.emulator import SHARED_MEMORY_BYTES, forget_shared_address
from lab.errors import LabError

BLOCK = b"\x130000:00:04.0/shared" + SHARED_MEMORY_BYTES.to_bytes(8, "big")


def test_only_the_shared_blocks_address_is_cleared() -> None:
    state = b"before" + BLOCK + (0xC000000000).to_bytes(8, "big") + b"after"
    assert forget_shared_address(state) == b"before" + BLOCK + bytes(8) + b"after"


def test_an_unknown_state_format_is_refused() -> None:
    with pytest.raises(LabError, match="shared memory"):
        forget_shared_address(b"something else")


def test_too_little_memory_is_said_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(build, "available_memory_bytes", lambda: 3 * GIB)
    with pytest.raises(LabError, match=r"3\.0 GiB of memory available, 10\.0 GiB needed"):
        check_machine(disk_bytes=0, memory_bytes=10 * GIB)


def test_a_missing_command_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "debootstrap" else f"/bin/{name}")
    with pytest.raises(LabError) as caught:
        check_machine(disk_bytes=0, memory_bytes=0)
    assert caught.value.hint == "apt-get install debootstrap"
