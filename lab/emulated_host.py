"""How is an emulated host started, used, saved and restored?

The emulator runs in the toolbox tree, in namespaces of its own.  Node memory and the disk overlay are files
in a tmpfs there, so they end with it.  A snapshot is those files copied out, plus the devices' state as a
migration stream without memory (x-ignore-shared); restoring copies them in, which takes a second or two.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lab import cache, deploy
from lab.build import GIB, LabArtifacts, check_machine
from lab.channel import Channel, GuestProcess, GuestResult
from lab.emulated_time import emulated_memory, time_options
from lab.emulator import (
    RAM,
    RUN,
    SHARED_MEMORY_BYTES,
    START,
    cache_arguments,
    emulator_arguments,
    forget_shared_address,
    log_files,
    meter_arguments,
    port_arguments,
)
from lab.emulator_end import ending_signal
from lab.errors import GoneError, LabError, LostTimersError
from lab.monitor import Monitor
from lab.priority import prefer_session, preferred
from lab.progress import Progress
from lab.standstill import SAID, Standstill
from lab.toolbox import cache_binds, enter_command, inside, started
from lab.topology import LabTopology, memory_files
from vmplace.topology.procfs import read_cpu_seconds

# Translated code, the disk overlay and the emulator itself, beside the host's memory.
OVERHEAD_BYTES = 2 * GIB
BOOT_TIMEOUT_S = 240.0
ENDS_S = 30.0
"""Its sockets close before a process has ended, which has to free the host's memory first."""
BOOTS = 4
"""As many as are made if Linux stands still (standstill.py)."""
# QEMU 10.0 does not load the state of a CPU that was in (nested) guest mode when it was saved under TCG, so
# everything that has a VM stands still meanwhile.  A stopped process is neither paused nor known to libvirt.
FROZEN = "/run/lab-frozen"
FREEZE = (
    f"find /proc/[0-9]*/fd -lname anon_inode:kvm-vm 2>/dev/null | cut -d/ -f3 | sort -u >{FROZEN};"
    f" xargs -r kill -STOP <{FROZEN};"
    f" for pid in $(cat {FROZEN}); do"
    '  while grep -L "^State:.[Tt]" /proc/$pid/task/*/status | grep -q .; do sleep 0.05; done;'
    " done"
)
THAW = f"if [ -s {FROZEN} ]; then xargs kill -CONT <{FROZEN}; fi; rm -f {FROZEN}"


