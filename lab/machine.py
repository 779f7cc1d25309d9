"""How does one get an emulated host?  ``with boot_host("n4-full") as host: host.run("numactl -H")``."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from lab.build import LabArtifacts, build_all
from lab.emulated_host import LabHost, start_host
from lab.progress import Progress
from lab.snapshot import ready_snapshot
from lab.topology import LabTopology, read_topology

__all__ = ["LabHost", "boot_host"]


@contextlib.contextmanager
def boot_host(  # noqa: PLR0913 - choices by keyword, each with a default
    topology: LabTopology | str,
    *,
    meter: bool = False,
    plugin_args: Mapping[str, str] | None = None,
    cache_window: int = 0,
    snapshot: Path | None = None,
    cold: bool = False,
    files: Mapping[str, Path] | None = None,
    artifacts: LabArtifacts | None = None,
    progress: Progress | None = None,
) -> Iterator[LabHost]:
    """Boot an emulated host and end it with the block.

    It starts from ``snapshot``, by default from the topology's own "libvirtd is up" snapshot (made when it
    is absent), or with ``cold`` from the kernel.  ``meter`` loads the plugin, ``plugin_args`` are
    further arguments for it.  With a ``cache_window`` samples of IBS tell hits of the caches: of what was
    accessed within as many ops.  ``files`` (path inside → local file) are deployed together with the package.
    """
    topology = read_topology(topology) if isinstance(topology, str) else topology
    progress = progress or Progress()
    artifacts = artifacts or build_all(progress)
    if snapshot is None and not cold:
        snapshot = ready_snapshot(topology, artifacts, progress)
    with start_host(
        topology,
        artifacts,
        progress,
        snapshot=snapshot,
        meter=meter,
        plugin_args=plugin_args,
        cache_window=cache_window,
        files=files,
    ) as host:
        yield host
