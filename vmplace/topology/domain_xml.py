"""What does libvirt say a guest is: parse the XML of a domain.

The XML comes from whoever defines domains, so a document type is refused: libvirt writes none, and
entities are how a small text grows to gigabytes or pulls in files.
"""

from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from vmplace.errors import OutsideError, VmplaceError
from vmplace.outside import MOST_ID, error_text, whole, within
from vmplace.topology.cpulist import parse_cpulist
from vmplace.topology.description import GuestDescription, RamBlock
from vmplace.topology.guest import MOST_VCPU_ID, Cell

# libvirt, docs/formatdomain: units of <memory>, kibibytes where none is given.
UNITS = {
    "b": 1, "bytes": 1,
    "kb": 1000, "k": 1 << 10, "kib": 1 << 10,
    "mb": 10**6, "m": 1 << 20, "mib": 1 << 20,
    "gb": 10**9, "g": 1 << 30, "gib": 1 << 30,
    "tb": 10**12, "t": 1 << 40, "tib": 1 << 40,
}  # fmt: skip
# An nvdimm is a file's content, not memory of the host.
MEMORY_MODELS = frozenset({"dimm", "virtio-mem"})


MOST_CHARACTERS = 4 << 20
MOST_CELLS = 128
MOST_BYTES = 1 << 52
DEEPEST = 64


def parse_domain(text: str) -> GuestDescription:
    """Parse the XML of one (running) domain; raises VmplaceError for hostile or broken XML."""
    if len(text) > MOST_CHARACTERS:
        raise OutsideError("the domain's XML is too long")
    try:
        root = _parse_tree(text)
        cells = _parse_cells(root)
        kind = root.find("./os/type")
        return GuestDescription(
            name=root.findtext("name") or "",
            uuid=root.findtext("uuid"),
            machine=kind.get("machine") if kind is not None else None,
            blocks=_main_blocks(root, cells) + _device_blocks(root),
            cells=cells,
        )
    except (expat.ExpatError, ValueError, KeyError, RecursionError) as err:
        raise OutsideError(f"the domain's XML cannot be read: {error_text(err)}") from err


def _parse_tree(text: str) -> Element:
    builder = TreeBuilder()
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = _refuse_doctype
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > DEEPEST:
            raise OutsideError("its elements are nested too deeply")
        builder.start(name, attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name)

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    # A file has no surrogates; a worker's answer is JSON, and may.
    parser.Parse(text.encode(errors="replace"), True)
    return builder.close()


def _refuse_doctype(*_: object) -> None:
    raise VmplaceError(
        "the domain's XML has a document type, which libvirt never writes", hint="take <!DOCTYPE …> out"
    )


def _parse_cells(root: Element) -> tuple[Cell, ...]:
    elements = root.findall("./cpu/numa/cell")
    if len(elements) > MOST_CELLS:
        raise OutsideError(f"it has {len(elements)} cells")
    cells = tuple(_parse_cell(cell, index) for index, cell in enumerate(elements))
    if sum(len(cell.vcpu_ids) for cell in cells) > MOST_VCPU_ID + 1:
        raise OutsideError("its cells have too many vCPUs")
    return cells


def _parse_cell(cell: Element, index: int) -> Cell:
    return Cell(
        cell_id=whole(cell.get("id", str(index)), most=MOST_ID, what="cell"),
        vcpu_ids=parse_cpulist(cell.get("cpus", ""), MOST_VCPU_ID),
        memory_bytes=_parse_size(cell.get("memory", "0"), cell.get("unit")),
    )


def _parse_size(text: str, unit: str | None) -> int:
    return within(whole(text.strip(), what="size") * UNITS[(unit or "KiB").lower()], 0, MOST_BYTES, "size")


def _main_blocks(root: Element, cells: tuple[Cell, ...]) -> tuple[RamBlock, ...]:
    """Return main RAM: a backend per cell, or a single one."""
    if cells:
        return tuple(RamBlock(cell.memory_bytes, cell.cell_id) for cell in cells if cell.memory_bytes)
    memory = root.find("memory")
    if memory is None or not memory.text:
        return ()
    return (RamBlock(_parse_size(memory.text, memory.get("unit"))),)


def _device_blocks(root: Element) -> tuple[RamBlock, ...]:
    blocks = []
    for device in root.iterfind("./devices/memory"):
        size = device.find("./target/size")
        if device.get("model") not in MEMORY_MODELS or size is None or not size.text:
            continue
        cell = device.findtext("./target/node")
        address = device.find("./address[@base]")
        if address is None:
            address = device.find("./target/address[@base]")
        gpa = _parse_address(address.get("base", "")) if address is not None else None
        cell_id = whole(cell.strip(), most=MOST_ID, what="cell") if cell else None
        blocks.append(RamBlock(_parse_size(size.text, size.get("unit")), cell_id, gpa))
    return tuple(blocks)


def _parse_address(text: str) -> int:
    return whole(text.removeprefix("0x"), most=MOST_BYTES, base=16, what="address")
