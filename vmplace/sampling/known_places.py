"""Where a source last saw the pages of a range, so that a window need not look up all of them.

A page that nobody touches usually stays where it is.  So a window looks up

1. the 2 MiB blocks that were touched in it;
2. blocks whose pages were moved, as the actuator reports them (``moved``);
3. a sixteenth of all others, in turn: moves by the kernel or by others are seen up to 16 windows late.

So the cost of a window follows what was touched, not how much memory a guest has.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vmplace.sampling.block_rows import BlockRows
from vmplace.sampling.page_arrays import Bools, Bytes
from vmplace.sampling.page_frames import CHUNK_PAGES, PAGES_PER_HUGE, block_offset
from vmplace.sampling.sample import RangeSample
from vmplace.topology.guest import HUGE_BYTES, GuestTopology, RamRange

TURNS = 16
BLOCKS_AT_ONCE = CHUNK_PAGES // PAGES_PER_HUGE


@dataclass(frozen=True)
class Before:
    """Where the pages of a range were, by block; ``due``: blocks that are to be looked up."""

    nodes: BlockRows
    huge: Bytes
    due: Bools


@dataclass
class _Known:
    nodes: BlockRows
    huge: Bytes
    moved: Bools
    turn: int


@dataclass
class KnownPlaces:
    """The places of all guests of a source; changed in place."""

    _guests: dict[tuple[int, int], dict[RamRange, _Known]] = field(default_factory=dict)

    def before(self, guest: GuestTopology, ram: RamRange, touched: Bools) -> Before | None:
        """Return what is known of a range of which these blocks were touched; None: nothing yet."""
        known = self._guests.get(guest.identity, {}).get(ram)
        if known is None:
            return None
        turn = np.arange(len(touched)) // BLOCKS_AT_ONCE % TURNS == known.turn
        return Before(known.nodes, known.huge, touched | known.moved | turn)

    def note(self, guest: GuestTopology, samples: tuple[RangeSample, ...]) -> None:
        """Keep where pages are now: of these ranges, and no others."""
        before = self._guests.get(guest.identity, {})
        self._guests[guest.identity] = {
            sample.ram: _Known(
                sample.nodes,
                sample.huge,
                np.zeros(len(sample.huge), np.bool_),
                (before[sample.ram].turn + 1) % TURNS if sample.ram in before else 0,
            )
            for sample in samples
            if sample.nodes
        }

    def moved(self, guest: GuestTopology, hva: npt.NDArray[np.uint64]) -> None:
        """Look the blocks of these pages up in the next window."""
        for ram, known in self._guests.get(guest.identity, {}).items():
            inside = (hva >= ram.hva) & (hva < ram.hva + ram.size_bytes)
            base = np.uint64(ram.hva - block_offset(ram) * (HUGE_BYTES // PAGES_PER_HUGE))
            known.moved[(hva[inside] - base) // np.uint64(HUGE_BYTES)] = True

    def forget(self, guest: GuestTopology | None = None) -> None:
        """Forget a guest, or all."""
        if guest is None:
            self._guests.clear()
        else:
            self._guests.pop(guest.identity, None)
