"""What an orchestrator says of guests: read when it changed, kept without its writer, refused from others."""

import os
from pathlib import Path

import pytest

from vmplace.topology.stated_guests import StatedGuest, StatedGuests, encoded

GUEST = StatedGuest(7, 9, "VirtualMachineInstance default/vm1", (("mode", "auto"),))


def written(path: Path, *guests: StatedGuest) -> Path:
    path.write_bytes(encoded(guests))
    path.chmod(0o600)
    return path


@pytest.fixture
def stated(tmp_path: Path) -> StatedGuests:
    return StatedGuests(tmp_path / "stated", owner=os.getuid(), now_s=lambda: 100.0)


def words(stated: StatedGuests) -> dict[tuple[int, int], dict[str, str]]:
    return {who: {one.key: one.text for one in said.annotations} for who, said in stated.policies().items()}


def test_without_a_file_nothing_is_said(stated: StatedGuests):
    assert stated.policies() == {} and stated.notes == ()


def test_what_is_said_is_of_one_process(stated: StatedGuests, tmp_path: Path):
    written(tmp_path / "stated", GUEST)
    assert words(stated) == {(7, 9): {"mode": "auto"}}


def test_what_was_said_last_holds(stated: StatedGuests, tmp_path: Path):
    written(tmp_path / "stated", GUEST)
    assert stated.policies()
    (tmp_path / "stated").unlink()
    assert words(stated) == {(7, 9): {"mode": "auto"}}


def test_a_migration_ends_by_itself(stated: StatedGuests, tmp_path: Path):
    soon, past = StatedGuest(1, 1, "a", (), 101.0), StatedGuest(2, 2, "b", (), 99.0)
    written(tmp_path / "stated", soon, past)
    stated.policies()
    assert stated.migrating() == {(1, 1)}


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_to_is_refused(stated: StatedGuests, tmp_path: Path, mode: int):
    written(tmp_path / "stated", GUEST).chmod(mode)
    for _ in range(2):
        assert stated.policies() == {}
        assert "others than root may write to it" in stated.notes[0]


def test_a_file_of_somebody_else_is_refused(tmp_path: Path):
    written(tmp_path / "stated", GUEST)
    assert StatedGuests(tmp_path / "stated", owner=os.getuid() + 1).policies() == {}


def test_a_link_is_not_followed(stated: StatedGuests, tmp_path: Path):
    (tmp_path / "stated").symlink_to(written(tmp_path / "real", GUEST))
    assert stated.policies() == {} and stated.notes


def test_a_pipe_holds_nobody_up(stated: StatedGuests, tmp_path: Path):
    os.mkfifo(tmp_path / "stated", 0o600)
    assert stated.policies() == {} and "no file" in stated.notes[0]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"guests": [{"pid": "x"}]}',
        b'{"guests": [], "version": 2}',
        b'{"guests": [{"pid": 1, "start_time": 1, "by": "\xff"}]}',
    ],
)
def test_what_is_wrong_changes_nothing(stated: StatedGuests, tmp_path: Path, text: bytes):
    written(tmp_path / "stated", GUEST)
    assert stated.policies()
    (tmp_path / "new").write_bytes(text)
    (tmp_path / "new").chmod(0o600)
    (tmp_path / "new").replace(tmp_path / "stated")
    assert words(stated) == {(7, 9): {"mode": "auto"}} and stated.notes


def test_words_without_end_are_an_error_of_that_guest(stated: StatedGuests, tmp_path: Path):
    written(tmp_path / "stated", StatedGuest(7, 9, "x", (("mode", "a" * 5000),)))
    assert stated.policies()[7, 9].error
