"""Where in the VMM's memory are the guest frames that have copies, and those that were to have some?"""

from collections.abc import Iterable

import numpy as np

from vmplace.actuation.replica_frames import BLOCK, Gfns, ReplicatedFrames, runs_of
from vmplace.model.copied_pages import AddressRuns, CopiedPages
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES
from vmplace.topology.placement import Slot

MOST_RUNS = 1 << 14
"""Of what is missing, which recordings keep: of more, blocks are listed as a whole."""
NOTHING = AddressRuns.of((), ())


class Whereabouts:
    """Which pages of one guest have copies, and which lack them, by address; known anew where that changed.

    ``missing``: of those that were wanted since ``begin``.
    """

    def __init__(self) -> None:
        self.slots: tuple[Slot, ...] = ()
        self._nids: tuple[int, ...] = ()
        self._of: Gfns | None = None
        self._copied: CopiedPages | None = None
        self.missing = NOTHING

    def begin(self) -> None:
        """Forget what was wanted before."""
        self.missing = NOTHING

    def note(self, slots: Iterable[Slot], nids: Iterable[int]) -> None:
        """Take up the guest's memslots, and the nodes that have copies of its pages."""
        noted = tuple(slots), tuple(nids)
        if noted != (self.slots, self._nids):
            (self.slots, self._nids), self._of = noted, None

    def note_missing(self, asked: Gfns, held: ReplicatedFrames) -> None:
        """Take up which of the frames asked for, ascending, have no copies."""
        lacking = np.setdiff1d(asked, held.frames, assume_unique=True) if len(asked) else asked
        if len(lacking):
            found = addresses(lacking, self.slots)
            self.missing = few(joined(self.missing, found))

    def copied(self, held: ReplicatedFrames) -> CopiedPages:
        """Return the pages of the frames held."""
        if self._copied is None or self._of is not held.frames:
            self._of = held.frames
            self._copied = CopiedPages(addresses(held.frames, self.slots), self._nids)
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


def joined(*parts: AddressRuns) -> AddressRuns:
    """Return all runs together."""
    hva, npages = (np.concatenate([getattr(one, name) for one in parts]) for name in ("hva", "npages"))
    return AddressRuns.of(hva, npages)


def few(runs: AddressRuns) -> AddressRuns:
    """Return the runs, or, if they are too many, the blocks of 2 MiB that these fill for more than half."""
    if len(runs.hva) <= MOST_RUNS:
        return runs
    is_long = runs.npages >= BLOCK
    blocks = np.unique(runs.hva[~is_long] // HUGE_BYTES) * HUGE_BYTES
    full = blocks[2 * runs.count_in(blocks, BLOCK) > BLOCK]
    long = AddressRuns(runs.hva[is_long], runs.npages[is_long])
    return joined(long, AddressRuns(full, np.full(len(full), BLOCK)))