class LabHost:
    """A running emulated host; made by ``start_host``."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", topology: LabTopology, run: Path, parent: Path
    ) -> None:
        logs = log_files(topology, run)
        self.topology = topology
        self.shared_memory = run / "shared"
        self.console_socket = run / "console.sock"
        self.console_log = logs.with_suffix(".console.log")
        self.emulator_log = logs.with_suffix(".qemu.log")
        self._process = process
        self._run = run
        self._parent = parent.name
        self._spawned = 0
        self._monitor: Monitor | None = None
        self._channel: Channel | None = None

    def port_socket(self, name: str) -> Path:
        """Return the socket that is the outer end of a serial port."""
        return self._run / f"{name}.sock"

    def is_running(self) -> bool:
        """Return whether the emulator lives."""
        return self._process.poll() is None

    @property
    def channel(self) -> Channel:
        """Return the connection to the agent inside."""
        if self._channel is None:
            self._channel = Channel(self._run / "channel.sock")
        return self._channel

    def qmp(self, command: str, **arguments: Any) -> Any:
        """Run a command of QEMU's monitor; underscores in argument names stand for dashes."""
        if self._monitor is None:
            self._monitor = Monitor(self._run / "qmp.sock")
        return self._monitor.command(command, **arguments)

    def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float = 120.0,
        check: bool = True,
        input: str | bytes | None = None,
    ) -> GuestResult:
        """Run a command inside to its end; a string is for the shell, a list is not."""
        return self.channel.run(command, timeout=timeout, check=check, stdin=input)

    def spawn(self, command: str | Sequence[str]) -> GuestProcess:
        """Start a command inside."""
        self._spawned += 1
        return GuestProcess(self.channel, command, f"spawn-{os.getpid()}-{time.time_ns()}-{self._spawned}")

    def put(self, local: Path | bytes, remote: str) -> None:
        """Copy a file, or bytes, to a path inside; meant for small files (some MB)."""
        self.channel.put(local if isinstance(local, bytes) else local.read_bytes(), remote)

    def get(self, remote: str) -> bytes:
        """Return the content of a file inside."""
        return self.channel.get(remote)

    def save(self, folder: Path) -> None:
        """Save the whole machine into a folder; it goes on running afterwards."""
        self.run(FREEZE)
        self.qmp("stop")
        try:
            self.qmp("migrate", uri=f"file:{RAM}/state")
            self._migrated(timeout=120)
            target = folder / "ram"
            target.mkdir()
            source = Path(f"/proc/{self.emulator_pid}/root{RAM}")
            names = [*memory_files(self.topology), "state"]
            copy = ["cp", "--sparse=always", *(str(source / name) for name in names)]
            subprocess.run([*copy, str(target)], check=True)
            (folder / "shared").write_bytes(self.shared_memory.read_bytes())
            state = target / "state"
            state.write_bytes(forget_shared_address(state.read_bytes()))
            subprocess.run(["cp", "--sparse=always", str(source / "disk.qcow2"), str(folder)], check=True)
        except (OSError, subprocess.CalledProcessError) as err:
            raise LabError(f"the snapshot cannot be saved: {err}", hint="free disk space for it") from err
        finally:
            self.qmp("cont")
            self.run(THAW)

    def savevm(self, name: str, inputs: Mapping[str, str] | None = None) -> Path:
        """Save the machine in the cache, under a key of name and inputs, and return what to boot from."""
        key = {"parent": self._parent, **(inputs or {"run": self._run.name})}
        return cache.artifact(f"snapshot-{name}", key, self.save)

    @property
    def emulator_pid(self) -> int:
        """Return the process of the emulator, as seen on this machine; LabError once it has ended."""
        pid = self._process.pid
        try:
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        except (OSError, IndexError) as err:
            raise GoneError("the emulator ended", hint=f"console: {self.console_log}") from err

    def killed_by(self) -> str | None:
        """Return the signal that ended the emulator; None if it runs, or ended as its machine went off.

        A kernel that panics resets its machine, which ends the emulator without a signal.
        """
        try:
            code = self._process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            return None
        said = self.emulator_log.read_text(errors="replace") if self.emulator_log.exists() else ""
        return ending_signal(code, said[-2000:])

    def _migrated(self, timeout: float) -> None:
        if self._monitor is None:
            raise LabError("no monitor")
        self._monitor.wait_for_migration(timeout=timeout)

    def _restore(self) -> None:
        self.qmp("migrate-incoming", uri=f"file:{RAM}/state")
        self._migrated(timeout=120)
        self.qmp("cont")

    def _await_ready(self, timeout: float, *, patient: bool) -> None:
        deadline, standstill = time.monotonic() + timeout, Standstill(time.monotonic())
        # What is sent before the agent has opened its port would fill the port's queue.
        while not (self._port_is_open() and self.channel.wait_ready(timeout=2.0)):
            self._check_alive()
            time.sleep(0.05)
            if not patient and self._stands_still(standstill):
                raise LostTimersError("Linux lost timers as it booted", hint=f"console: {self.console_log}")
            if time.monotonic() > deadline:
                raise LabError(
                    f"the emulated host was not ready after {timeout:.0f} s",
                    hint=f"console: {self.console_log}",
                )

    def _stands_still(self, standstill: Standstill) -> bool:
        if SAID in self.console_log.read_text(errors="replace"):
            return True
        try:
            return standstill.lasts(time.monotonic(), read_cpu_seconds(self.emulator_pid))
        except (OSError, LabError):
            # It has ended, as the next look at it will tell.
            return False

    def _port_is_open(self) -> bool:
        devices = self.qmp("query-chardev")
        return any(device["label"] == "channel" and device["frontend-open"] for device in devices)

    def _check_alive(self) -> None:
        if self._process.poll() is not None:
            said = self.emulator_log.read_text(errors="replace").strip()[-500:]
            raise LabError(
                f"the emulator ended: {said or 'without a word'}", hint=f"console: {self.console_log}"
            )

    def _connect(self) -> None:
        deadline = time.monotonic() + 60
        while not (self._run / "qmp.sock").exists():
            self._check_alive()
            if time.monotonic() > deadline:
                raise LabError("the emulator opened no monitor within 60 s", hint=f"log: {self.emulator_log}")
            time.sleep(0.02)
        # Memory that is a shared file of ours is copied as a file, not through the stream.
        self.qmp("migrate-set-capabilities", capabilities=[{"capability": "x-ignore-shared", "state": True}])

    def _close(self) -> None:
        for connection in (self._monitor, self._channel):
            if connection is not None:
                connection.close()


