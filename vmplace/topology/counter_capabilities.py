"""What does this host count or sample of itself: IBS, cycles, the lab's meter?"""

import os

from vmplace.errors import OutsideError
from vmplace.outside import read_text, read_whole
from vmplace.topology.capability import Capability, Roots, cure_of

# QEMU, docs/specs/ivshmem-spec: the meter's counters of the emulated host.
METER_PCI_ID = ("0x1af4", "0x1110")
IBS_PERIOD = 262_144
# linux/perf_event.h: PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES, PERF_COUNT_HW_INSTRUCTIONS
HARDWARE, CYCLES, INSTRUCTIONS = 0, 0, 1


def probe_ibs(roots: Roots) -> Capability:
    """AMD's address samples; the kernel gives the PMU to one user of a CPU at a time."""
    try:
        pmu_type = read_whole(roots.sys / "bus/event_source/devices/ibs_op/type")
    except (OSError, OutsideError):
        cure = "AMD hosts have it, unless a hypervisor hides it (QEMU: -cpu ...,+ibs, patched)"
        return Capability("AMD IBS", False, "no ibs_op PMU", cure)
    from vmplace import native

    try:
        os.close(native.perf_open(pmu_type, 0, IBS_PERIOD, min(os.sched_getaffinity(0))))
    except OSError as err:
        cure = cure_of(err, "end other profilers")
        return Capability("AMD IBS", False, f"ibs_op cannot be opened: {err.strerror}", cure)
    return Capability("AMD IBS", True, "ibs_op can be used")


def probe_cycle_counters(roots: Roots) -> Capability:
    """Cycles per instruction tell whether moving memory helped a guest (policy/trial.py)."""
    from vmplace import native

    del roots
    name = "cycle counters"
    try:
        for event in CYCLES, INSTRUCTIONS:
            os.close(native.perf_count(HARDWARE, event, 0))
    except OSError as err:
        cure = cure_of(err, "in a virtual machine have its hypervisor show a PMU (the agent works without)")
        return Capability(name, False, f"perf counts no cycles or instructions: {err.strerror}", cure)
    return Capability(name, True, "what made a guest slower is undone")


def probe_meter(roots: Roots) -> Capability:
    """The lab's counters, a shared-memory PCI device."""
    for device in sorted(roots.sys.glob("bus/pci/devices/*")):
        try:
            found = tuple(read_text(device / name).strip() for name in ("vendor", "device"))
        except (OSError, OutsideError):
            continue
        if found == METER_PCI_ID:
            return Capability("meter", True, f"PCI device {device.name}")
    return Capability("meter", False, "no PCI device 1af4:1110: only the emulated host has it")
