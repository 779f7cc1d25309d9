"""Which pages of a plan may be moved at all?  Pure, except for the counts in ``tally``.

Only pages inside a movable RAM range of the guest pass: a stale plan, or a bug in a policy, must never move
the VMM's own memory.
"""

import numpy as np
import numpy.typing as npt

from vmplace.actuation.pages import WantedPages
from vmplace.actuation.stubborn import StubbornPages
from vmplace.actuation.tally import Tally
from vmplace.actuation.veto import PingPongVeto
from vmplace.topology.guest import GuestTopology, Movability, RamRange

NOT_RAM = "not guest RAM"


def admitted(
    wanted: WantedPages,
    guest: GuestTopology,
    veto: PingPongVeto | None,
    stubborn: StubbornPages,
    tally: Tally,
) -> WantedPages:
    """Return the pages that may be tried; all others are counted in ``tally``.

    ``veto``: None where pages may go to and fro, as they go back to where they were.
    """
    wanted = _movable(wanted, guest, tally)
    wanted = _without(wanted, stubborn.pinned(wanted.hva), "pinned", tally)
    return wanted if veto is None else _without(wanted, ~veto.allowed(wanted.hva), "vetoed", tally)


def _without(wanted: WantedPages, barred: npt.NDArray[np.bool_], kind: str, tally: Tally) -> WantedPages:
    tally.add(kind, wanted.npages[barred])
    return wanted.where(~barred)


def _movable(wanted: WantedPages, guest: GuestTopology, tally: Tally) -> WantedPages:
    ram = sorted(guest.ram, key=lambda r: r.hva)
    index = _range_index(wanted, ram)
    tally.add_refused(NOT_RAM, wanted.npages[index < 0])
    movable = np.zeros(len(wanted), bool)
    for i in np.unique(index[index >= 0]).tolist():
        here = index == i
        if ram[i].movability is Movability.MOVABLE:
            movable |= here
        elif ram[i].movability is Movability.PINNED:
            tally.add("pinned", wanted.npages[here])
        else:
            tally.add_refused(ram[i].movability.value, wanted.npages[here])
    return wanted.where(movable)


def _range_index(wanted: WantedPages, ram: list[RamRange]) -> npt.NDArray[np.intp]:
    """Return the index of each page's RAM range, -1 for none."""
    if not ram:
        return np.full(len(wanted), -1, np.intp)
    starts = np.array([r.hva for r in ram], np.uint64)
    ends = np.array([r.hva + r.size_bytes for r in ram], np.uint64)
    index = np.searchsorted(starts, wanted.hva, side="right").astype(np.intp) - 1
    inside = (index >= 0) & (wanted.last_hva < ends[index])
    return np.where(inside, index, -1)


def unmovable_reasons(guest: GuestTopology) -> tuple[str, ...]:
    """Return one sentence for each kind of RAM that vmplace will not move, with the reason found."""
    return tuple(
        sorted({f"{r.movability.value}: {r.reason}" for r in guest.ram if r.movability != Movability.MOVABLE})
    )