@contextlib.contextmanager
def _emulator(
    topology: LabTopology, artifacts: LabArtifacts, snapshot: Path | None, extra: Sequence[str], run: Path
) -> Iterator[LabHost]:
    logs = log_files(topology, run)
    backing = (
        (inside(snapshot / "disk.qcow2"), "qcow2") if snapshot else (inside(artifacts.rootfs_image), "raw")
    )
    console = (
        f"socket,id=console,path={RUN}/console.sock,server=on,wait=off,logfile={inside(logs)}.console.log"
    )
    command = [
        *(str(inside(artifacts.qemu)), *emulator_arguments(topology, artifacts)),
        *(
            "-chardev",
            console,
            "-serial",
            "chardev:console",
            "-qmp",
            f"unix:{RUN}/qmp.sock,server=on,wait=off",
        ),
        *(["-incoming", "defer"] if snapshot else []),
        *extra,
    ]
    start = ["sh", "-ec", START, "sh", str(backing[0]), str(inside(snapshot)) if snapshot else "", backing[1]]
    entered = enter_command(artifacts.toolbox, [*start, *command], binds=cache_binds() | {run: RUN})
    # What unshare(1) says of a signal is looked for (ending_signal).
    entered = preferred(["env", "LC_ALL=C", *entered])
    with logs.with_suffix(".qemu.log").open("wb") as log:
        log.write((shlex.join(command) + "\n").encode())
        log.flush()
        with started(entered, stdout=log, stderr=subprocess.STDOUT) as process:
            prefer_session(process.pid)
            host = LabHost(process, topology, run, snapshot or artifacts.rootfs_image.parent)
            try:
                host._connect()
                yield host
            finally:
                host._close()


@contextlib.contextmanager
def start_host(  # noqa: PLR0913 - those of machine.boot_host
    topology: LabTopology,
    artifacts: LabArtifacts,
    progress: Progress,
    *,
    snapshot: Path | None,
    meter: bool = False,
    plugin_args: Mapping[str, str] | None = None,
    cache_window: int = 0,
    files: Mapping[str, Path] | None = None,
    ports: Sequence[str] = (),
) -> Iterator[LabHost]:
    """Start an emulated host from ``snapshot``, or from the kernel without one, and end it with the block.

    ``ports`` are serial ports that it has besides (``LabHost.port_socket``); a snapshot fits the same ones.
    ``machine.boot_host`` says what the rest means.
    """
    check_machine(disk_bytes=GIB, memory_bytes=topology.memory_bytes + OVERHEAD_BYTES)
    extra = port_arguments(ports)
    if meter or plugin_args is not None:
        if artifacts.plugin is None:
            raise LabError("there is no meter plugin to load", hint="lab/meter has no Makefile")
        options = time_options(emulated_memory(topology)) | dict(plugin_args or {})
        extra += meter_arguments(topology, artifacts.plugin, options)
    if cache_window:
        extra += cache_arguments(cache_window)
    with _terminated_by_signal(), cache.in_use(), contextlib.ExitStack() as stack:
        host = partial(_host, topology, artifacts, snapshot, extra, files or {}, progress)
        yield _come_up(stack, host, progress)


def _come_up(
    stack: contextlib.ExitStack,
    host: Callable[[bool], contextlib.AbstractContextManager[LabHost]],
    progress: Progress,
) -> LabHost:
    """Enter a host; another one if it lost timers, but for the last."""
    for _ in range(BOOTS - 1):
        try:
            return stack.enter_context(host(False))
        except LostTimersError as err:
            progress.note(f"{err}: once more")
    return stack.enter_context(host(True))


@contextlib.contextmanager
def _host(  # noqa: PLR0913 - those of boot_host, as they turned out
    topology: LabTopology,
    artifacts: LabArtifacts,
    snapshot: Path | None,
    extra: Sequence[str],
    files: Mapping[str, Path],
    progress: Progress,
    patient: bool,
) -> Iterator[LabHost]:
    with cache.run_folder() as run:
        (run / "shared").write_bytes(_shared_content(snapshot))
        blocks = deploy.write_deploy_disk(run / "deploy.tar", artifacts, dict(files))
        with _emulator(topology, artifacts, snapshot, extra, run) as host:
            with progress.step(f"{topology.name}: {'restore' if snapshot else 'boot'}", host.console_log):
                if snapshot:
                    host._restore()
                host._await_ready(BOOT_TIMEOUT_S, patient=patient)
                host.run(f"date -s @{time.time():.3f} >/dev/null; {deploy.unpack_command(blocks)}; {THAW}")
            yield host


def _shared_content(snapshot: Path | None) -> bytes:
    """Return what the shared memory starts with: as it was, because the meter keeps there who is who."""
    if snapshot and (snapshot / "shared").exists():
        return (snapshot / "shared").read_bytes()
    return bytes(SHARED_MEMORY_BYTES)


@contextlib.contextmanager
def _terminated_by_signal() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that `kill` cleans up as Ctrl-C does (main thread only)."""
    try:
        before = signal.signal(signal.SIGTERM, _raise_terminated)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class TerminatedError(KeyboardInterrupt):
    """SIGTERM came.  Not SystemExit: pytest takes that for a test that failed, and goes on with the next."""


def _raise_terminated(_number: int, _frame: object) -> None:
    raise TerminatedError
