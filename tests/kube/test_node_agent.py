"""Annotations become policies: real API server, KubeVirt's schemas, real QEMU in cgroups like kubelet's.

The command runs as it ships; what the agent reads is read by the agent's own reader.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import trees
from lab.progress import Progress
from tests.kube.cluster import (
    NODE,
    VMIS,
    cgroup_folder,
    grant,
    in_pod,
    leave,
    patched,
    revoke,
    shipped_role,
    vmi,
)
from tests.kube.control_plane import ControlPlane
from vmplace.topology.stated_guests import NAME, StatedGuests, encoded

POD = "0a1b2c3d-1111-2222-3333-444455556666"
ROOT = Path(__file__).parents[2]
RUN = "from vmplace.interfaces.cli import main; main()"
SOON_S = 20


@pytest.fixture
def qemu() -> Iterator[int]:
    """Run a real QEMU in the cgroup of a pod; return its pid."""
    if os.geteuid() != 0:
        pytest.skip("cgroups need root")
    tree = trees.host_root(Progress())
    machine = [
        "qemu-system-x86_64",
        "-name",
        "guest=default_vm1",
        "-machine",
        "none",
        "-S",
        "-display",
        "none",
    ]
    process = in_pod(
        POD, ["chroot", str(tree), *machine, "-nodefaults", "-serial", "none", "-monitor", "none"]
    )
    try:
        comm = Path(f"/proc/{process.pid}/comm")
        until(lambda: comm.read_text().startswith("qemu"), "QEMU runs")
        yield process.pid
    finally:
        process.kill()
        process.wait()
        leave(POD)


@pytest.fixture
def instances(plane: ControlPlane) -> Iterator[ControlPlane]:
    """Leave no instances behind."""
    grant(plane, "vmplace", shipped_role())
    yield plane
    for one in plane.ask("GET", VMIS)[1]["items"]:
        plane.ask("DELETE", f"{VMIS}/{one['metadata']['name']}")


def until(holds: Callable[[], Any], what: str, limit_s: float = SOON_S) -> None:
    end_s = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(OSError, KeyError):
            if holds():
                return
        assert time.monotonic() < end_s, what
        time.sleep(0.05)


@contextlib.contextmanager
def agent_side(plane: ControlPlane, folder: Path, user: str = "vmplace", *more: str) -> Iterator[Path]:
    """Run the command for NODE; return the file that it logs to."""
    config = plane.kubeconfig(plane.tokens[user], user)
    argv = [sys.executable, "-c", RUN, "kube", "agent", "--node", NODE, "--kubeconfig", str(config)]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*argv, "--socket", str(folder / "control.sock"), "--interval", "0.3", *more],
            stdout=out, stderr=out, cwd=ROOT,
        )  # fmt: skip
    try:
        yield log
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        assert process.wait(20) == 0


def said(folder: Path, pid: int) -> dict[str, str] | None:
    """Return what the agent would read of a process."""
    policies = StatedGuests(folder / NAME).policies()
    words = [policy.annotations for (there, _), policy in policies.items() if there == pid]
    return {word.key: word.text for word in words[0]} if words else None


def test_annotations_reach_the_agent_and_follow_changes(
    instances: ControlPlane, qemu: int, tmp_path: Path
) -> None:
    instances.made(VMIS, vmi("vm1", {"vmplace.io/mode": "auto", "other/key": "x"}, {POD: NODE}))
    with agent_side(instances, tmp_path):
        until(lambda: said(tmp_path, qemu) == {"mode": "auto"}, "the policy is known")
        patched(instances, "vm1", {"metadata": {"annotations": {"vmplace.io/mode": "advise"}}})
        until(lambda: said(tmp_path, qemu) == {"mode": "advise"}, "the change is known")
        patched(instances, "vm1", {"metadata": {"annotations": {"vmplace.io/mode": None}}})
        until(lambda: said(tmp_path, qemu) == {}, "the annotation is gone")


def test_a_pod_on_another_node_is_not_ours(instances: ControlPlane, qemu: int, tmp_path: Path) -> None:
    """During a migration an instance has two pods."""
    other = "0a1b2c3d-1111-2222-3333-444455557777"
    instances.made(VMIS, vmi("vm1", {"vmplace.io/mode": "auto"}, {POD: "node2", other: NODE}))
    with agent_side(instances, tmp_path):
        until(lambda: (tmp_path / NAME).exists(), "the file is written")
        time.sleep(1)
        assert said(tmp_path, qemu) is None


def test_a_guest_that_migrates_is_left_alone_until_it_arrived(
    instances: ControlPlane, qemu: int, tmp_path: Path
) -> None:
    def migrates() -> bool:
        stated = StatedGuests(tmp_path / NAME)
        stated.policies()
        return qemu in {pid for pid, _ in stated.migrating()}

    began = {"startTimestamp": "2026-11-25T00:00:00Z", "targetNode": "node2"}
    instances.made(VMIS, vmi("vm1", {}, {POD: NODE}))
    with agent_side(instances, tmp_path):
        until(lambda: said(tmp_path, qemu) == {}, "the guest is known")
        assert not migrates()
        patched(instances, "vm1", {"status": {"migrationState": began}})
        until(migrates, "the migration is known")
        patched(instances, "vm1", {"status": {"migrationState": {"completed": True}}})
        until(lambda: not migrates(), "its end is known")


def test_the_file_outlives_its_writer(instances: ControlPlane, qemu: int, tmp_path: Path) -> None:
    instances.made(VMIS, vmi("vm1", {"vmplace.io/mode": "advise"}, {POD: NODE}))
    with agent_side(instances, tmp_path):
        until(lambda: said(tmp_path, qemu), "the policy is known")
    assert said(tmp_path, qemu) == {"mode": "advise"}


def test_a_server_that_is_killed_is_followed_again(
    instances: ControlPlane, qemu: int, tmp_path: Path
) -> None:
    instances.made(VMIS, vmi("vm1", {"vmplace.io/mode": "auto"}, {POD: NODE}))
    with agent_side(instances, tmp_path) as log:
        until(lambda: said(tmp_path, qemu), "the policy is known")
        instances.kill("kube-apiserver")
        until(lambda: "does not answer" in log.read_text(), "the outage is reported")
        time.sleep(3)
        assert said(tmp_path, qemu) == {"mode": "auto"}
        instances.start_server()
        patched(instances, "vm1", {"metadata": {"annotations": {"vmplace.io/mode": "advise"}}})
        until(lambda: said(tmp_path, qemu) == {"mode": "advise"}, "it is followed again", 90)
        until(lambda: log.read_text().count("followed again") == 2, "both watches say so", 90)
        # Each says once that the watch broke, that nobody answers, and perhaps that the server is not ready.
        assert len(log.read_text().splitlines()) <= 2 * 5


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_each_verb_of_the_role_is_needed(
    instances: ControlPlane, qemu: int, tmp_path: Path, verb: str
) -> None:
    """Without it there is one error that names the right and the cure, and hardly a request more."""
    role = shipped_role()
    [rule] = role["rules"]
    assert set(rule["verbs"]) == {"list", "watch"}, "a verb without a test"
    user = f"without-{verb}"
    grant(
        instances, user, {**role, "rules": [{**rule, "verbs": [one for one in rule["verbs"] if one != verb]}]}
    )
    instances.made(VMIS, vmi("vm1", {"vmplace.io/mode": "auto"}, {POD: NODE}))
    with agent_side(instances, tmp_path, user) as log:
        until(lambda: f"cannot {verb} resource" in log.read_text(), "the missing right is named")
        time.sleep(5)
        lines = [line for line in log.read_text().splitlines() if "a right is missing" in line]
        # One of each of the two watches.
        assert len(lines) == 2 and all("apply vmplace's ClusterRole" in line for line in lines)
        assert instances.tokens[user] not in log.read_text()
        before = requests(instances, user)
        time.sleep(5)
        assert requests(instances, user) == before, "it asks again and again"


def test_a_token_that_is_not_valid_is_reported_once_with_the_cure(
    instances: ControlPlane, tmp_path: Path
) -> None:
    config = instances.kubeconfig("no-such-token", "expired")
    argv = [sys.executable, "-c", RUN, "kube", "agent", "--node", NODE, "--kubeconfig", str(config)]
    process = subprocess.Popen(
        [*argv, "--socket", str(tmp_path / "s")], stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    time.sleep(10)
    process.terminate()
    reported = process.communicate(timeout=20)[1].splitlines()
    assert len(reported) == 2 and all("does not know who asks" in line for line in reported), reported
    assert not any("no-such-token" in line for line in reported)


def test_a_right_that_comes_later_is_used(instances: ControlPlane, qemu: int, tmp_path: Path) -> None:
    """After a minute without it: the wait is as long, for no storm of requests."""
    from vmplace.cloud.kubernetes import watch

    revoke(instances, "nobody")
    follower = watch.Watch(
        watch.LABELS[0], NODE, (state := new_state()),
        lambda: watch.ApiClient(instances.kubeconfig(instances.tokens["nobody"], "nobody")), stop_event(),
    )  # fmt: skip
    follower.step()
    assert follower._wait_s == watch.RIGHTS_WAIT_S
    instances.made(VMIS, vmi("vm1", {"vmplace.io/mode": "auto"}, {POD: NODE}))
    grant(instances, "nobody", shipped_role())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "WATCH_S", 1)
        patch.setattr(watch, "HELD_S", 0.5)
        until(
            lambda: instances.ask("GET", VMIS, token=instances.tokens["nobody"])[0] == 200,
            "the right is there",
        )
        follower.step()
    assert b'"auto"' in encoded(state.stated({POD: (1, 2)}))
    assert follower._wait_s == watch.FIRST_WAIT_S


def new_state() -> Any:
    from vmplace.cloud.kubernetes.node_state import NodeState

    return NodeState()


def stop_event() -> Any:
    import threading

    return threading.Event()


def requests(plane: ControlPlane, user: str) -> int:
    """Return how many requests for instances the API server has answered with 403, by its own count."""
    assert user in plane.tokens
    _, text = plane.ask("GET", "/metrics")
    found = re.findall(r'^apiserver_request_total\{[^}]*code="403"[^}]*\} (\d+)', text, re.MULTILINE)
    return sum(map(int, found))


def test_the_cgroup_is_like_kubelets() -> None:
    assert re.search(r"kubepods-burstable-pod0a1b2c3d_1111_.*\.slice/cri-containerd", str(cgroup_folder(POD)))
    assert shutil.which("chroot")
