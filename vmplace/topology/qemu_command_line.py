"""Read a guest's description from QEMU's command line, if libvirt does not know the guest.

Source: qemu-options.hx of QEMU 10.0 (-name, -uuid, -machine, -m, -object, -numa), and qapi/qom.json (policy
and host-nodes of memory backends, which QEMU hands to mbind(2)).  A command line is an order, not the truth:
sizes count only where a mapping of that size exists (ram.py).  Any process may have a command line that QEMU
would refuse: one that is out of bounds is ignored.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vmplace.errors import OutsideError
from vmplace.outside import parse_json, whole, within
from vmplace.topology.cpulist import parse_cpulist
from vmplace.topology.description import GuestDescription, RamBlock
from vmplace.topology.domain_policy import parse_nodeset
from vmplace.topology.guest import MOST_VCPU_ID, Cell

PROGRAM = re.compile(r"(?:.*/)?(?:qemu-system-x86_64|qemu-kvm|kvm)")
UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
SIZE = re.compile(r"([0-9]{1,20})([bkmgt]?)b?", re.IGNORECASE)
SHIFTS = {"": 20, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
DEFAULT_RAM = "128M"
MOST_BYTES = 1 << 52
"""What x86 can address physically."""
MOST_CELLS = 128
"""MAX_NODES of QEMU (include/sysemu/numa.h)."""
MOST_OPTION = 1 << 16
"""Characters of one argument that is parsed: libvirt's longest have some thousands."""
MOST_LISTED = 1 << 14
"""Nodes in all backends together; a host has 1024 at most."""
Options = list[tuple[str, str]]
Plain = str | int | bool | float | None | list[Any] | dict[str, Any]


@dataclass(frozen=True)
class Backend:
    """A memory backend; ``nids``: the nodes of the host that it is bound to, empty for no limit."""

    size_bytes: int
    nids: tuple[int, ...] = ()


def parse_qemu(args: Sequence[str]) -> GuestDescription | None:
    """Parse the command line of an x86 QEMU; None for another program or one that is not understood."""
    if not args or not PROGRAM.fullmatch(args[0]):
        return None
    try:
        options = list(_iter_options(args[1:]))
        machine = _parse_machine(options)
        backends = _parse_backends(options)
        cells, memdevs = _parse_numa(options, backends)
        return GuestDescription(
            name=_parse_name(options),
            uuid=next((value for name, value in options if name == "uuid" and UUID.fullmatch(value)), None),
            machine=_place(machine, options),
            blocks=_parse_blocks(options, backends, memdevs),
            cells=cells,
            bound=_bound(backends, memdevs, machine.get("memory-backend", "")),
        )
    except (ValueError, KeyError):
        return None


def parse_size(text: str) -> int:
    """Parse a size in bytes; MiB where no unit is given, as -m does."""
    match = SIZE.fullmatch(text)
    if match is None:
        raise OutsideError("a size of the command line is none")
    return within(int(match[1]) << SHIFTS[match[2].lower()], 0, MOST_BYTES, "size")


