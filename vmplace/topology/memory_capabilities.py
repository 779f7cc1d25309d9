"""In which sizes does this host hand out memory: pools of huge pages, transparent ones, other folios?"""

from vmplace.errors import VmplaceError
from vmplace.outside import read_text
from vmplace.topology.capability import Capability, Roots
from vmplace.topology.sysfs import read_host

PMD_SIZE = "hugepages-2048kB"
"""Each size has a folder since Linux 6.8 (Documentation/admin-guide/mm/transhuge.rst)."""


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
