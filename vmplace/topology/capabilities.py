"""What can this host do for vmplace?  Each probe tries the real thing and says what it saw.

An answer is yes, no, or None: not known.  Only the needed ones decide whether the agent can work.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from vmplace.errors import OutsideError, UnsupportedHostError, VmplaceError
from vmplace.outside import read_text, read_whole, whole
from vmplace.topology.capability import Capability, Roots
from vmplace.topology.counter_capabilities import probe_cycle_counters, probe_ibs, probe_meter
from vmplace.topology.damon import (
    ADMIN,
    MARK,
    OPERATIONS_CURE,
    TRACE_POINT,
    TRACE_POINT_CURE,
    foreign_use,
    known_operations,
    lacking,
)
from vmplace.topology.guests_libvirt import SYSTEM_URI, Libvirt, LibvirtAnswer
from vmplace.topology.numad import find_numad
from vmplace.topology.placement import FEATURES, TDP_MMU_CURE, probe_features
from vmplace.topology.procfs import NORMAL_BALANCING, parse_status
from vmplace.topology.sysfs import read_host

# linux/capability.h
CAPABILITIES = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_SYS_NICE": 23}
PAGEMAP_PRESENT, PAGEMAP_PFN = 1 << 63, (1 << 55) - 1
LIBVIRT_ANSWER_S = 10.0
IN_USE = "it is in use"
PMD_SIZE = "hugepages-2048kB"
"""Each size has a folder since Linux 6.8 (Documentation/admin-guide/mm/transhuge.rst)."""


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
    cure = "nothing to place on one node; try the emulated host: vmplace-lab boot"
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


def probe_access_sampling(roots: Roots) -> Capability:
    """One source that tells which pages were touched is needed; the first of these is the best.

    They come in the order in which source "auto" tries them (sampling/registry.py).
    """
    sources = [probe_kvm_placement(roots), probe_idle_pages(roots), probe_damon(roots), probe_ibs(roots)]
    usable = [source.name for source in sources if source.answer]
    if usable:
        return Capability("access sampling", True, f"by {usable[0]}", needed=True)
    why = "; ".join(f"{source.name}: {source.why}" for source in sources)
    _, idle, damon, _ = sources
    cure = f"free DAMON, as is said there, or {idle.cure}" if damon.why.startswith(IN_USE) else idle.cure
    return Capability("access sampling", False, why, cure, needed=True)


def probe_idle_pages(roots: Roots) -> Capability:
    """Idle page tracking honours the guest's accessed bits."""
    cure = "boot a kernel with CONFIG_IDLE_PAGE_TRACKING=y, and run as root"
    return _probe_open("idle page tracking", roots.sys / "kernel/mm/page_idle/bitmap", os.O_RDWR, cure)


def probe_damon(roots: Roots) -> Capability:
    """DAMON, the other sampler of a stock kernel."""
    cure = "boot a kernel with CONFIG_DAMON_VADDR=y and CONFIG_DAMON_SYSFS=y, and run as root"
    path = roots.sys / ADMIN / "nr_kdamonds"
    found = _probe_open("DAMON", path, os.O_RDWR, cure)
    if not found.answer:
        return found
    try:
        if use := foreign_use(roots.sys, roots.run / MARK, roots.proc):
            return Capability("DAMON", False, f"{IN_USE} {use.why}", use.cure)
        # An agent that uses it has looked at that.
        operations = known_operations(roots.sys)
    except (OSError, OutsideError) as err:
        return Capability("DAMON", None, f"its settings cannot be read: {err}", cure)
    if operations is not None and (why := lacking(operations)):
        return Capability("DAMON", False, why, OPERATIONS_CURE)
    traced = _probe_open("DAMON", roots.sys / TRACE_POINT, os.O_RDONLY, TRACE_POINT_CURE)
    return found if traced.answer else traced


