"""What can this host do for vmplace?  Each probe tries the real thing and says what it saw.

An answer is yes, no, or None: not known.  Only the needed ones decide whether the agent can work.
"""

from collections.abc import Callable
from pathlib import Path

from vmplace.errors import VmplaceError
from vmplace.outside import read_text, read_whole, whole
from vmplace.topology.capability import Capability, Roots
from vmplace.topology.counter_capabilities import probe_cycle_counters, probe_ibs, probe_meter
from vmplace.topology.guests_libvirt import SYSTEM_URI, Libvirt, LibvirtAnswer, cure_for
from vmplace.topology.memory_capabilities import probe_folio_sizes, probe_hugepages, probe_thp
from vmplace.topology.numad import find_numad
from vmplace.topology.procfs import NORMAL_BALANCING, parse_status
from vmplace.topology.sampling_capabilities import (
    probe_access_sampling,
    probe_damon,
    probe_idle_pages,
    probe_kpageflags,
    probe_kvm_placement,
    probe_pagemap,
)
from vmplace.topology.sysfs import read_host

# linux/capability.h
CAPABILITIES = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_SYS_NICE": 23}
LIBVIRT_ANSWER_S = 10.0


def probe_host(roots: Roots | None = None, *, libvirt_uri: str = SYSTEM_URI) -> list[Capability]:
    """Return all capabilities, needed ones first."""
    roots = roots or Roots()
    found = [probe(roots) for probe in PROBES]
    found += probe_libvirt(libvirt_uri)
    return sorted(found, key=lambda capability: not capability.needed)


def can_work(capabilities: list[Capability]) -> bool:
    """Tell whether everything that the agent needs is there."""
    return all(capability.answer for capability in capabilities if capability.needed)


def probe_nodes(roots: Roots) -> Capability:
    """Placement needs a choice: two nodes with memory."""
    try:
        host = read_host(roots.sys)
    except (VmplaceError, OSError) as err:
        return Capability("NUMA nodes", False, str(err), getattr(err, "hint", None), needed=True)
    lone = [f"node {node.nid} has no CPU" for node in host.nodes if not node.cpus]
    lone += [f"node {node.nid} has no memory" for node in host.nodes if not node.memory_bytes]
    why = f"nids {', '.join(map(str, host.nids))}" + "".join(f"; {fact}" for fact in lone)
    if len(host.memory_nids) > 1:
        return Capability("NUMA nodes", True, why, needed=True)
    cure = "nothing to place on one node; try the emulated host: vmplace lab boot"
    return Capability("NUMA nodes", False, f"{why}: placement needs two nodes with memory", cure, needed=True)


def probe_kvm(roots: Roots) -> Capability:
    """Guests are processes that use /dev/kvm."""
    if (roots.dev / "kvm").exists():
        return Capability("KVM", True, f"{roots.dev / 'kvm'} is there", needed=True)
    cure = "load kvm_amd or kvm_intel; enable SVM or VT-x in the firmware"
    return Capability("KVM", False, f"{roots.dev / 'kvm'} is missing", cure, needed=True)


def probe_native(_: Roots) -> Capability:
    """The C core does all bulk work."""
    try:
        from vmplace.native import _native
    except ImportError as err:
        return Capability(
            "C core", False, str(err), "install vmplace with a C compiler, or a wheel", needed=True
        )
    return Capability("C core", True, f"loaded from {_native.__file__}", needed=True)


def probe_move_permission(roots: Roots) -> Capability:
    """move_pages(2) asks for the right to trace; CAP_SYS_NICE allows pages that others map, too."""
    status = parse_status(read_text(roots.proc / "self/status"))
    effective = whole(status.get("CapEff", "0"), base=16, what="CapEff")
    lacking = [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]
    if not lacking:
        return Capability("move pages", True, f"has {', '.join(CAPABILITIES)}", needed=True)
    return Capability("move pages", False, f"lacks {', '.join(lacking)}", "run as root", needed=True)


def probe_numa_balancing(roots: Roots) -> Capability:
    """The kernel's own balancing works against managed guests."""
    path = roots.proc / "sys/kernel/numa_balancing"
    name = "NUMA balancing is out of the way"
    try:
        mode = read_whole(path)
    except FileNotFoundError:
        return Capability(name, True, "this kernel has none")
    except (OSError, ValueError) as err:
        return Capability(name, None, f"{path} cannot be read: {err}", "run as root")
    if not mode & NORMAL_BALANCING:
        return Capability(name, True, f"kernel.numa_balancing is {mode}")
    cure = "the agent switches it off while it places guests, unless KVM keeps it off them, and gives it back"
    return Capability(name, False, f"kernel.numa_balancing is {mode}", cure)


