"""The description of a guest, as in its domain XML or on the VMM's command line."""

from dataclasses import dataclass

from vmplace.topology.guest import Cell


@dataclass(frozen=True)
class RamBlock:
    """One memory backend.  ``gpa`` is the address of a DIMM; None for main RAM, which is laid end to end."""

    size_bytes: int
    cell: int | None = None
    gpa: int | None = None


@dataclass(frozen=True)
class GuestDescription:
    """The ordered shape of a guest; ``blocks`` are in the order in which the VMM makes them.

    ``machine`` is the VMM's machine type (``pc-q35-10.0``), None where it is unknown.  ``bound``: the nodes
    of the host that the VMM binds memory to, by vNUMA cell (None: other memory).  Of libvirt's guests
    domain_policy.py tells that.
    """

    name: str
    uuid: str | None = None
    machine: str | None = None
    blocks: tuple[RamBlock, ...] = ()
    cells: tuple[Cell, ...] = ()
    bound: tuple[tuple[int | None, tuple[int, ...]], ...] = ()

    def cell_of_vcpu(self, vcpu_id: int) -> int | None:
        """Return the vNUMA cell of a vCPU, or None for a guest without cells."""
        return next((cell.cell_id for cell in self.cells if vcpu_id in cell.vcpu_ids), None)
