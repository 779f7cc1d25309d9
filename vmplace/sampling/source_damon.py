"""Which regions of a guest were touched?  Asked of DAMON, where idle-page tracking is missing.

DAMON checks one page per region and sample, and splits and merges regions as it learns: its answer holds for
whole regions, is coarser than the idle bitmap's, and needs some aggregations to become good.  Through KVM's
MMU notifier it honours the guest's nested page tables, too.

Source: SeongJae Park et al., "DAOS: Data Access-aware Operating System" (HPDC'22); mm/damon (6.12).

Limits: the batch tells the last aggregation (250 ms) of a window, not all of it, and says so by its times.
One user a host: DAMON that somebody else configured is refused.  One process ends the answers for all as long
as it lets nobody read its memory map (damon_admin.py).  RAM that a guest has had for less than CHANGE_S, or
LONGEST_CHANGE_S if it changes all the time, may not be watched yet, and looks untouched.
"""

import time

import numpy as np

from vmplace import held
from vmplace.errors import GuestGoneError, VmplaceError
from vmplace.held import HeldError
from vmplace.sampling.damon_admin import DamonAdmin, DamonHeldError, Region
from vmplace.sampling.page_arrays import Bytes
from vmplace.sampling.page_frames import FrameChunk
from vmplace.sampling.range_walk import RangeWalk
from vmplace.sampling.sample import RangeSample, SampleBatch, SourceCoverage
from vmplace.sampling.source import SourceSetup
from vmplace.topology.guest import PAGE_BYTES, GuestTopology, RamRange

Identity = tuple[int, int]
SLOW_S = 1.0
"""A window's regions usually are there within two aggregations (0.5 s)."""
SHARE = 0.2
"""Of the time, what may be waited for DAMON: after a slow answer it is asked nothing for a while."""
CHANGE_S, LONGEST_CHANGE_S = 30.0, 240.0
"""How often DAMON is set up anew as the RAM of guests changed; for each guest more and more seldom."""


