"""Inside the emulated host: live migrations between two libvirtds, to and fro; prints JSON.

Each libvirtd has namespaces of its own (files, processes, host name), as on a host of its own.  The guest is
one of the lab's payloads, its XML in DOMAIN.

    python3 -m bench.migration_inside COUNT         what libvirt counts of each migration, nobody acts
    python3 -m bench.migration_agents WHAT COUNT    the same with agents on both (migration_agents.py)
"""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import libvirt

DOMAIN, GUEST = Path("/root/bench/migrant.xml"), "migrant"
LAB = "var/lib/vmplace-lab"
PLACES = ("run", "etc/libvirt", "var/cache/libvirt", "var/lib/libvirt", "var/log/libvirt", "var/lib/vmplace")
HOOK = Path("/opt/vmplace/vmplace/interfaces/libvirt_hook.py")
OWN = (*PLACES, LAB)
SOCKET = Path("/srv/migration.sock")
ENTER = """
set -eu
for at in $2; do mount --bind "/srv/$1/$at" "/$at"; done
hostname "$1"
libvirtd & echo $! >/run/libvirtd.ready
wait
"""
LIBVIRTD = 'host_uuid = "6d9e2f0c-5b7a-4c31-8f2d-00000000000{}"\nauth_unix_rw = "none"\n'
QEMU = (
    'user = "root"\ngroup = "root"\nstdio_handler = "file"\nsecurity_driver = "none"\n'
    "namespaces = []\ncgroup_controllers = []\nremember_owner = 0\n"
)
MIB_PER_S, DOWNTIME_MS = 64, 1000
REST_S = 5.0
COUNTED = {
    "rounds": "memory_iteration",
    "bytes": "data_processed",
    "downtime_ms": "downtime_net",
    "elapsed_ms": "time_elapsed_net",
    "memory_bytes": "memory_processed",
}


class InnerHost:
    """A libvirtd in namespaces of its own."""

    def __init__(self, number: int, *, with_hook: bool = False) -> None:
        """Start it, with vmplace's hook or without; its files are under /srv/hostN."""
        self.name = f"host{number}"
        self.folder = Path("/srv", self.name)
        for at in OWN:
            (self.folder / at).mkdir(parents=True, exist_ok=True)
            Path("/", at).mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "/var/cache/libvirt", f"{self.folder}/var/cache"], check=True)
        (self.folder / "etc/libvirt/libvirtd.conf").write_text(LIBVIRTD.format(number))
        (self.folder / "etc/libvirt/qemu.conf").write_text(QEMU)
        if with_hook:
            hooks = self.folder / "etc/libvirt/hooks/qemu.d"
            hooks.mkdir(parents=True, exist_ok=True)
            shutil.copy(HOOK, hooks / "vmplace")
            (hooks / "vmplace").chmod(0o755)
        spaces = ["--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        self._log = (self.folder / "log").open("wb")
        self._process = subprocess.Popen(
            ["unshare", *spaces, "sh", "-c", ENTER, "sh", self.name, " ".join(OWN)],
            stdout=self._log,
            stderr=self._log,
        )
        until(lambda: self._answers(), f"libvirtd of {self.name} answers")
        self.connection = libvirt.open(self.uri)

    def within(self, argv: list[str]) -> list[str]:
        """Return the command that runs another one in its namespaces."""
        inner = child_of(self._process.pid)
        return ["nsenter", "--target", str(inner), "--mount", "--pid", "--uts", "--ipc", *argv]

    @property
    def uri(self) -> str:
        """Return where its libvirtd is asked, from outside of its namespaces."""
        return f"qemu+unix:///system?socket={self.folder}/run/libvirt/libvirt-sock"

    def _answers(self) -> bool:
        with contextlib.suppress(libvirt.libvirtError):
            libvirt.open(self.uri).close()
            return True
        return False

    def talk(self, command: str, seconds: int = 30) -> dict[str, Any] | None:
        """Return what the guest answers here, None if it does not."""
        argv = ["vmp-talk", str(seconds), command, str(self.folder / LAB / f"{GUEST}.sock")]
        reported = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
        answer: dict[str, Any] | None = json.loads(reported.partition("\t")[2]) if "\t" in reported else None
        return answer

    def log(self) -> str:
        """Return what libvirtd wrote."""
        return (self.folder / "log").read_text(errors="replace")

    def close(self) -> None:
        """End it, and all that it runs."""
        self._process.kill()
        self._process.wait()


def child_of(pid: int) -> int:
    """Return the pid of a process's child."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if f"\nPPid:\t{pid}\n" in status.read_text():
                return int(status.parent.name)
    raise ProcessLookupError(f"{pid} has no child")


def until(is_so: Callable[[], bool], what: str, seconds: float = 300) -> None:
    """Wait until it is so."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"not in time: {what}")
        time.sleep(0.1)


@contextlib.contextmanager
def two_hosts(*, with_hook: bool = False) -> Iterator[list[InnerHost]]:
    """Start two hosts with the guest on the first of them, at work."""
    hosts: list[InnerHost] = []
    try:
        hosts += [InnerHost(number, with_hook=with_hook) for number in (1, 2)]
        hosts[0].connection.createXML(DOMAIN.read_text())
        until(lambda: hosts[0].talk("status", 3) is not None, "the guest comes up")
        hosts[0].talk("go")
        yield hosts
    except BaseException:
        for host in hosts:
            print(host.name, host.log()[-6000:], file=sys.stderr)
        raise
    finally:
        for host in hosts:
            host.close()


def migrated(source: InnerHost, target: InnerHost) -> dict[str, float]:
    """Migrate the guest; return what libvirt counted (virDomainGetJobStats, COMPLETED)."""
    SOCKET.unlink(missing_ok=True)
    domain = source.connection.lookupByName(GUEST)
    domain.migrateSetMaxSpeed(MIB_PER_S)
    domain.migrateSetMaxDowntime(DOWNTIME_MS)
    arrived = domain.migrate(target.connection, libvirt.VIR_MIGRATE_LIVE, None, f"unix://{SOCKET}", MIB_PER_S)
    counted = arrived.jobStats(libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED)
    return {ours: counted[theirs] for ours, theirs in COUNTED.items()}


def rounds(hosts: list[InnerHost], count: int) -> Iterator[dict[str, float]]:
    """Yield the figures of each migration; the guest's memory is checked at the end."""
    source, target = hosts
    for _ in range(count):
        time.sleep(REST_S)
        yield migrated(source, target)
        source, target = target, source
    check_memory(source)


def check_memory(host: InnerHost) -> None:
    """Raise RuntimeError unless the guest finds in its memory what it wrote."""
    checked = host.talk("verify", 120)
    if not checked or checked["bad_pages"]:
        raise RuntimeError(f"the guest's memory is not what it wrote: {checked}")


def main(count: str) -> None:
    """Measure and print."""
    libvirt.registerErrorHandler(lambda *_: None, None)
    with two_hosts() as hosts:
        print(json.dumps(list(rounds(hosts, int(count)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