def probe_numad(roots: Roots) -> Capability:
    """numad moves guests, whatever the agent decided."""
    name = "numad is out of the way"
    numad = find_numad(roots.root, roots.proc)
    if numad is None:
        return Capability(name, True, "it does not run")
    if not numad.scans_all and not numad.included:
        return Capability(name, True, f"it runs (pid {numad.pid}), but moves only processes it was given")
    count = len(numad.excluded)
    off = f"; {count} {'processes are' if count > 1 else 'process is'} kept off it" if count else ""
    cure = "systemctl disable --now numad, or numad -x PID for each guest (vmplace status names them)"
    return Capability(name, False, f"it runs (pid {numad.pid}) and moves guests, too{off}", cure)


def probe_cpuset(roots: Roots) -> Capability:
    """libvirt's restrictive numatune and vCPU pins go through cgroup v2."""
    path = roots.sys / "fs/cgroup/cgroup.controllers"
    cure = "boot with systemd.unified_cgroup_hierarchy=1"
    try:
        controllers = read_text(path).split()
    except OSError:
        return Capability("cgroup v2 cpuset", False, "no unified hierarchy at /sys/fs/cgroup", cure)
    if "cpuset" in controllers:
        return Capability("cgroup v2 cpuset", True, "the controller is there")
    return Capability("cgroup v2 cpuset", False, "the hierarchy has no cpuset controller", cure)


def probe_hmat(roots: Roots) -> Capability:
    """Firmware's bandwidth figures; without them distances stand in."""
    pattern = "devices/system/node/node[0-9]*/access[01]/initiators/read_bandwidth"
    reported = sorted({path.parts[-4] for path in roots.sys.glob(pattern)})
    if reported:
        return Capability("HMAT", True, f"bandwidth of {', '.join(reported)}")
    return Capability("HMAT", False, "firmware tells no bandwidth", "distances are used instead")


def probe_debugfs(roots: Roots) -> Capability:
    """KVM's debugfs tells vCPU threads of VMMs that do not name them."""
    cure = "mount -t debugfs none /sys/kernel/debug"
    if (roots.sys / "kernel/debug/kvm").is_dir():
        return Capability("debugfs", True, "KVM's directory is there")
    if any(_iter_quietly(roots.sys / "kernel/debug")):
        return Capability("debugfs", False, "mounted, but without KVM's directory", "load the kvm module")
    return Capability("debugfs", False, "not mounted", cure)


def probe_libvirt(uri: str = SYSTEM_URI) -> list[Capability]:
    """libvirt tells names, vNUMA cells and policies; guests are found without it, too."""
    try:
        libvirt = Libvirt(uri, answer_s=LIBVIRT_ANSWER_S)
    except VmplaceError as err:
        return [Capability("libvirt", False, str(err), err.hint)]
    answer = libvirt.read()
    libvirt.close()
    if answer.problem is None:
        running = Capability("libvirt", True, f"{uri}: {len(answer.descriptions)} running domains")
        return [running, _bound_guests(answer)]
    cure = f"{cure_for(uri)} (guests are found without it, too)"
    return [Capability("libvirt", False, answer.problem, cure)]


def _bound_guests(answer: LibvirtAnswer) -> Capability:
    """Guests with strict numatune stay on its nodes, which libvirt cannot change while they run."""
    name, strict = "guests can be given other nodes", []
    for uuid, said in answer.policies.items():
        if said.numatune.is_strict and uuid in answer.descriptions:
            nids = ",".join(map(str, said.numatune.allowed() or ()))
            strict.append(f"{answer.descriptions[uuid].name} (nodes {nids or 'by cell'})")
    if not strict:
        return Capability(name, True, "none has strict <numatune>")
    cure = (
        "vmplace policy apply --config GUEST: <memory mode='restrictive'> from its next start on, same nodes"
    )
    return Capability(name, False, f"strict <numatune>: {', '.join(sorted(strict))}", cure)


PROBES: tuple[Callable[[Roots], Capability], ...] = (
    probe_nodes,
    probe_kvm,
    probe_native,
    probe_access_sampling,
    probe_pagemap,
    probe_move_permission,
    probe_idle_pages,
    probe_damon,
    probe_kpageflags,
    probe_numa_balancing,
    probe_numad,
    probe_cpuset,
    probe_hmat,
    probe_ibs,
    probe_cycle_counters,
    probe_kvm_placement,
    probe_meter,
    probe_hugepages,
    probe_thp,
    probe_folio_sizes,
    probe_debugfs,
)


def _iter_quietly(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []
