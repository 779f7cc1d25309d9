"""Node hooks, called by KubeVirt's own protocol: its api.proto is compiled from its Go module."""

import importlib
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.control_plane import kubevirt_source
from tests.kube.cluster import NODE, vmi
from vmplace.cloud.kubernetes.node_hooks import NodeHooks
from vmplace.cloud.kubernetes.node_state import NodeState
from vmplace.topology.stated_guests import StatedGuest

grpc = pytest.importorskip("grpc", reason="make test-kube sets up what is needed")
POD = "0a1b2c3d-1111-2222-3333-444455556666"
PROTO = "pkg/hooks/plugins/v1alpha1/api.proto"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return the modules that protoc makes of KubeVirt's protocol."""
    folder = tmp_path_factory.mktemp("proto")
    (folder / "kubevirt_hooks.proto").write_bytes((kubevirt_source() / PROTO).read_bytes())
    argv = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--python_out={folder}"]
    subprocess.run([*argv, f"--grpc_python_out={folder}", f"{folder}/kubevirt_hooks.proto"], check=True)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("kubevirt_hooks_pb2"), importlib.import_module("kubevirt_hooks_pb2_grpc")
    sys.path.remove(str(folder))


@pytest.fixture
def hooks(tmp_path: Path) -> Iterator[tuple[Path, NodeState]]:
    """Serve hooks."""
    state, path = NodeState(), tmp_path / "plugins/vmplace.sock"
    server = NodeHooks(path, NODE, state)
    yield path, state
    server.close()
    assert not path.exists()


def called(api: Any, path: Path, point: str, instance: object, limit_s: float = 2.0) -> Any:
    """Call a hook as virt-handler does."""
    messages, services = api
    with grpc.insecure_channel(f"unix:{path}") as channel:
        text = instance if isinstance(instance, bytes) else json.dumps(instance).encode()
        request = messages.ExecuteNodeHookRequest(
            hookPoint=point, vmi=text, node_context=messages.NodeContext(node_name=NODE)
        )
        return services.NodeHookServiceStub(channel).ExecuteNodeHook(request, timeout=limit_s)


def stated(state: NodeState) -> tuple[StatedGuest, ...]:
    return state.stated({POD: (7, 9)})


def test_a_migration_is_known_before_it_begins(api: Any, hooks: tuple[Path, NodeState]) -> None:
    path, state = hooks
    instance = vmi("vm1", {"vmplace.io/mode": "auto"}, {POD: NODE})
    called(api, path, "PostVMStart", instance)
    [guest] = stated(state)
    assert guest.annotations == (("mode", "auto"),) and guest.migrating_until_s == 0
    called(api, path, "PreMigrationSource", instance)
    assert stated(state)[0].migrating_until_s > 0
    called(api, path, "PreMigrationSource", instance)
    called(api, path, "PostMigrationTarget", instance)
    assert stated(state)[0].migrating_until_s == 0


@pytest.mark.parametrize("instance", [b"", b"\xff", b"[]", b"{", b'{"metadata": 3, "status": "x"}'])
def test_whatever_it_is_given_virt_handler_goes_on(
    api: Any, hooks: tuple[Path, NodeState], instance: bytes
) -> None:
    path, state = hooks
    called(api, path, "PreMigrationSource", instance)
    called(api, path, "NoSuchHook", instance)
    assert stated(state) == ()


def test_only_root_may_open_the_socket(hooks: tuple[Path, NodeState]) -> None:
    assert stat.S_IMODE(hooks[0].stat().st_mode) == 0o600


def test_the_socket_is_roots_from_its_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mode is not set after it is there."""
    monkeypatch.setattr(Path, "chmod", lambda *given: None)
    monkeypatch.setattr(os, "chmod", lambda *given: None)
    server = NodeHooks(tmp_path / "hooks.sock", NODE, NodeState())
    assert stat.S_IMODE((tmp_path / "hooks.sock").stat().st_mode) == 0o600
    server.close()


def test_hooks_are_answered_well_within_their_limit(api: Any, hooks: tuple[Path, NodeState]) -> None:
    """The shipped Plugin gives them 2 s."""
    instance = vmi("vm1", {}, {POD: NODE})
    began = time.monotonic()
    for _ in range(20):
        called(api, hooks[0], "PreMigrationSource", instance)
    assert (time.monotonic() - began) / 20 < 0.5