class DamonSource:
    """Accessed regions by one kdamond for all guests."""

    name = "damon"
    coverage = SourceCoverage(accessed=True)

    def __init__(self, setup: SourceSetup) -> None:
        """Probe; raises UnsupportedHostError where DAMON or frame numbers are missing."""
        self._nids = setup.host.nids
        self._walk = RangeWalk(self._nids, setup.sysfs, setup.proc, setup.beat)
        try:
            self._admin = DamonAdmin(setup.sysfs, setup.state_dir, proc=setup.proc, beat=setup.beat)
        except BaseException:
            self._walk.close()
            raise
        self._watched: dict[Identity, GuestTopology] = {}
        self._running: tuple[Identity, ...] = ()
        self._armed_ns: dict[Identity, int] = {}
        self._regions: dict[Identity, tuple[Region, ...]] = {}
        self._regions_ns = 0
        self._clock, self._beat = time.monotonic, setup.beat
        self._not_before = 0.0
        # When DAMON may be set up again for the changed RAM of any guest; of each, and how long to wait then.
        self._change_due = 0.0
        self._changes: dict[Identity, tuple[float, float]] = {}

    def arm(self, guest: GuestTopology) -> None:
        """Begin to watch a guest that is not watched yet; or, now and then, one whose RAM changed."""
        with self._walk.frames.opened(guest):
            known = self._watched.get(guest.identity)
            if known is None or (known.ram != guest.ram and self._may_change(guest)):
                self._watched[guest.identity] = guest
                self._running = ()
        self._armed_ns[guest.identity] = time.monotonic_ns()
        if not self._running:
            self._check_pause()
            self._start()

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Return the pages of the regions touched in the last aggregation of this window."""
        armed_ns = self._armed_ns.pop(guest.identity, None)
        if armed_ns is None:
            raise ValueError(f"guest {guest.name} was not armed")
        with self._walk.frames.opened(guest) as pagemap:
            if self._regions_ns <= armed_ns:
                self._update()
            regions = self._regions.get(guest.identity, ())
            ranges = tuple(self._sample(guest, pagemap, ram, regions) for ram in guest.ram)
        ended_ns = self._regions_ns
        started_ns = max(armed_ns, ended_ns - self._admin.aggregation_us * 1000)
        return SampleBatch(guest.name, self.name, self.coverage, started_ns, ended_ns, self._nids, ranges)

    def forget(self, guest: GuestTopology) -> None:
        """Watch the guest no more from the next start on."""
        self._watched.pop(guest.identity, None)
        self._armed_ns.pop(guest.identity, None)
        self._changes.pop(guest.identity, None)

    def close(self) -> None:
        """Give DAMON back."""
        self._admin.stop()
        self._walk.close()

    def _start(self) -> None:
        self._watched = {key: guest for key, guest in self._watched.items() if self._is_readable(guest)}
        targets = [(guest.pid, [_span(ram) for ram in guest.ram]) for guest in self._watched.values()]
        try:
            self._admin.start(targets)
        except OSError as err:
            raise VmplaceError(f"DAMON refused its settings: {err}", hint="see docs/operate.md") from err
        self._running = tuple(self._watched)

    def _update(self) -> None:
        self._check_pause()
        running, began = self._running, self._clock()
        try:
            found = self._admin.regions(len(running))
        except OSError:
            # The kdamond ends with the last of its processes; nothing was learnt then.
            found, self._running = (), ()
        except DamonHeldError:
            if any(held.holds(guest.pid) for guest in self._watched.values()):
                # Once it answers, it is set up anew without these.  If it is only late, it goes on as it is.
                self._running = ()
            raise
        finally:
            self._note_slow(self._clock() - began)
        self._regions = dict(zip(running, found, strict=False))
        self._regions_ns = time.monotonic_ns()

    def _may_change(self, guest: GuestTopology) -> bool:
        """Tell whether DAMON may be set up for the changed RAM of a guest: what it learnt of all is lost."""
        now = self._clock()
        due, wait_s = self._changes.get(guest.identity, (0.0, CHANGE_S))
        if not self._running:
            return True
        if now < max(due, self._change_due):
            return False
        if now >= due + LONGEST_CHANGE_S:
            wait_s = CHANGE_S
        self._change_due = now + CHANGE_S
        self._changes[guest.identity] = now + wait_s, min(2 * wait_s, LONGEST_CHANGE_S)
        return True

    def _check_pause(self) -> None:
        if self._clock() < self._not_before:
            raise DamonHeldError

    def _note_slow(self, took_s: float) -> None:
        """After a slow answer, ask nothing for a while, and watch nobody who holds up readers now."""
        if took_s < SLOW_S:
            return
        self._not_before = self._clock() + took_s * (1 / SHARE - 1)
        for guest in self._watched.values():
            self._beat()
            if held.probe(guest.pid):
                self._running = ()

    def _is_readable(self, guest: GuestTopology) -> bool:
        """Tell whether a guest is there, and lets others read its memory map: else it is watched no more."""
        try:
            with self._walk.frames.opened(guest):
                return True
        except (GuestGoneError, HeldError):
            return False

    def _sample(
        self, guest: GuestTopology, pagemap: int, ram: RamRange, regions: tuple[Region, ...]
    ) -> RangeSample:
        touched = np.zeros(ram.npages, np.uint8)
        for region in regions:
            first, end = ((hva - ram.hva) // PAGE_BYTES for hva in (region.start, region.end))
            touched[max(first, 0) : max(end, 0)] = 1

        def fill(chunk: FrameChunk, accessed: Bytes) -> None:
            # A region spans pages that are not there: those were touched by nobody.
            accessed[:] = touched[chunk.first : chunk.first + len(accessed)] & (chunk.pfns != 0)

        return self._walk.sample(guest, pagemap, ram, fill)


def _span(ram: RamRange) -> tuple[int, int]:
    return ram.hva, ram.hva + ram.size_bytes
