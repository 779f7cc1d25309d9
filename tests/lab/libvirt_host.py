"""A real libvirtd with real QEMU, but no KVM, of the lab's Debian tree: up in half a second."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.progress import Progress
from lab.toolbox import PRIVATE
from lab.trees import host_root

SCRIPT = Path(__file__).with_name("libvirt_host.sh")
HOOK = SCRIPT.parents[2] / "libvirt-hooks/qemu.d/vmplace"
FILES = {
    "libvirtd.conf": 'host_uuid = "{uuid}"\nauth_unix_rw = "none"\nauth_unix_ro = "none"\n',
    "qemu.conf": (
        'user = "root"\ngroup = "root"\nstdio_handler = "file"\nsecurity_driver = "none"\n'
        "namespaces = []\ncgroup_controllers = []\nremember_owner = 0\n"
    ),
}
DOMAIN = """<domain type='qemu'><name>{name}</name><memory unit='MiB'>16</memory><vcpu>1</vcpu>
<metadata>{policy}</metadata><numatune><memory mode='strict' nodeset='0'/></numatune>
<os><type arch='x86_64' machine='pc'>hvm</type></os>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator><memballoon model='none'/></devices></domain>"""


@dataclass(frozen=True)
class LibvirtHost:
    """One libvirtd; ``hook_socket`` is where its hook looks for the agent."""

    folder: Path

    @property
    def uri(self) -> str:
        """Return where it is asked, from outside of its namespaces."""
        return f"qemu+unix:///system?socket={self.folder}/run/libvirt/libvirt-sock"

    @property
    def status(self) -> Path:
        """Return where it keeps the status of its domains."""
        return self.folder / "run/libvirt/qemu"

    @property
    def hook_socket(self) -> Path:
        """Return the path of the agent's socket."""
        return self.folder / "run/vmplace/hook.sock"

    def connect(self) -> Any:
        """Return a connection, as soon as there is one."""
        libvirt = pytest.importorskip("libvirt")
        libvirt.registerErrorHandler(lambda *_: None, None)
        end = time.monotonic() + 60
        while True:
            try:
                return libvirt.open(self.uri)
            except libvirt.libvirtError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def restart(self) -> Any:
        """Kill libvirtd; return a connection to the next one, which reconnects to its guests."""
        path = self.folder / "run/libvirtd.pid"
        pid = path.read_text()
        (inner,) = _pids_within(int(pid), self.folder)
        os.kill(inner, 9)
        until(lambda: path.read_text() not in {"", pid}, "libvirtd comes back")
        return self.connect()


def _pids_within(pid: int, folder: Path) -> list[int]:
    """Return the pids here of the process that is ``pid`` in the host's own namespace."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            root = str(status.with_name("root").readlink())
            if fields["NSpid"].split()[1:] == [str(pid)] and str(folder) in root:
                found.append(int(status.parent.name))
    return found


def until(is_so: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait until it is so."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.01)


@contextlib.contextmanager
def libvirt_host(shared: Path, name: str = "host1") -> Iterator[LibvirtHost]:
    """Run a libvirtd with vmplace's hook for the length of the block.  Needs root and the lab's tree."""
    tree = host_root(Progress())
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="vl", dir="/tmp") as top:
        folder = Path(top, name)
        etc = folder / "etc/libvirt"
        (etc / "hooks/qemu.d").mkdir(parents=True)
        (folder / "space").mkdir()
        (folder / "run/vmplace").mkdir(parents=True)
        for file, text in FILES.items():
            (etc / file).write_text(text.format(uuid=f"6d9e2f0c-5b7a-4c31-8f2d-{ord(name[-1]):012x}"))
        shutil.copy(HOOK, etc / "hooks/qemu.d/vmplace")
        namespaces = [
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
            "--fork",
            "--kill-child",
            "--propagation",
            "unchanged",
        ]
        script = ["sh", "-c", PRIVATE + SCRIPT.read_text(), "sh", str(tree), str(folder), str(shared)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, *script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            host = LibvirtHost(folder)
            host.connect().close()
            yield host
        finally:
            process.kill()
            process.wait()
