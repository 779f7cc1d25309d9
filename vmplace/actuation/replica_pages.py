"""Where in the VMM's memory are the guest frames that have copies?"""

from collections.abc import Iterable

import numpy as np

from vmplace.actuation.replica_frames import Gfns, Held, runs_of
from vmplace.model.copied_pages import AddressRuns, CopiedPages
from vmplace.topology.guest import PAGE_BYTES
from vmplace.topology.placement import Slot


class Whereabouts:
    """Which pages of one guest have copies, by address; known anew where that changed."""

    def __init__(self) -> None:
        self._slots: tuple[Slot, ...] = ()
        self._nids: tuple[int, ...] = ()
        self._of: Gfns | None = None
        self._copied: CopiedPages | None = None

    def note(self, slots: Iterable[Slot], nids: Iterable[int]) -> None:
        """Take up the guest's memslots, and the nodes that have copies of its pages."""
        noted = tuple(slots), tuple(nids)
        if noted != (self._slots, self._nids):
            (self._slots, self._nids), self._of = noted, None

    def copied(self, held: Held) -> CopiedPages:
        """Return the pages of the frames held."""
        if self._copied is None or self._of is not held.frames:
            self._of = held.frames
            self._copied = CopiedPages(addresses(held.frames, self._slots), self._nids)
        return self._copied


def addresses(gfns: Gfns, slots: Iterable[Slot]) -> AddressRuns:
    """Return where frames, ascending, are mapped; those that no slot maps are left out."""
    first, counts = runs_of(gfns)
    frames, found = AddressRuns(first.astype(np.int64) * PAGE_BYTES, counts.astype(np.int64)), []
    for slot in slots:
        begin = slot.base_gfn * PAGE_BYTES
        inside = frames.between(begin, begin + slot.npages * PAGE_BYTES)
        if not slot.as_id:
            found.append((inside.hva + (slot.hva - begin), inside.npages))
    hva, npages = (np.concatenate(one) for one in zip(*found, strict=True)) if found else ((), ())
    return AddressRuns.of(hva, npages)
