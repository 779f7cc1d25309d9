"""One guest's copies: what is remembered of them, and how more are made within the budget."""

import errno
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vmplace.actuation.budget import Budget
from vmplace.actuation.frame_sets import FrameSet
from vmplace.actuation.replica_calls import Ask, Attempt
from vmplace.actuation.replica_drops import DropTurn, Part, collapse_runs, parts_of, parts_of_slots
from vmplace.actuation.replica_frames import BLOCK, ReplicatedFrames, frames_of, runs_in
from vmplace.actuation.replica_nodes import ServedNodes
from vmplace.actuation.replica_patience import LOST, Patience
from vmplace.actuation.replica_payment import LastCount, Payment
from vmplace.actuation.replica_turns import CopyWindow, Turn
from vmplace.actuation.result import Copies, ReplicaOutcome
from vmplace.errors import VmplaceError
from vmplace.policy.plan import Collapse, Replication
from vmplace.topology.guest import PAGE_BYTES
from vmplace.topology.placement import Placement

LOG = logging.getLogger(__name__)
GONE = frozenset({errno.EIO, errno.ESRCH})
"""The VM is dead, or its process: its replicas are freed."""
RELEASED = "released_pages"
"""KVM's statistic of frames whose copies it was asked to drop, by whatever part of the agent."""
PASSING = frozenset({"busy", "not present", "backing off", "written", "interrupted"})
"""Reasons that another page, or the next window, does not have."""
NO_ROOTS = "no node roots"
"""Why none could be asked for: KVM has no page tables of their own for two of the nodes."""
HUGE = "huge"
"""The reason of a part of a huge page: passing, if the rest was wanted, but not paid for."""
Tried = tuple[ReplicaOutcome, Exception | None]
"""What became of the pages of a guest, and what ended it early."""


@dataclass(frozen=True)
class CopyTools:
    """What the copies of all guests are made with."""

    budget: Budget
    clock: Callable[[], int]
    ask: Ask


