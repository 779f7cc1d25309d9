"""How is a scenario's guest described to libvirt?  Pure: scenario in, domain XML out.

Devices are the fewest that a payload needs, because each one costs time at boot: a virtio-serial port to
talk, a serial console into a file for the day when the guest does not come up, and no disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from xml.etree import ElementTree as ET

from lab.scenario import Guest, Scenario
from lab.workload import COMMAND_LINE_BYTES
from vmplace.errors import VmplaceError

PORT = "vmplace.payload"
KERNEL_WORDS = "console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check rcupdate.rcu_expedited=1"
EMULATOR = "/usr/bin/qemu-system-x86_64"
SMALL_PAGES_EMULATOR = "/usr/local/bin/vmp-small-pages"
METADATA_URI = "https://vmplace.dev/xmlns/lab/1"


@dataclass(frozen=True)
class Boot:
    """Files of the emulated host that guests start from, and the folder of their sockets and logs."""

    kernel: PurePosixPath
    initramfs: PurePosixPath
    run_dir: PurePosixPath

    def socket(self, guest_name: str) -> PurePosixPath:
        """Return the host's end of the guest's port."""
        return self.run_dir / f"{guest_name}.sock"

    def console_log(self, guest_name: str) -> PurePosixPath:
        """Return the file of the guest's serial console."""
        return self.run_dir / f"{guest_name}.log"


def domain_xml(scenario: Scenario, guest: Guest, boot: Boot, cpus: Mapping[int, tuple[int, ...]]) -> str:
    """Return the domain of ``guest``, its vCPUs pinned to their start nodes (``cpus``: nid -> host CPUs)."""
    guest_id = scenario.guest_id(guest.name)
    domain = ET.Element("domain", type="kvm")
    _text(domain, "name", guest.name)
    _metadata(domain, guest_id, scenario.name)
    _text(domain, "memory", str(guest.memory_mib), unit="MiB")
    _memory_backing(domain, guest)
    _text(domain, "vcpu", str(len(guest.start_nids)), placement="static")
    _pins(domain, guest, cpus)
    _boot(domain, guest, guest.workload.words(guest_id=guest_id, seed=scenario.seed, wait=True), boot)
    features = ET.SubElement(domain, "features")
    ET.SubElement(features, "acpi")
    ET.SubElement(features, "apic")
    _cpu(domain, guest)
    _clock(domain)
    _text(domain, "on_reboot", "destroy")
    _text(domain, "on_crash", "destroy")
    _devices(domain, guest, boot)
    ET.indent(domain)
    return ET.tostring(domain, encoding="unicode") + "\n"


def cpu_list(cpus: tuple[int, ...]) -> str:
    """Return CPUs the way libvirt writes them: "0,1,6"."""
    return ",".join(map(str, cpus))


def _text(parent: ET.Element, tag: str, text: str, **attributes: str) -> ET.Element:
    element = ET.SubElement(parent, tag, attributes)
    element.text = text
    return element


def _metadata(domain: ET.Element, guest_id: int, scenario: str) -> None:
    metadata = ET.SubElement(domain, "metadata")
    ET.register_namespace("lab", METADATA_URI)
    ET.SubElement(metadata, f"{{{METADATA_URI}}}guest", scenario=scenario, id=str(guest_id))


def _memory_backing(domain: ET.Element, guest: Guest) -> None:
    if guest.backing == "anonymous":
        return
    backing = ET.SubElement(domain, "memoryBacking")
    if guest.backing == "hugetlb":
        ET.SubElement(backing, "hugepages")
    elif guest.backing == "locked":
        ET.SubElement(backing, "locked")
    else:
        ET.SubElement(backing, "source", type="memfd")
        ET.SubElement(backing, "access", mode="shared")


def _pins(domain: ET.Element, guest: Guest, cpus: Mapping[int, tuple[int, ...]]) -> None:
    tune = ET.SubElement(domain, "cputune")
    for vcpu, nid in enumerate(guest.start_nids):
        ET.SubElement(tune, "vcpupin", vcpu=str(vcpu), cpuset=cpu_list(cpus[nid]))
    everywhere = sorted({cpu for nid in guest.start_nids for cpu in cpus[nid]})
    ET.SubElement(tune, "emulatorpin", cpuset=cpu_list(tuple(everywhere)))
    if guest.backing == "locked":
        # libvirt asks for a limit where memory is locked; QEMU itself needs some beside the guest's RAM.
        _text(ET.SubElement(domain, "memtune"), "hard_limit", str(guest.memory_mib + 256), unit="MiB")


def _boot(domain: ET.Element, guest: Guest, words: tuple[str, ...], boot: Boot) -> None:
    cmdline = " ".join((KERNEL_WORDS, *(f"vmp.{word}" for word in words)))
    if len(cmdline) >= COMMAND_LINE_BYTES:
        raise VmplaceError(
            f"guest {guest.name}: a kernel command line of {len(cmdline)} bytes is over {COMMAND_LINE_BYTES}",
            hint="declare fewer streams or ranges",
        )
    system = ET.SubElement(domain, "os")
    _text(system, "type", "hvm", arch="x86_64", machine="q35")
    _text(system, "kernel", str(boot.kernel))
    _text(system, "initrd", str(boot.initramfs))
    _text(system, "cmdline", cmdline)


def _cpu(domain: ET.Element, guest: Guest) -> None:
    cpu = ET.SubElement(domain, "cpu", mode="host-passthrough", check="none", migratable="off")
    if not guest.cells:
        return
    numa = ET.SubElement(cpu, "numa")
    for cell_id, cell in enumerate(guest.cells):
        memory = str(cell.memory_mib)
        ET.SubElement(numa, "cell", id=str(cell_id), cpus=cpu_list(cell.vcpus), memory=memory, unit="MiB")


def _clock(domain: ET.Element) -> None:
    clock = ET.SubElement(domain, "clock", offset="utc")
    ET.SubElement(clock, "timer", name="hpet", present="no")
    ET.SubElement(clock, "timer", name="pit", tickpolicy="delay")
    ET.SubElement(clock, "timer", name="rtc", tickpolicy="catchup")


def _devices(domain: ET.Element, guest: Guest, boot: Boot) -> None:
    devices = ET.SubElement(domain, "devices")
    _text(devices, "emulator", EMULATOR if guest.huge_pages else SMALL_PAGES_EMULATOR)
    ET.SubElement(devices, "controller", type="usb", model="none")
    ET.SubElement(devices, "controller", type="virtio-serial", index="0")
    serial = ET.SubElement(devices, "serial", type="file")
    ET.SubElement(serial, "source", path=str(boot.console_log(guest.name)))
    channel = ET.SubElement(devices, "channel", type="unix")
    ET.SubElement(channel, "source", mode="bind", path=str(boot.socket(guest.name)))
    ET.SubElement(channel, "target", type="virtio", name=PORT)
    ET.SubElement(devices, "memballoon", model="none")
