"""The shipped manifests: the API server takes each, knows each of their fields, and their roles are least."""

from pathlib import Path

import pytest
import yaml
from lightkube.config.kubeconfig import SERVICE_ACCOUNT

import vmplace
from tests.kube.cluster import MANIFESTS, objects, shipped_role
from tests.kube.control_plane import ControlPlane
from vmplace.agent.config import DEFAULT_CONFIG

FOLDERS = ("base", "hooks")
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/vmplace/serviceaccounts",
    "DaemonSet": "/apis/apps/v1/namespaces/vmplace/daemonsets",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/vmplace/networkpolicies",
    "Plugin": "/apis/plugin.kubevirt.io/v1alpha1/plugins",
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_server_takes_each_object_and_knows_its_fields(plane: ControlPlane, folder: str) -> None:
    found = list(objects(MANIFESTS / folder))
    made = []
    for one in found:
        path = PATHS[one["kind"]]
        status, answer = plane.ask("POST", f"{path}?fieldValidation=Strict", one)
        assert status in (201, 409), answer
        made.append((path, one["metadata"]["name"]))
    assert {"DaemonSet", "ClusterRole"} <= {one["kind"] for one in found}
    for path, name in reversed(made):
        if not path.endswith("namespaces"):
            plane.ask("DELETE", f"{path}/{name}")


def test_a_misspelt_field_is_found(plane: ControlPlane) -> None:
    """So that the test above means something."""
    [one] = [one for one in objects(MANIFESTS / "base") if one["kind"] == "DaemonSet"]
    one["spec"]["template"]["spec"]["hostPid"] = True
    plane.ask("POST", PATHS["Namespace"], {"metadata": {"name": "vmplace"}})
    status, answer = plane.ask("POST", f"{PATHS['DaemonSet']}?fieldValidation=Strict", one)
    assert status == 400 and "hostPid" in answer["message"]


def test_a_pod_has_as_long_to_end_as_the_service_has() -> None:
    [one] = [one for one in objects(MANIFESTS / "base") if one["kind"] == "DaemonSet"]
    unit = (Path(vmplace.__file__).parent / "interfaces/vmplace.service").read_text()
    assert f"TimeoutStopSec={one['spec']['template']['spec']['terminationGracePeriodSeconds']}\n" in unit


def test_the_patch_of_the_hooks_is_taken(plane: ControlPlane) -> None:
    """As Kustomize merges it: strategically, by the server's own rules."""
    found = {one["kind"]: one for one in objects(MANIFESTS / "base")}
    for kind in ("Namespace", "ServiceAccount", "DaemonSet"):
        plane.ask("POST", PATHS[kind], found[kind])
    patch = yaml.safe_load((MANIFESTS / "hooks/daemonset.yaml").read_text())
    kind = "application/strategic-merge-patch+json"
    status, answer = plane.ask(
        "PATCH", f"{PATHS['DaemonSet']}/vmplace?fieldValidation=Strict", patch, kind=kind
    )
    assert status == 200, answer
    containers = {one["name"]: one for one in answer["spec"]["template"]["spec"]["containers"]}
    assert set(containers) == {"agent", "kube", "features", "metrics"}
    socket = yaml.safe_load((MANIFESTS / "hooks/plugin.yaml").read_text())["spec"]["nodeHooks"][0]["socket"]
    assert socket in containers["kube"]["command"]
    mounts = {one["mountPath"] for one in containers["kube"]["volumeMounts"]}
    assert {"/run/vmplace", str(Path(socket).parent)} <= mounts


def test_the_role_changes_nothing_and_sees_no_secret() -> None:
    [rule] = shipped_role()["rules"]
    assert set(rule["verbs"]) <= {"get", "list", "watch"}
    assert rule["resources"] == ["virtualmachineinstances"] and rule["apiGroups"] == ["kubevirt.io"]


def test_no_hook_can_block_a_guest() -> None:
    [plugin] = [one for one in objects(MANIFESTS / "hooks") if one["kind"] == "Plugin"]
    assert plugin["spec"]["failureStrategy"] == "Ignore"
    assert all(one["failureStrategy"] == "Ignore" for one in plugin["spec"]["nodeHooks"])


def test_the_operators_file_reaches_the_agent_and_figures_leave_the_pod() -> None:
    [daemon_set] = [one for one in objects(MANIFESTS / "base") if one["kind"] == "DaemonSet"]
    pod = daemon_set["spec"]["template"]["spec"]
    containers = {one["name"]: one for one in pod["containers"]}
    [config] = [
        one["name"]
        for one in pod["volumes"]
        if one.get("configMap") == {"name": "vmplace-toml", "optional": True}
    ]
    for one in containers.values():
        # All of them look there for the agent's socket.
        [mount] = [mount for mount in one["volumeMounts"] if mount["name"] == config]
        assert Path(mount["mountPath"]) == DEFAULT_CONFIG.parent
    [port] = containers["metrics"]["ports"]
    assert containers["metrics"]["command"][-1].endswith(f":{port['containerPort']}")


def test_nobody_but_prometheus_reaches_the_pods() -> None:
    found = {one["kind"]: one for one in objects(MANIFESTS / "base")}
    rules, template = found["NetworkPolicy"]["spec"], found["DaemonSet"]["spec"]["template"]
    assert rules["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    [rule] = rules["ingress"]
    names = {port["name"] for one in template["spec"]["containers"] for port in one.get("ports", ())}
    assert rule["from"] and {port["port"] for port in rule["ports"]} == names == {"metrics"}


def test_only_one_container_is_privileged() -> None:
    [daemon_set] = [one for one in objects(MANIFESTS / "base") if one["kind"] == "DaemonSet"]
    containers = daemon_set["spec"]["template"]["spec"]["containers"]
    privileged = [one["name"] for one in containers if one["securityContext"].get("privileged")]
    assert privileged == ["agent"]


def test_only_one_container_has_the_token_and_others_do_not_write_to_the_agent() -> None:
    [daemon_set] = [one for one in objects(MANIFESTS / "base") if one["kind"] == "DaemonSet"]
    pod = daemon_set["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    [token] = [one["name"] for one in pod["volumes"] if "projected" in one]
    mounts = {one["name"]: {at["name"]: at for at in one["volumeMounts"]} for one in pod["containers"]}
    assert [name for name, at in mounts.items() if token in at] == ["kube"]
    assert mounts["kube"][token]["mountPath"] == SERVICE_ACCOUNT
    assert {name for name, at in mounts.items() if at["run"].get("readOnly")} == {"features", "metrics"}
