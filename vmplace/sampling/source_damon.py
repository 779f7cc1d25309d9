"""Which regions of a guest were touched?  Asked of DAMON, where idle-page tracking is missing.

DAMON checks one page per region and sample, and splits and merges regions as it learns: its answer holds for
whole regions, is coarser than the idle bitmap's, and needs some aggregations to become good.  Through KVM's
MMU notifier it honours the guest's nested page tables, too.

Source: SeongJae Park et al., "DAOS: Data Access-aware Operating System" (HPDC'22); mm/damon (6.12).

Limits: the batch tells the last aggregation (250 ms) of a window, not all of it, and says so by its times.
One user a host: DAMON that somebody else configured is refused.  With many guests DAMON divides each of them
into fewer regions (damon_admin.py).  RAM that a guest has had for less than CHANGE_S, or LONGEST_CHANGE_S if
it changes all the time, may not be watched yet, and looks untouched.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vmplace import held
from vmplace.errors import VmplaceError
from vmplace.held_limits import UserQuota
from vmplace.sampling.damon_admin import KDAMONDS, DamonAdmin, DamonHeldError
from vmplace.sampling.damon_trace import Aggregation, RegionTrace, read_trace_layout
from vmplace.sampling.page_arrays import Bytes
from vmplace.sampling.page_frames import FrameChunk
from vmplace.sampling.range_walk import RangeWalk
from vmplace.sampling.sample import RangeSample, SampleBatch, SourceCoverage
from vmplace.sampling.source import SourceSetup
from vmplace.topology.damon import Begun, begun_at
from vmplace.topology.guest import PAGE_BYTES, GuestTopology, Identity, RamRange
from vmplace.users import owner_of

LOG = logging.getLogger(__name__)
LATE_S, LOOK_S = 0.75, 0.02
"""A kdamond tells of a guest in less than three aggregations after the guest was armed."""
PATIENCE_S = 5.0
"""So long one is waited for that is late on a busy host, once."""
HELD_LOOKS = 5
"""One that so many looks find waiting for its process is waited for no longer; that is noted (held.py)."""
CHANGE_S, LONGEST_CHANGE_S = 30.0, 240.0
"""How often the RAM that DAMON watches is changed; for each guest more and more seldom."""
LIBVIRT = "libvirt"
LATE = "DAMON did not look at it in time: this process blocks its own memory map, or the host is busy"
OTHERS = UserQuota(most=KDAMONDS // 2, share=1, reserved=0)
"""Kdamonds for guests that libvirt did not start: a user may have one more while half of the rest is free."""


class DamonLateError(VmplaceError):
    """A kdamond did not tell of its guest in time; the others do."""

    def __init__(self) -> None:
        super().__init__(LATE, hint="see docs/operate.md")


@dataclass
class WatchedGuest:
    """A guest as DAMON watches it; ``account``: whose kdamonds that one counts with."""

    guest: GuestTopology
    account: int | str
    kdamond: Begun
    trace: RegionTrace | None = None


class DamonSource:
    """Accessed regions, by a kdamond for each guest."""

    name = "damon"
    coverage = SourceCoverage(accessed=True)

    def __init__(
        self, setup: SourceSetup, clock: Callable[[], float] = time.monotonic, traced: type = RegionTrace
    ) -> None:
        """Probe; raises UnsupportedHostError where DAMON, its trace point or frame numbers are missing."""
        self._nids = setup.host.nids
        self._walk = RangeWalk(self._nids, setup.sysfs, setup.proc, setup.beat)
        try:
            self._admin = DamonAdmin(setup.sysfs, setup.state_dir, proc=setup.proc, beat=setup.beat)
            self._layout = read_trace_layout(setup.sysfs)
        except BaseException:
            self._walk.close()
            raise
        self._proc, self._clock, self._traced = setup.proc, clock, traced
        self._watched: dict[Identity, WatchedGuest] = {}
        self._armed_ns: dict[Identity, int] = {}
        # Kdamonds that may run though nobody reads them any more; guests that were not reported in time.
        self._left: dict[Begun, WatchedGuest] = {}
        self._late: set[Identity] = set()
        # When the RAM that is watched may be changed again, and how long to wait then.
        self._changes: dict[Identity, tuple[float, float]] = {}

    def arm(self, guest: GuestTopology) -> None:
        """Begin to watch a guest that is not watched yet; or, now and then, one whose RAM changed."""
        with self._walk.frames.opened(guest):
            watch = self._watched.get(guest.identity)
            if watch is None or self._has_stopped(watch) or self._may_change(watch, guest.ram):
                self._watch(guest)
        self._armed_ns[guest.identity] = time.monotonic_ns()

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Return the pages of the regions touched in the last aggregation of this window."""
        armed_ns = self._armed_ns.pop(guest.identity, None)
        if armed_ns is None:
            raise ValueError(f"guest {guest.name} was not armed")
        with self._walk.frames.opened(guest) as pagemap:
            found = self._newest(self._watched[guest.identity], armed_ns)
            ranges = tuple(self._sample(guest, pagemap, ram, found) for ram in guest.ram)
        started_ns = max(armed_ns, found.ended_ns - self._admin.aggregation_us * 1000)
        return SampleBatch(
            guest.name, self.name, self.coverage, started_ns, found.ended_ns, self._nids, ranges
        )

    def forget(self, guest: GuestTopology) -> None:
        """Watch the guest no more; one that ended ends its kdamond."""
        self._leave(guest.identity)
        self._armed_ns.pop(guest.identity, None)
        self._changes.pop(guest.identity, None)
        self._late.discard(guest.identity)

    def close(self) -> None:
        """Give DAMON back."""
        for watch in self._watched.values():
            if watch.trace is not None:
                watch.trace.close()
        self._watched.clear()
        try:
            self._admin.close()
        finally:
            self._walk.close()

    def _watch(self, guest: GuestTopology) -> None:
        """Begin to watch a guest, or its changed RAM; raises VmplaceError."""
        self._leave(guest.identity)
        account = self._account(guest)
        try:
            kdamond = self._admin.start(guest.pid, [_span(ram) for ram in guest.ram])
        except OSError as err:
            hint = "end what else uses DAMON, or set another source in vmplace.toml"
            raise VmplaceError(f"DAMON refused its settings: {err}", hint=hint) from err
        # What it finds is read as soon as it begins: else the first window would be reported late.
        watch = self._watched[guest.identity] = WatchedGuest(guest, account, kdamond)
        self._reported(watch)

    def _leave(self, identity: Identity) -> None:
        """Watch a guest no more, and look after all that are not watched any more."""
        if (watch := self._watched.pop(identity, None)) is not None:
            if watch.trace is not None:
                watch.trace.close()
            self._left[watch.kdamond] = watch
        for kdamond, left in list(self._left.items()):
            if self._has_ended(left):
                del self._left[kdamond]

    def _has_ended(self, left: WatchedGuest) -> bool:
        """Tell whether a kdamond has ended; turn it off if its process goes on and does not hold it up."""
        if not left.kdamond.runs(self._proc):
            return True
        if begun_at(str(left.guest.pid), self._proc) != str(left.guest.start_time):
            return False
        try:
            return self._admin.stop(left.kdamond)
        except (OSError, DamonHeldError):
            LOG.warning("kdamond %s is not turned off", left.kdamond.pid, exc_info=True)
        return False

    def _has_stopped(self, watch: WatchedGuest) -> bool:
        """Tell whether somebody else turned the kdamond off; one that reports is not asked."""
        return watch.guest.identity in self._late and not watch.kdamond.runs(self._proc)

    def _account(self, guest: GuestTopology) -> int | str:
        """Return whose kdamonds a guest's counts with; raises VmplaceError if these are too many."""
        used = Counter(watch.account for watch in (*self._watched.values(), *self._left.values()))
        account: int | str = LIBVIRT
        is_full = used[LIBVIRT] >= KDAMONDS - OTHERS.most
        if guest.origin != LIBVIRT:
            account = -1 if guest.uid is None else owner_of(guest.uid)
            is_full = OTHERS.is_full(used[account], used.total() - used[LIBVIRT], is_known=True)
        if is_full:
            raise VmplaceError("DAMON watches too many guests of this user", hint="use another source")
        return account

    def _newest(self, watch: WatchedGuest, armed_ns: int) -> Aggregation:
        """Return what was reported after the guest was armed; waits for that, but for none that was late."""
        late_ns, given_up_ns = armed_ns + round(LATE_S * 1e9), armed_ns + round(PATIENCE_S * 1e9)
        if watch.guest.identity in self._late:
            late_ns = given_up_ns = 0
        held_looks = 0
        try:
            while (found := self._reported(watch)) is None or found.ended_ns <= armed_ns:
                held_looks += self._admin.is_held_up(watch.kdamond)
                now_ns = time.monotonic_ns()
                if now_ns >= (late_ns if held_looks >= HELD_LOOKS else given_up_ns):
                    self._late.add(watch.guest.identity)
                    raise DamonLateError
                time.sleep(LOOK_S)
        finally:
            if held_looks >= HELD_LOOKS:
                # Not what a busy host took: a guest would be left alone for that.
                held.note_waits(watch.guest.pid, held_looks * LOOK_S)
        self._late.discard(watch.guest.identity)
        return found

    def _reported(self, watch: WatchedGuest) -> Aggregation | None:
        if watch.trace is None:
            watch.trace = self._traced(self._layout, watch.guest.pid, int(watch.kdamond.pid))
        return watch.trace.newest()

    def _may_change(self, watch: WatchedGuest, ram: tuple[RamRange, ...]) -> bool:
        """Tell whether to watch changed RAM: what DAMON learnt of the guest is lost."""
        if watch.guest.ram == ram:
            return False
        now, identity = self._clock(), watch.guest.identity
        due, wait_s = self._changes.get(identity, (0.0, CHANGE_S))
        if now < due or self._admin.is_held_up(watch.kdamond):
            return False
        if now >= due + LONGEST_CHANGE_S:
            wait_s = CHANGE_S
        self._changes[identity] = now + wait_s, min(2 * wait_s, LONGEST_CHANGE_S)
        return True

    def _sample(self, guest: GuestTopology, pagemap: int, ram: RamRange, found: Aggregation) -> RangeSample:
        touched = np.zeros(ram.npages, np.uint8)
        for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True):
            first, last = ((hva - ram.hva) // PAGE_BYTES for hva in (start, end))
            touched[max(first, 0) : max(last, 0)] = 1

        def fill(chunk: FrameChunk, accessed: Bytes) -> None:
            # A region spans pages that are not there: those were touched by nobody.
            accessed[:] = touched[chunk.first : chunk.first + len(accessed)] & (chunk.pfns != 0)

        return self._walk.sample(guest, pagemap, ram, fill)


def _span(ram: RamRange) -> tuple[int, int]:
    return ram.hva, ram.hva + ram.size_bytes
