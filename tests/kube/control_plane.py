"""A Kubernetes API server with etcd, of this machine and of no nodes, with KubeVirt's real resources."""

import contextlib
import http.client
import json
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.control_plane import control_plane, kubevirt_schema
from lab.progress import Progress
from tests.unit.interfaces.real_prometheus import port_free

ADMIN = "admin-of-the-tests"
READY_S = 120
KINDS = {
    "VirtualMachineInstance": ("kubevirt.io", "v1", "virtualmachineinstances", "Namespaced"),
    "Plugin": ("plugin.kubevirt.io", "v1alpha1", "plugins", "Cluster"),
}


@dataclass
class ControlPlane:
    """Where it is, and who may do what: ``tokens`` are of users without any right until bound to a role."""

    folder: Path
    binaries: Path
    tokens: Mapping[str, str]
    etcd_port: int = field(default_factory=port_free)
    peer_port: int = field(default_factory=port_free)
    port: int = field(default_factory=port_free)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start_etcd(self) -> None:
        """Start etcd."""
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.etcd_port, self.peer_port))
        self._start(
            "etcd", "--data-dir", f"{self.folder}/etcd", "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer, "--unsafe-no-fsync",
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        )  # fmt: skip

    def start_server(self) -> None:
        """Start the API server, and wait until it is ready."""
        self._start(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self.etcd_port}", "--bind-address=127.0.0.1",
            f"--secure-port={self.port}", f"--cert-dir={self.folder}/certs",
            "--service-cluster-ip-range=10.96.0.0/24", "--service-account-issuer=https://vmplace.test",
            f"--service-account-key-file={self.folder}/sa.pub",
            f"--service-account-signing-key-file={self.folder}/sa.key",
            f"--token-auth-file={self.folder}/tokens.csv", "--authorization-mode=RBAC", "--allow-privileged",
            "--disable-admission-plugins=ServiceAccount",
        )  # fmt: skip
        self.until(lambda: self.ask("GET", "/readyz")[0] == 200, "the API server is ready")

    def kill(self, name: str) -> None:
        """Kill etcd or the API server, as a crash would."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str = ADMIN,
        kind: str = "application/json",
    ) -> tuple[int, Any]:
        """Return status and answer; status 0 where nobody answers."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        there = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=context)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        try:
            there.request(method, path, None if body is None else json.dumps(body), headers)
            answer = there.getresponse()
            text = answer.read()
        except OSError:
            return 0, None
        finally:
            there.close()
        with contextlib.suppress(ValueError):
            return answer.status, json.loads(text)
        return answer.status, text.decode()

    def made(self, path: str, body: object) -> Any:
        """Create an object; it must not be refused."""
        status, answer = self.ask("POST", path, body)
        assert status in (200, 201), (status, answer)
        return answer

    def until(self, holds: Any, what: str, limit_s: float = READY_S) -> None:
        """Wait until something holds."""
        end_s = time.monotonic() + limit_s
        while not holds():
            ended = [name for name, one in self.processes.items() if one.poll() is not None]
            assert not ended, (ended, [self._log(name) for name in ended])
            assert time.monotonic() < end_s, what
            time.sleep(0.1)

    def kubeconfig(self, token: str, name: str) -> Path:
        """Write a kubeconfig for who has a token; return its path."""
        server = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": server}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": token}}],
        }  # fmt: skip
        path = self.folder / f"{name}.conf"
        path.write_text(json.dumps(config))
        return path

    def memory_mib(self, name: str) -> int:
        """Return the resident memory of a process."""
        status = Path(f"/proc/{self.processes[name].pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) >> 10

    def _start(self, name: str, *options: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            argv = [str(self.binaries / name), *options]
            self.processes[name] = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self.folder)

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-2000:]


@contextlib.contextmanager
def running_plane(folder: Path, users: tuple[str, ...]) -> Iterator[ControlPlane]:
    """Run a control plane with KubeVirt's resources; its users have a token each, and no rights."""
    tokens = {user: f"token-of-{user}" for user in users}
    plane = ControlPlane(folder, control_plane(Progress()), tokens)
    rows = [f"{ADMIN},admin,0,system:masters", *(f"{token},{user},{user}" for user, token in tokens.items())]
    (folder / "tokens.csv").write_text("\n".join(rows) + "\n")
    key = ["openssl", "genrsa", "-out", f"{folder}/sa.key", "2048"]
    subprocess.run(key, check=True, capture_output=True)
    public = ["openssl", "rsa", "-in", f"{folder}/sa.key", "-pubout", "-out", f"{folder}/sa.pub"]
    subprocess.run(public, check=True, capture_output=True)
    try:
        plane.start_etcd()
        plane.start_server()
        install_kubevirt(plane)
        yield plane
    finally:
        for name in tuple(plane.processes):
            plane.kill(name)


def install_kubevirt(plane: ControlPlane) -> None:
    """Define KubeVirt's resources by its own schemas."""
    import yaml

    for kind, (group, version, plural, scope) in KINDS.items():
        schema = yaml.safe_load(kubevirt_schema(kind.lower()))
        served: dict[str, Any] = {
            "name": version, "served": True, "storage": True,
            "schema": {"openAPIV3Schema": schema.get("openAPIV3Schema", schema)},
        }  # fmt: skip
        if kind == "Plugin":
            served["subresources"] = {"status": {}}
        names = {"plural": plural, "singular": kind.lower(), "kind": kind}
        spec = {"group": group, "scope": scope, "names": names, "versions": [served]}
        crd = {
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"}, "spec": spec,
        }  # fmt: skip
        plane.made("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        path = f"/apis/{group}/{version}/{plural}"
        plane.until(lambda path=path: plane.ask("GET", path)[0] == 200, f"{plural} are served")
