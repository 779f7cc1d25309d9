"""The table that ``vmplace fit`` prints."""

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from vmplace.interfaces.tables import console, mib


def print_fit(data: Mapping[str, Any]) -> None:
    """Print what each node has and lacks, and which moves make room.

    Without such moves the command fails, and its error says that the guest fits nowhere.
    """
    out = console()
    vcpus = data["flavour"]["vcpus"]
    size = f"{vcpus} vCPU{'s' * (vcpus > 1)}, {mib(data['flavour']['memory_bytes'])} MiB"
    table = Table("node", "free cores", "room, MiB", "lacks")
    for node in data["nodes"]:
        table.add_row(
            str(node["nid"]),
            f"{node['free_cores']:.1f}",
            mib(node["room_bytes"]),
            ", ".join(node["lacks"]) or "nothing",
        )
    out.print(table)
    if data["nids"]:
        out.print(f"{size}: fits on node {' or '.join(map(str, data['nids']))}")
        return
    if data["evictions"]:
        out.print(f"{size}: fits on node {data['room_nid']} once these have moved:")
    for one in data["evictions"]:
        out.print(
            f"  {escape(one['guest'])}: {mib(one['size_bytes'])} MiB to node {one['to_nid']}: "
            f"{escape(one['reason'])}"
        )
