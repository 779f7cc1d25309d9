"""What is the emulated machine to QEMU: its arguments, its devices' saved state, its logs?"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab import cache
from lab.build import LabArtifacts
from lab.errors import LabError
from lab.qemu import FIRMWARE
from lab.toolbox import inside
from lab.topology import CPU_MODEL, LabTopology, cpu_nids, memory_ranges, qemu_arguments

SHARED_MEMORY_BYTES = 4 << 20
# The TSCs of emulated CPUs are one clock, which the kernel cannot know.  Without the word it reads the HPET
# at every look at the time: a device access, under the emulator's one lock.  The HPET stays, to calibrate by.
# Emulated interrupts look slow, and the kernel would have perf sample ever less.
_COMMAND_LINE = (
    "root=/dev/vda rw console=ttyS0 loglevel=4 mitigations=off net.ifnames=0 systemd.show_status=0"
    " audit=0 selinux=0 nowatchdog tsc=reliable sysctl.kernel.perf_cpu_time_max_percent=0"
)
# Each event descriptor is one more that the emulator's main thread polls at every timer of an emulated CPU.
NO_EVENTFD = "ioeventfd=off"
KEPT_LOGS = 40
# In the tree: the run folder (sockets, deploy disk, shared memory) and the tmpfs folder (memory, overlay).
RUN, RAM = Path("/run/lab"), Path("/run/ram")
START = r"""
mkdir /run/ram
if [ -n "$2" ]; then cp --sparse=always "$2"/ram/* /run/ram/; fi
qemu-img create -q -f qcow2 -b "$1" -F "$3" /run/ram/disk.qcow2
shift 3
exec "$@"
"""


def kernel_command_line(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the emulated host's command line.

    Its TSC is this machine's.  A kernel calibrates it by reading timers in time, which an emulated CPU often
    cannot: so it gets the frequency if this machine is a virtual one whose hypervisor says it.
    (Elsewhere "cpu MHz" is how fast a core runs at the moment.)
    """
    reported = dict(re.findall(r"^(flags|cpu MHz)\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE))
    if {"hypervisor", "tsc_known_freq"} <= set(reported.get("flags", "").split()) and "cpu MHz" in reported:
        return f"{_COMMAND_LINE} tsc_early_khz={float(reported['cpu MHz']) * 1000:.0f}"
    return _COMMAND_LINE


def emulator_arguments(topology: LabTopology, artifacts: LabArtifacts) -> list[str]:
    """Return the emulator's arguments that make up the machine; a snapshot fits exactly these."""
    channel = f"socket,id=channel,path={RUN}/channel.sock,server=on,wait=off"
    shared = f"mem-path={RUN}/shared,share=on"
    return [
        *(part for folder in FIRMWARE for part in ("-L", folder)),
        *("-machine", f"pc-q35-10.0,usb=off{',hmat=on' if topology.hmat else ''}"),
        *("-accel", "tcg,thread=multi", "-cpu", f"{CPU_MODEL},+svm,+npt,+ibs"),
        *qemu_arguments(topology, str(RAM)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-vga", "none", "-rtc", "base=utc"),
        *("-kernel", str(inside(artifacts.kernel)), "-append", kernel_command_line()),
        *_disk("root", f"{RAM}/disk.qcow2", "qcow2"),
        *_disk("deploy", f"{RUN}/deploy.tar", "raw,readonly=on"),
        *("-device", f"virtio-serial-pci,{NO_EVENTFD}", "-chardev", channel),
        *("-device", "virtserialport,chardev=channel,name=org.qemu.guest_agent.0"),
        *("-object", f"memory-backend-file,id=shared,size={SHARED_MEMORY_BYTES},{shared}"),
        *("-device", "ivshmem-plain,memdev=shared,master=on", "-device", f"virtio-rng-pci,{NO_EVENTFD}"),
    ]


def _disk(name: str, path: str, options: str) -> list[str]:
    drive = f"if=none,id={name},file={path},format={options},cache=unsafe"
    return ["-drive", drive, "-device", f"virtio-blk-pci,drive={name},num-queues=1,{NO_EVENTFD}"]


def port_arguments(ports: Sequence[str]) -> list[str]:
    """Return the emulator's arguments for further serial ports of the machine, each a socket outside."""
    words = []
    for name in ports:
        words += ["-chardev", f"socket,id={name},path={RUN}/{name}.sock,server=on,wait=off"]
        words += ["-device", f"virtserialport,chardev={name},name={name}"]
    return words


def meter_arguments(topology: LabTopology, plugin: Path, options: Mapping[str, str]) -> list[str]:
    """Return the emulator's arguments that load the meter; it does not change the machine."""
    memory = ":".join(f"{r.start:#x}-{r.end:#x}@{r.nid}" for r in memory_ranges(topology))
    cpus = ":".join(str(nid) for nid in cpu_nids(topology))
    given = {"file": str(inside(plugin)), "shared": f"{RUN}/shared", "memory": memory, "cpus": cpus}
    given["ram"] = f"{RAM}/node"
    return ["-plugin", ",".join(f"{key}={value}" for key, value in (given | dict(options)).items())]


def cache_arguments(window: int) -> list[str]:
    """Return the emulator's arguments by which IBS tells hits of L1 and L2 among the last ``window`` ops.

    They do not change the machine.  Without them every sampled access is one to memory, as the meter counts.
    """
    return ["-global", f"{CPU_MODEL}-x86_64-cpu.ibs-cache-window={window}"]


def forget_shared_address(state: bytes) -> bytes:
    """Return a machine state in which the ivshmem memory has no guest-physical address.

    The stream names each memory block with length and address, and QEMU refuses a block that it does not
    transfer (x-ignore-shared) at another address.  But this one's address is a PCI BAR, which is unset
    until the device's own state has been loaded, later in the same stream.
    """
    name = b"/shared" + SHARED_MEMORY_BYTES.to_bytes(8, "big")
    if state.count(name) != 1:
        raise LabError(
            "the machine state does not name the shared memory where QEMU 10.0 does",
            hint="take the QEMU that the lab builds",
        )
    start = state.index(name) + len(name)
    return state[:start] + bytes(8) + state[start + 8 :]


def log_files(topology: LabTopology, run: Path) -> Path:
    """Return the path of a run's logs without their suffixes; the oldest of runs that ended are removed."""
    folder = cache.cache_root() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    logs = sorted(folder.glob("*.*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
    running = [f"-{path.name}." for path in (cache.cache_root() / "run").glob("*")]
    for old in logs[KEPT_LOGS:]:
        if not any(name in old.name for name in running):
            old.unlink(missing_ok=True)
    return folder / f"{topology.name}-{run.name}"
