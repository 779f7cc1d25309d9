"""Which states of an emulated host are kept, so that a boot takes seconds?

"ready": booted, libvirtd up, QEMU's capabilities probed, the first domain start behind it.  Scenarios keep
further states with their guests running inside (``prepared_snapshot``).
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from lab import cache
from lab.build import LabArtifacts
from lab.emulated_host import LabHost, start_host
from lab.emulator import emulator_arguments, kernel_command_line
from lab.errors import LabError
from lab.progress import Progress
from lab.topology import LabTopology

# A domain with firmware only: its start makes libvirt probe and the page cache warm.
FIRST_DOMAIN = """<domain type="kvm"><name>first</name><memory unit="MiB">64</memory><vcpu>1</vcpu>
<os><type arch="x86_64" machine="q35">hvm</type></os><devices>
<emulator>/usr/bin/qemu-system-x86_64</emulator></devices></domain>
"""
WARM_UP = """set -e
systemctl is-system-running --wait >/dev/null || true
virsh -q capabilities >/dev/null
virsh -q domcapabilities --virttype kvm >/dev/null
cat >/run/first.xml
virsh -q create /run/first.xml
virsh -q destroy first
python3 -c 'import click, msgspec, numpy, rich, libvirt'
rm -rf /run/first.xml /var/log/libvirt/qemu/first.log
sync
"""
BOOTS = 3
REFINING_S = 120
CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
AWAIT_CLOCK = f"""for _ in $(seq {REFINING_S}); do
    read -r clock <{CLOCK}; [ "$clock" = tsc-early ] || break; sleep 1
done; echo $clock
"""


def machine_inputs(topology: LabTopology, artifacts: LabArtifacts) -> dict[str, str]:
    """Return all that a snapshot of the bare host depends on."""
    return {
        "arguments": repr(emulator_arguments(topology, artifacts)),
        "command_line": kernel_command_line(),
        "qemu": artifacts.qemu.parent.name,
        "rootfs": artifacts.rootfs_image.parent.name,
        "toolbox": artifacts.toolbox.parent.name,
    }


def ready_snapshot(topology: LabTopology, artifacts: LabArtifacts, progress: Progress) -> Path:
    """Return the snapshot of a host that has just come up, booting it once if it is absent."""
    inputs = machine_inputs(topology, artifacts) | {"warm_up": WARM_UP + FIRST_DOMAIN}

    def build(folder: Path) -> None:
        for _ in range(BOOTS):
            with start_host(topology, artifacts, progress, snapshot=None) as host:
                if not _has_tsc(host):
                    progress.note(f"{topology.name}: its TSC could not be calibrated, booting again")
                    continue
                with progress.step(f"{topology.name}: warm up libvirt", host.console_log):
                    host.run(WARM_UP, input=FIRST_DOMAIN, timeout=600)
                with progress.step(f"{topology.name}: snapshot"):
                    host.save(folder)
                return
        raise LabError(
            f"{topology.name}: no TSC clock in {BOOTS} boots", hint="the machine is too busy: try again later"
        )

    return cache.artifact(f"snapshot-ready-{topology.name}", inputs, build)


def _has_tsc(host: LabHost) -> bool:
    """Return whether the kernel trusts its TSC: without a frequency for it KVM runs no guest.

    As long as the kernel refines the frequency the clock is "tsc-early".  On a busy machine reads of the HPET
    take too long for that, and it tries again every second (tsc_refine_calibration_work(), 6.12).
    """
    return host.run(AWAIT_CLOCK, timeout=2 * REFINING_S).stdout.strip() == "tsc"


def prepared_snapshot(  # noqa: PLR0913 - choices by keyword
    name: str,
    topology: LabTopology,
    artifacts: LabArtifacts,
    progress: Progress,
    *,
    inputs: Mapping[str, str],
    prepare: Callable[[LabHost], None],
    files: Mapping[str, Path] | None = None,
    meter: bool = False,
) -> Path:
    """Return a snapshot of the ready host after ``prepare(host)``, e.g. with guests running.

    ``inputs`` must name everything that ``prepare`` depends on; ``files`` are deployed before it runs.
    With ``meter`` the plugin watches, so that which guest is which is part of the snapshot.
    """
    parent = ready_snapshot(topology, artifacts, progress)
    key = {
        **inputs,
        "parent": parent.name,
        "payload": artifacts.payload.parent.name if artifacts.payload else "",
    }

    def build(folder: Path) -> None:
        with start_host(topology, artifacts, progress, snapshot=parent, files=files, meter=meter) as host:
            prepare(host)
            with progress.step(f"{name}: snapshot"):
                host.save(folder)

    return cache.artifact(f"snapshot-{name}", key, build)