@dataclass(frozen=True)
class ReplicatedGuest:
    """What is remembered of one guest."""

    name: str
    placement: Placement
    tools: CopyTools
    held: ReplicatedFrames = field(default_factory=ReplicatedFrames)
    patience: Patience = field(default_factory=Patience)
    payment: Payment = field(default_factory=Payment)
    dropping: DropTurn = field(default_factory=DropTurn)
    turn: Turn = field(default_factory=Turn)
    served: ServedNodes = field(default_factory=ServedNodes)
    counted: LastCount = field(default_factory=LastCount)

    def replicate(self, wanted: Replication, is_stopping: Callable[[], bool]) -> Tried:
        """Give pages copies, as far as budget and limit go, and what KVM lets have some."""
        info = self.placement.info()
        nodes = sum(1 << nid for nid in wanted.nids) & info.root_nodes
        if nodes.bit_count() < 2:
            self.patience.note_refusal(self.tools.clock(), NO_ROOTS)
            nids = ", ".join(map(str, wanted.nids))
            who = f"of nodes {nids} fewer than two have" if info.root_nodes else "it has no"
            raise VmplaceError(f"{who} node roots")
        statistics, now_ns = self.placement.statistics(), self.tools.clock()
        # A call that was given up may have gone on.
        each_bytes = _each_bytes(nodes, wanted.from_pages)
        self._charge(self.payment.due_bytes(statistics, each_bytes), each_bytes)
        self.held.note_drops(statistics[LOST] + statistics[RELEASED])
        self.held.note_nodes(nodes)
        frames = frames_of(wanted, info.slots)
        if not self.patience.is_over(statistics, now_ns):
            lacks = len(self.held.without(frames))
            return ReplicaOutcome(self.name, refused={self.patience.why: lacks} if lacks else {}), None
        if not (asked := self.held.missing(frames)):
            return ReplicaOutcome(self.name), None
        return self._try(nodes, each_bytes, asked, wanted.limit_bytes, is_stopping)

    def copies(self) -> Copies:
        """Return what its copies take now, and lost; where KVM does not say, what it said before."""
        try:
            self.counted.note(self.placement.statistics())
        except OSError as err:
            if err.errno in GONE:
                self.counted.note_end()
        except Exception:
            LOG.debug("copies of guest %s are not counted now", self.name, exc_info=True)
        waits = self.patience.waits(self.tools.clock())
        return Copies(self.counted.present_bytes, self.counted.lost_bytes, waits)

    def drop(self, unwanted: Collapse, is_stopping: Callable[[], bool]) -> int:
        """Drop the copies of these pages that were made lately, or all of the guest; return of how many.

        VmplaceError, or OSError when the VM is dead: its replicas are freed.
        """
        if not (unwanted.is_all or self.held.any()):
            return 0
        if unwanted.is_all:
            return self._drop_all(is_stopping)
        frames = self.held.among(*runs_in(unwanted, self.placement.info().slots))
        return self._drop(parts_of(frames), is_stopping)[0] if frames else 0

    def _drop_all(self, is_stopping: Callable[[], bool]) -> int:
        """Drop all copies, whatever is known of them; return as ``_drop`` does.

        One that was ended early is gone on with by the next.
        """
        parts = self.dropping.in_turn(list(parts_of_slots(self.placement.info().slots)))
        count, is_done = self._drop(parts, is_stopping)
        if is_done:
            self.dropping.begin = 0
            # KVM drops those of a slot that went away by itself.
            self.held.forget_all()
            self.served.note_drop()
        return count

    def _drop(self, parts: Iterable[Part], is_stopping: Callable[[], bool]) -> tuple[int, bool]:
        """Drop copies part by part; return how many frames held have none now, and whether that is all."""
        count, own, before, is_done = 0, 0, self._released(), True
        for first, npages in parts:
            held = self.held.among(first, first + npages.astype(np.uint64))
            own += self.held.sure(held)
            # If that fails, some may be there still, and KVM's count puts all in doubt.
            collapse_runs(self.placement.fd, first, npages, self._ask)
            self.held.forget(held)
            count += len(held)
            if not (is_done := not is_stopping()):
                break
        after = self._released()
        if before is not None and after is not None:
            # Those that are dropped beside these are anybody's: of a huge page all copies go at once.
            self.held.note_own_drops(min(after - before, own))
        if not self.held.any():
            self.served.note_drop()
        return count, is_done

    def _released(self) -> int | None:
        """Return of how many frames KVM was asked to drop the copies so far, None if it does not say."""
        try:
            return self.placement.statistics()[RELEASED]
        except Exception:
            return None

    def leave(self, nids: Iterable[int], is_stopping: Callable[[], bool]) -> str:
        """Drop all copies if a plan, for nodes ``nids``, leaves out one that has some; return what was done.

        In words, none if there was nothing to do.  Raises as ``drop`` does.
        """
        useless = self.served.useless(sum(1 << nid for nid in nids))
        # Those that are dropped while it waits would not be made again.
        if not useless or self.patience.waits(self.tools.clock()):
            return ""
        count = self._drop_all(is_stopping)
        left = ", ".join(str(nid) for nid in range(useless.bit_length()) if useless >> nid & 1)
        return f"copies of {count} pages dropped, to be made again without node {left}"

    def drop_all(self) -> None:
        """Drop all copies; raises as ``drop`` does."""
        self._drop_all(lambda: False)

    def _try(
        self,
        nodes: int,
        each_bytes: float,
        asked: FrameSet,
        limit_bytes: int | None,
        is_stopping: Callable[[], bool],
    ) -> Tried:
        """Ask KVM for copies, part by part."""
        most = self._most(each_bytes, limit_bytes)
        window, failure = CopyWindow(asked, self.turn, most), None
        try:
            while failure is None and len(part := window.part(most)):
                attempt = Attempt(self.placement.fd, nodes, part, self._ask)
                failure = _failure_of(attempt.run)
                window.note(attempt)
                if len(attempt.done) or len(attempt.unknown):
                    self.served.note_copies(nodes)
                unpaid = self._pay(each_bytes, attempt)
                failure = failure or unpaid
                if is_stopping():
                    break
                most = self._most(each_bytes, limit_bytes)
        finally:
            # Whatever ended it: what was copied is to be dropped one day.
            new, refused = window.end(self.held), window.refused()
        # Whether the rest is refused, too, is not known before its turn.
        passing = PASSING | {HUGE} if window.has_cut else PASSING
        lasting = max(refused.keys() - passing, key=refused.__getitem__, default=None)
        if lasting and not self.held.any_sure() and self.turn.is_whole(window.asked):
            self.patience.note_refusal(self.tools.clock(), lasting)
        return ReplicaOutcome(self.name, new, window.left(), refused), failure

    def _most(self, each_bytes: float, limit_bytes: int | None) -> int:
        """Return how many pages may get copies now."""
        budget, now_ns = self.tools.budget, self.tools.clock()
        may_bytes = budget.available_bytes(now_ns)
        if budget.is_full(now_ns):
            # More is never saved up, and KVM copies huge pages as a whole: it is made good afterwards.
            may_bytes = max(may_bytes, math.ceil(BLOCK * each_bytes))
        if limit_bytes is not None:
            may_bytes = max(0, min(may_bytes, limit_bytes - self.payment.copies * PAGE_BYTES))
        return int(may_bytes // each_bytes)

    def _pay(self, each_bytes: float, attempt: Attempt) -> Exception | None:
        """Take from the budget what KVM copied; where it cannot be asked, all that it may have copied.

        Returns why it could not be asked.
        """
        failure = None
        try:
            size_bytes = self.payment.due_bytes(self.placement.statistics(), each_bytes)
        except Exception as err:
            failure = err
            most = len(attempt.done) + len(attempt.unknown)
            size_bytes = self.payment.pay_ahead(round(most * each_bytes))
        self._charge(size_bytes, each_bytes)
        return failure

    def _charge(self, size_bytes: int, each_bytes: float) -> None:
        """Take from the budget what was copied; a whole block may have been more than it holds."""
        self.tools.budget.charge(size_bytes, self.tools.clock(), BLOCK * each_bytes)

    def _ask(self, _fd: int, *rest: Any) -> None:
        """Ask KVM on the guest's behalf; gives up with HeldError."""
        self.placement.call(lambda own: self.tools.ask(own, *rest))


def _each_bytes(nodes: int, from_pages: Mapping[int, float]) -> float:
    """Return what all copies of a page take, on average: on the node where it lies itself it needs none.

    ``from_pages``: how many lie where; where that is not known, all are taken to lie on one of ``nodes``.
    """
    near = sum(pages for nid, pages in from_pages.items() if nodes >> nid & 1)
    total = sum(from_pages.values())
    return PAGE_BYTES * (nodes.bit_count() - (near / total if total else 1.0))


def _failure_of(step: Callable[[], None]) -> Exception | None:
    """Do the step; return what it raised."""
    try:
        step()
    except Exception as err:
        return err
    return None
