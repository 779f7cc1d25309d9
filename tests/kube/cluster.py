"""Instances, roles and pod-shaped cgroups for the tests, and the shipped manifests as they are read."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.kube.control_plane import ControlPlane

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "kubernetes"
VMIS = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
NODE = "node1"


def objects(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects that a kustomization lists, those of its bases first; patches are left out."""
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())
    for name in listed["resources"]:
        path = folder / name
        if path.is_dir():
            yield from objects(path)
        else:
            yield from yaml.safe_load_all(path.read_text())


def shipped_role() -> dict[str, Any]:
    """Return the ClusterRole as it is shipped."""
    [role] = [one for one in objects(MANIFESTS / "base") if one["kind"] == "ClusterRole"]
    return role


def grant(plane: ControlPlane, user: str, role: dict[str, Any]) -> None:
    """Give a user a role, under the user's name."""
    role = {**role, "metadata": {"name": user}}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": user}, "roleRef": reference, "subjects": [subject],
    }  # fmt: skip
    for kind, body in (("clusterroles", role), ("clusterrolebindings", binding)):
        revoke(plane, user, kind)
        plane.made(f"{RBAC}/{kind}", body)


def revoke(plane: ControlPlane, user: str, kind: str = "clusterrolebindings") -> None:
    """Take a user's rights away."""
    plane.ask("DELETE", f"{RBAC}/{kind}/{user}")


def vmi(name: str, annotations: dict[str, str], pods: dict[str, str], **status: Any) -> dict[str, Any]:
    """Return an instance on NODE."""
    meta = {"name": name, "labels": {"kubevirt.io/nodeName": NODE}, "annotations": annotations}
    cpu = {"cpu": {"cores": 2}, "devices": {}, "memory": {"guest": "1Gi"}}
    return {
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": meta,
        "spec": {"domain": cpu}, "status": {"phase": "Running", "activePods": pods, **status},
    }  # fmt: skip


def patched(plane: ControlPlane, name: str, change: dict[str, Any]) -> None:
    """Change an instance."""
    status, answer = plane.ask("PATCH", f"{VMIS}/{name}", change, kind="application/merge-patch+json")
    assert status == 200, answer


def in_pod(pod: str, command: list[str]) -> "subprocess.Popen[bytes]":
    """Start a process in the cgroup that kubelet's systemd driver makes for a pod; needs root."""
    folder = cgroup_folder(pod)
    folder.mkdir(parents=True, exist_ok=True)

    # The shell goes into the cgroup, and becomes the command there.
    enter = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(folder), *command]
    return subprocess.Popen(enter, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def leave(pod: str) -> None:
    """Take the cgroup of a pod away, once its process ended."""
    folder = cgroup_folder(pod)
    for path in (folder, folder.parent, folder.parent.parent):
        path.rmdir()


def cgroup_folder(pod: str) -> Path:
    """Return the folder of a pod's container, in a hierarchy of this machine."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    # The unified hierarchy, or any of the older ones: the name is the same in all of them.
    kinds = {one[2]: Path(one[1]) for one in mounts if one[2] == "cgroup2" or "pids" in one[3].split(",")}
    root = kinds.get("cgroup2") or kinds["cgroup"]
    name = f"kubepods-burstable-pod{pod.replace('-', '_')}.slice"
    return root / f"vmplace-test-{os.getpid()}.slice" / name / "cri-containerd-77.scope"
