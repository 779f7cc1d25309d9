"""Where does a real Kubernetes control plane come from, with KubeVirt's own resources?

1. kube-apiserver is built from its Go module, as Debian has none of this decade; etcd is Debian's.
2. KubeVirt's schemas and its protocol of node hooks are read from its own Go module: the operator that would
   install them needs a cluster with nodes.

Every file comes through the Go module proxy, checked by Go against its checksum database, or through apt.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from lab import cache
from lab.errors import LabCommandError, LabError
from lab.progress import Progress, log_path

KUBERNETES = "v1.37.2"
KUBEVIRT = "v1.9.0"
GO = (1, 26)
FLAGS = f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES}"
MAIN = "k8s.io/kubernetes/cmd/kube-apiserver"
SCHEMAS = "pkg/virt-operator/resource/generate/components/validations_generated.go"
NODE_HOOKS = "pkg/plugins/proto"


def control_plane(progress: Progress) -> Path:
    """Return the folder with kube-apiserver and etcd; raises LabError.  The first time takes minutes."""
    inputs = {"kubernetes": KUBERNETES, "etcd": "debian", "go": ".".join(map(str, GO)), "flags": FLAGS}
    return cache.artifact("control-plane", inputs, lambda out: _build(out, progress))


def kubevirt_source() -> Path:
    """Return the folder of KubeVirt's Go module; raises LabError."""
    return Path(_downloaded(f"kubevirt.io/kubevirt@{KUBEVIRT}")["Dir"])


def kubevirt_schema(kind: str) -> str:
    """Return the YAML of a kind's schema, as KubeVirt's operator installs it."""
    text = (kubevirt_source() / SCHEMAS).read_text()
    found = re.search(rf'^\t"{kind}": (`.*?`),?\n(?=\t"|\}})', text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise LabError(f"KubeVirt {KUBEVIRT} has no schema of {kind}", hint=f"look for it in its {SCHEMAS}")
    # Go's raw strings hold no backticks: they are put in between.
    return found[1].replace('` + "`" + `', "`")[1:-1]


def _build(out: Path, progress: Progress) -> None:
    log = log_path("control-plane")
    with progress.step("etcd", log):
        _unpack_etcd(out)
    with progress.step("kube-apiserver", log):
        (out / "go").mkdir()
        (out / "go/go.mod").write_text(_go_mod())
        target = str(out / "kube-apiserver")
        command = ["go", "build", "-trimpath", "-ldflags", FLAGS, "-o", target, MAIN]
        _run(command, out / "go", {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}, log)
        shutil.rmtree(out / "go")


def _unpack_etcd(out: Path) -> None:
    _run(["apt-get", "download", "-qq", "etcd-server"], out)
    for package in out.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), str(out / "deb")], out)
        package.unlink()
    (out / "deb/usr/bin/etcd").rename(out / "etcd")
    shutil.rmtree(out / "deb")


def _go_mod() -> str:
    """Return a module that needs Kubernetes; its own parts are replaced by their releases, which a go.mod
    of another module is not taken for."""
    wanted = Path(_downloaded(f"k8s.io/kubernetes@{KUBERNETES}")["GoMod"]).read_text()
    language = re.search(r"^go \S+", wanted, re.MULTILINE)
    parts = re.findall(r"^\s+(k8s\.io/\S+) => \./staging", wanted, re.MULTILINE)
    release = "v0." + KUBERNETES.split(".", 1)[1]
    replaced = "".join(f"\t{part} => {part} {release}\n" for part in parts)
    head = f"module vmplace.test/kube\n\n{language[0] if language else ''}\n"
    return f"{head}\nrequire k8s.io/kubernetes {KUBERNETES}\n\nreplace (\n{replaced})\n"


def _downloaded(module: str) -> dict[str, Any]:
    _check_go()
    answer: dict[str, Any] = json.loads(_run(["go", "mod", "download", "-json", module], Path("/")))
    return answer


def _check_go() -> None:
    wanted = ".".join(map(str, GO))
    hint = f"install Go {wanted} or later (https://go.dev/dl), and have go in PATH"
    if shutil.which("go") is None:
        raise LabError("Go is not installed", hint=hint)
    version = re.search(r"go(\d+)\.(\d+)", _run(["go", "version"], Path("/")))
    if version is None or (int(version[1]), int(version[2])) < GO:
        raise LabError(f"Kubernetes {KUBERNETES} needs Go {wanted}", hint=hint)


def _run(command: list[str], folder: Path, env: dict[str, str] | None = None, log: Path | None = None) -> str:
    ran = subprocess.run(
        command, cwd=folder, env=os.environ | (env or {}), capture_output=True, text=True, check=False
    )
    if log is not None:
        log.write_text(ran.stdout + ran.stderr)
    if ran.returncode:
        raise LabCommandError(command[0], returncode=ran.returncode, output=ran.stdout + ran.stderr, log=log)
    return ran.stdout
