"""What do several sources know of one guest, together?

1. The first one misses nothing ("kvm"): its accessed and written pages are the window's.
2. The others add what it cannot know: "ibs" counted accesses, "hints" vCPUs and code.
3. All are armed and harvested together, so that their windows are nearly the same.

One of the others that fails with a guest is left out of that guest's window.  What it all means is for
model/fusion.py.
"""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from vmplace.errors import GuestGoneError, VmplaceError
from vmplace.sampling.sample import RangeSample, SampleBatch
from vmplace.sampling.source import EarlyReader, PlaceKeeper, Source
from vmplace.topology.guest import GuestTopology

LOG = logging.getLogger(__name__)
FAILURES = (VmplaceError, OSError)


class FusedSource:
    """Several sources as one; ``sources[0]`` misses nothing."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._first, *self._others = sources
        self._armed: dict[tuple[int, int], list[Source]] = {}
        self._noted: set[str] = set()
        self.name = "+".join(source.name for source in sources)
        vcpu = any(source.coverage.accessor_vcpu for source in sources)
        self.coverage = replace(self._first.coverage, accessor_vcpu=vcpu)

    def arm(self, guest: GuestTopology) -> None:
        """Arm all; raises what the first one raises."""
        self._first.arm(guest)
        self._armed[guest.identity] = [source for source in self._others if self._is_armed(source, guest)]

    def read_early(self, guest: GuestTopology) -> None:
        """Have the first one read, if it can; the others see single accesses as they come."""
        if isinstance(self._first, EarlyReader):
            self._first.read_early(guest)

    def moved(self, guest: GuestTopology, hva: npt.NDArray[np.uint64]) -> None:
        """Tell the first one, whose places the window has."""
        if isinstance(self._first, PlaceKeeper):
            self._first.moved(guest, hva)

    def look_again(self) -> None:
        """Tell the first one."""
        if isinstance(self._first, PlaceKeeper):
            self._first.look_again()

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Return the first one's window with what the others add; raises what the first one raises."""
        batch = self._first.harvest(guest)
        for source in self._armed.pop(guest.identity, []):
            try:
                batch = with_added(batch, source.harvest(guest))
            except FAILURES as err:
                self._leave_out(source, guest, err)
        return replace(batch, source=self.name, coverage=self.coverage)

    def forget(self, guest: GuestTopology) -> None:
        """Have all forget the guest."""
        self._armed.pop(guest.identity, None)
        for source in (self._first, *self._others):
            source.forget(guest)

    def close(self) -> None:
        """Close all, whatever happens to one of them."""
        with contextlib.ExitStack() as stack:
            for source in (self._first, *self._others):
                stack.callback(source.close)

    def _is_armed(self, source: Source, guest: GuestTopology) -> bool:
        try:
            source.arm(guest)
        except FAILURES as err:
            self._leave_out(source, guest, err)
            return False
        return True

    def _leave_out(self, source: Source, guest: GuestTopology, err: Exception) -> None:
        """Tell it once; a guest that ended is the caller's concern."""
        if isinstance(err, GuestGoneError):
            raise err
        note = f'guest={guest.name} source={source.name} is left out: reason="{err}"'
        if note not in self._noted:
            LOG.warning("%s", note)
        self._noted.add(note)


def with_added(batch: SampleBatch, added: SampleBatch) -> SampleBatch:
    """Return ``batch`` with what only ``added`` knows: of the same ranges, and of what served accesses."""
    known = {(sample.ram.hva, sample.ram.npages): sample for sample in added.ranges}
    ranges = tuple(_joined(one, known.get((one.ram.hva, one.ram.npages))) for one in batch.ranges)
    return replace(batch, ranges=ranges, served=batch.served or added.served)


def _joined(sample: RangeSample, added: RangeSample | None) -> RangeSample:
    if added is None:
        return sample
    return replace(
        sample,
        by_vcpu=added.by_vcpu if sample.by_vcpu is None else sample.by_vcpu,
        counted=added.counted if sample.counted is None else sample.counted,
        text=added.text if sample.text is None else sample.text,
    )
