"""`vmplace openstack` without a cloud: an error of usage, before any library guesses."""

import pytest
from click.testing import CliRunner

from vmplace.interfaces.cli import cli


@pytest.mark.parametrize("verb", ["publish", "withdraw"])
def test_a_cloud_must_be_named(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OS_CLOUD", "OS_AUTH_URL"):
        monkeypatch.delenv(name, raising=False)
    answer = CliRunner().invoke(cli, ["openstack", verb])
    assert answer.exit_code == 2 and "--cloud NAME" in answer.output