def probe_pagemap(roots: Roots) -> Capability:
    """Frame numbers in pagemap are zeroed without CAP_SYS_ADMIN (fs/proc/task_mmu.c, pagemap_open)."""
    page = ctypes.create_string_buffer(b"x", 4096)
    try:
        with (roots.proc / "self/pagemap").open("rb", buffering=0) as pagemap:
            pagemap.seek(ctypes.addressof(page) // 4096 * 8)
            entry = int.from_bytes(pagemap.read(8), "little")
    except OSError as err:
        return Capability(
            "pagemap", False, f"{roots.proc}/self/pagemap: {err.strerror}", "run as root", needed=True
        )
    if entry & PAGEMAP_PRESENT and entry & PAGEMAP_PFN:
        return Capability("pagemap", True, "shows frame numbers", needed=True)
    cure = "run as root, or with CAP_SYS_ADMIN"
    return Capability("pagemap", False, "hides frame numbers", cure, needed=True)


def probe_kpageflags(roots: Roots) -> Capability:
    """Tells heads of huge folios."""
    cure = "boot a kernel with CONFIG_PROC_PAGE_MONITOR=y, and run as root"
    return _probe_open("kpageflags", roots.proc / "kpageflags", os.O_RDONLY, cure)


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


def probe_kvm_placement(roots: Roots) -> Capability:
    """The patched KVM says which node touched a page, replicates, and moves pages while the guest runs."""
    name = "KVM placement patch"
    try:
        features = probe_features(roots.dev)
    except UnsupportedHostError as err:
        return Capability(name, False, str(err), f"{err.hint} (the agent works without)")
    has = [word for bit, word in FEATURES.items() if features & bit]
    offered = f"the placement fd offers {', '.join(has) or 'nothing'}"
    return Capability(name, bool(has), offered, TDP_MMU_CURE)


def probe_hugepages(roots: Roots) -> Capability:
    """Pools of hugetlb pages; guests in them are not moved."""
    try:
        host = read_host(roots.sys)
    except (VmplaceError, OSError) as err:
        return Capability("hugetlb pools", None, str(err), "see NUMA nodes")
    pools = [
        f"node {node.nid}: {pool.total} of {pool.page_size_bytes >> 10} KiB"
        for node in host.nodes
        for pool in node.hugepages
        if pool.total
    ]
    if pools:
        return Capability("hugetlb pools", True, "; ".join(pools))
    return Capability("hugetlb pools", False, "all are empty, as huge folios come from THP")


def probe_thp(roots: Roots) -> Capability:
    """Transparent huge pages keep TLB reach when guests move."""
    path = roots.sys / "kernel/mm/transparent_hugepage/enabled"
    cure = f"echo madvise > {path}"
    try:
        mode = read_text(path).partition("[")[2].partition("]")[0]
    except OSError:
        return Capability(
            "transparent huge pages",
            False,
            "this kernel has none",
            "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y",
        )
    if mode in {"always", "madvise"}:
        return Capability("transparent huge pages", True, mode)
    return Capability("transparent huge pages", False, mode, cure)


def probe_folio_sizes(roots: Roots) -> Capability:
    """A page of a folio between 4 KiB and 2 MiB takes the whole folio along when it moves."""
    name, folder = "only 4 KiB and 2 MiB folios", roots.sys / "kernel/mm/transparent_hugepage"
    try:
        inherited = "[never]" not in read_text(folder / "enabled")
        modes = {path.parent.name: read_text(path) for path in sorted(folder.glob("hugepages-*/enabled"))}
    except OSError:
        return Capability(name, True, "this kernel has no transparent huge pages")
    reported = {size: text.partition("[")[2].partition("]")[0] for size, text in modes.items()}
    odd = [
        size
        for size, mode in reported.items()
        if size != PMD_SIZE and mode != "never" and (mode != "inherit" or inherited)
    ]
    if not odd:
        return Capability(name, True, "no other size is on")
    cure = f"echo never > {folder}/{odd[0]}/enabled (else pages move that no plan names and no undo returns)"
    return Capability(name, False, ", ".join(f"{size}: {reported[size]}" for size in odd), cure)


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
    cure = "systemctl start libvirtd (guests are found without it, too)"
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


def _probe_open(name: str, path: Path, flags: int, cure: str) -> Capability:
    try:
        os.close(os.open(path, flags))
    except OSError as err:
        return Capability(name, False, f"{path}: {err.strerror}", cure)
    return Capability(name, True, f"{path} can be used")


def _iter_quietly(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []
