"""By what can this host tell which pages were touched, by whom, and where they are?"""

import ctypes
import os
from pathlib import Path

from vmplace.errors import OutsideError, UnsupportedHostError
from vmplace.topology.capability import Capability, Roots, cure_of
from vmplace.topology.counter_capabilities import probe_ibs
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
from vmplace.topology.placement import FEATURES, TDP_MMU_CURE, probe_features

PAGEMAP_PRESENT, PAGEMAP_PFN = 1 << 63, (1 << 55) - 1
IN_USE = "it is in use"


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
    cure = "boot a kernel with CONFIG_IDLE_PAGE_TRACKING=y"
    return _probe_open("idle page tracking", roots.sys / "kernel/mm/page_idle/bitmap", os.O_RDWR, cure)


def probe_damon(roots: Roots) -> Capability:
    """DAMON, the other sampler of a stock kernel."""
    cure = "boot a kernel with CONFIG_DAMON_VADDR=y and CONFIG_DAMON_SYSFS=y"
    path = roots.sys / ADMIN / "nr_kdamonds"
    found = _probe_open("DAMON", path, os.O_RDWR, cure)
    if not found.answer:
        return found
    try:
        use = foreign_use(roots.sys, roots.run / MARK, roots.proc)
        why = lacking(known_operations(roots.sys))
    except OSError as err:
        return Capability("DAMON", None, f"its settings cannot be read: {err}", cure_of(err, cure))
    except OutsideError as err:
        return Capability("DAMON", None, f"its settings cannot be read: {err}", cure)
    if why:
        # Whoever has it: freed, it would serve nobody here.
        return Capability("DAMON", False, why, OPERATIONS_CURE)
    if use:
        return Capability("DAMON", False, f"{IN_USE} {use.why}", use.cure)
    traced = _probe_open("DAMON", roots.sys / TRACE_POINT, os.O_RDONLY, TRACE_POINT_CURE)
    return found if traced.answer else traced


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
    cure = "boot a kernel with CONFIG_PROC_PAGE_MONITOR=y"
    return _probe_open("kpageflags", roots.proc / "kpageflags", os.O_RDONLY, cure)


def _probe_open(name: str, path: Path, flags: int, cure: str) -> Capability:
    try:
        os.close(os.open(path, flags))
    except OSError as err:
        return Capability(name, False, f"{path}: {err.strerror}", cure_of(err, cure))
    return Capability(name, True, f"{path} can be used")
