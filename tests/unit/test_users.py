"""Which user answers for a user id, by /etc/passwd and /etc/subuid."""

from pathlib import Path

import pytest

from vmplace.users import MOST_BYTES, RENEW_S, Users

ACCOUNTS = "root:x:0:0::/root:/bin/sh\nalice:x:1001:1001::/:/bin/sh\nbob:x:1002:1002::/:/bin/sh\n+::::::\n"


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "passwd").write_text(ACCOUNTS)
    (tmp_path / "subuid").write_text(
        "# lent\nalice:100000:65536\n1002:165536:65536\nalice:300000:10\nbad:x:1\n"
        + "9" * 5000
        + ":400000:10\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("uid", "owner"),
    [(0, 0), (1001, 1001), (99_999, 99_999), (100_000, 1001), (165_535, 1001), (165_536, 1002),
     (300_009, 1001), (300_010, 300_010), (400_001, 400_000), (65_534, 65_534)],
)  # fmt: skip
def test_a_lent_id_is_its_owners(etc: Path, uid: int, owner: int):
    assert Users(etc).owner_of(uid) == owner


def test_an_owner_without_an_account_here_is_one_user_all_the_same(etc: Path):
    (etc / "subuid").write_text("ldap:500000:65536\nldap:900000:65536\n")
    users = Users(etc)
    assert users.owner_of(500_007) == users.owner_of(900_007) == 500_000


def test_containers_of_root_are_one_user_and_not_root(etc: Path):
    (etc / "subuid").write_text("root:1000000:1000000000\nalice:1065536:65536\n")
    users = Users(etc)
    assert users.owner_of(1_000_000) == users.owner_of(1_000_000_000) == 1_000_000
    assert users.owner_of(1_065_540) == 1001


def test_a_file_that_is_absent_or_too_long_lends_nobody_anything(etc: Path):
    (etc / "subuid").write_text("alice:100000:65536\n" + "#" * MOST_BYTES)
    assert Users(etc).owner_of(100_000) == 100_000
    (etc / "subuid").unlink()
    assert Users(etc).owner_of(100_000) == 100_000


def test_what_an_administrator_changes_is_known_a_minute_later(etc: Path):
    now = 0.0
    users = Users(etc, lambda: now)
    assert users.owner_of(500_000) == 500_000
    (etc / "subuid").write_text("bob:500000:65536\n")
    assert users.owner_of(500_000) == 500_000
    now = RENEW_S
    assert users.owner_of(500_000) == 1002