def _iter_options(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    for index, arg in enumerate(args):
        if arg.startswith("-") and index + 1 < len(args):
            yield arg.lstrip("-"), args[index + 1]


def _parse_fields(value: str, first: str = "") -> Options:
    """Parse ``a,b=c``; the first field may lack its name, which is ``first``."""
    if len(value) > MOST_OPTION:
        raise OutsideError("an argument is too long")
    if value.startswith("{"):
        return [(key, str(item)) for key, item in parse_json(value, dict[str, Plain]).items()]
    fields: Options = []
    # A doubled comma is a comma of the value.
    for index, field in enumerate(value.replace(",,", "\0").split(",")):
        name, equals, rest = field.replace("\0", ",").partition("=")
        fields.append((name, rest) if equals or index else (first, name))
    return fields


def _parse_name(options: Options) -> str:
    for name, value in options:
        if name == "name":
            return dict(_parse_fields(value, "guest")).get("guest", "")
    return ""


def _parse_machine(options: Options) -> dict[str, str]:
    fields: dict[str, str] = {"type": "pc"}
    for name, value in options:
        if name in {"machine", "M"}:
            fields |= dict(_parse_fields(value, "type"))
    return fields


def _place(machine: Mapping[str, str], options: Options) -> str | None:
    """Return the machine type by which RAM has its place, None where that is unknown."""
    # DIMMs and a moved cut: the place of RAM is no longer what gfn.py computes.
    moved = "max-ram-below-4g" in machine or any(
        name == "device" and re.search(r"pc-dimm|virtio-mem|nvdimm", value) for name, value in options
    )
    return None if moved else machine["type"]


def _parse_numa(options: Options, backends: Mapping[str, Backend]) -> tuple[tuple[Cell, ...], dict[int, str]]:
    """Return the cells and the memory backend of each."""
    cells: list[Cell] = []
    vcpus = 0
    memdevs: dict[int, str] = {}
    for value in (value for name, value in options if name == "numa"):
        fields = _parse_fields(value, "kind")
        last = dict(fields)
        if last.get("kind", last.get("type")) != "node":
            continue
        cell_id = whole(last.get("nodeid", str(len(cells))), most=MOST_CELLS - 1, what="cell")
        cpus: set[int] = set()
        for text in (text for key, text in fields if key == "cpus"):
            listed = parse_cpulist(text, MOST_VCPU_ID)
            cpus.update(listed)
            # Cells share no vCPU, and nobody tells one twice: an argument has room for 5000 times all.
            vcpus += len(listed)
            if vcpus > MOST_VCPU_ID + 1:
                raise OutsideError("there are too many vCPUs in cells")
        if len(cells) == MOST_CELLS:
            raise OutsideError("there are too many cells")
        size = backends[last["memdev"]].size_bytes if "memdev" in last else parse_size(last.get("mem", "0"))
        cells.append(Cell(cell_id, tuple(sorted(cpus)), size))
        if "memdev" in last:
            memdevs[cell_id] = last["memdev"]
    return tuple(sorted(cells, key=lambda cell: cell.cell_id)), memdevs


def _parse_backends(options: Options) -> dict[str, Backend]:
    """Return the memory backends by id, in order of creation."""
    backends = {}
    listed = 0
    for value in (value for name, value in options if name == "object"):
        fields = _parse_fields(value, "qom-type")
        last = dict(fields)
        if last["qom-type"].startswith("memory-backend-"):
            # JSON has plain bytes, and so has the short form without a unit (visit_type_size), unlike -m.
            is_plain = value.startswith("{") or last["size"].isdecimal()
            size = whole(last["size"], most=MOST_BYTES) if is_plain else parse_size(last["size"])
            nids = _host_nodes(fields) if last.get("policy") == "bind" else ()
            backends[last["id"]] = Backend(size, nids)
            listed = within(listed + len(nids), 0, MOST_LISTED, "the number of host-nodes")
    return backends


def _host_nodes(fields: Options) -> tuple[int, ...]:
    """Return the nodes of the host that a backend names: a list in JSON, else numbers and ranges, in turn."""
    nids: list[int] = []
    for text in (text for key, text in fields if key == "host-nodes"):
        nids += parse_nodeset(text.removeprefix("[").removesuffix("]"))
        within(len(nids), 0, MOST_LISTED, "the number of host-nodes")
    return tuple(sorted(set(nids)))


def _bound(
    backends: Mapping[str, Backend], memdevs: Mapping[int, str], main: str
) -> tuple[tuple[int | None, tuple[int, ...]], ...]:
    """Return the nodes that memory is bound to, by cell.

    None: what has no cell, or a cell that is not known, if all of main RAM is bound.
    """
    bound: dict[int | None, tuple[int, ...]] = {
        cell: backends[name].nids for cell, name in memdevs.items() if backends[name].nids
    }
    is_whole = len(bound) == len(memdevs) if memdevs else main in backends and backends[main].nids != ()
    if is_whole:
        bound[None] = tuple(sorted({nid for one in backends.values() for nid in one.nids}))
    return tuple(bound.items())


def _parse_blocks(
    options: Options, backends: Mapping[str, Backend], memdevs: Mapping[int, str]
) -> tuple[RamBlock, ...]:
    if memdevs:
        order = [name for name in backends if name in memdevs.values()]
        # Blocks of one size are distinguished by their order, which must then be that of the cells.
        if order != [memdevs[cell_id] for cell_id in sorted(memdevs)]:
            return ()
        return tuple(RamBlock(backends[memdevs[cell_id]].size_bytes, cell_id) for cell_id in sorted(memdevs))
    size = DEFAULT_RAM
    for value in (value for name, value in options if name == "m"):
        size = dict(_parse_fields(value, "size")).get("size", size)
    return (RamBlock(parse_size(size)),)
