"""One control plane for all tests of this folder; who changes more than objects restores it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.control_plane import ControlPlane, running_plane

USERS = ("nobody", "vmplace", "without-list", "without-watch")


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run etcd and the API server."""
    pytest.importorskip("lightkube", reason="make test-kube sets up what is needed")
    folder: Path = tmp_path_factory.mktemp("plane")
    with running_plane(folder, USERS) as running:
        yield running
