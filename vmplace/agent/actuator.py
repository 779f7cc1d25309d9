"""All that changes the host, as the loop uses it: moves, kernel NUMA balancing, undo, behind one journal."""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from vmplace import apart, left_behind
from vmplace.actuation.budget import Budget
from vmplace.actuation.gfn_kernel import can_move
from vmplace.actuation.identity import GuestIdentity, is_alive, read_identity
from vmplace.actuation.journal import Journal
from vmplace.actuation.journal_records import AffinityRecord
from vmplace.actuation.mover import Mover
from vmplace.actuation.ownership import NumaBalancing, Ownership
from vmplace.actuation.pinner import Pinner, pin_all
from vmplace.actuation.replicator import Replicator, can_replicate
from vmplace.actuation.result import ActuationResult, Copies
from vmplace.actuation.undo import undo
from vmplace.agent.config_sections import Config
from vmplace.agent.host_calls import HostCalls, UndoAllowance
from vmplace.agent.report import copies_line, vcpus_line
from vmplace.agent.undo_lines import undo_lines
from vmplace.errors import VmplaceError
from vmplace.held import HeldError
from vmplace.policy.gathering import EarlierTie
from vmplace.policy.plan import Collapse, PlacementPlan, VcpuMove
from vmplace.topology.guest import PAGE_BYTES, GuestTopology, Identity

LOG = logging.getLogger(__name__)
UNDO_S = 240.0
"""The longest undo in one go: less than the 300 s that the client waits (control.py)."""
AGAIN = "the agent tries again at each window, and once it ends KVM drops them"


class HostActuator:
    """The real actuator.

    ``killed_pid`` is that of an agent that did not end cleanly, or None; ``settled`` is called once what
    that one left is reported.  ``beat`` is called while a long journal is read or rewritten.
    """

    def __init__(
        self,
        config: Config,
        *,
        killed_pid: int | None = None,
        settled: Callable[[], None] = lambda: None,
        calls: HostCalls | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        calls = calls or HostCalls()
        self._calls = calls
        self._patience_s = config.window_ms / 1000
        self._dropped_last = ""
        self._killed_pid = killed_pid
        self._settled = settled
        self._journal = Journal(config.journal_path, proc=calls.proc, beat=beat)
        left_behind.note_left_behind(calls.proc)
        self._ownership = ownership_of(config)
        self._balancing = NumaBalancing(self._journal, self._ownership, proc=calls.proc)
        self._budget = budget = Budget(config.budget.mb_per_s * 1e6)
        longest_call_ns = int(config.budget.call_ms * 1e6)
        by_gfn = calls.kernel is None and config.mover == "auto" and can_move()
        self._mover = Mover(
            self._journal,
            budget,
            calls.clock,
            longest_call_ns=longest_call_ns,
            kernel=calls.kernel,
            by_gfn=by_gfn,
            proc=calls.proc,
            sleep=calls.sleep,
        )
        self._pinner = Pinner(self._journal, proc=calls.proc, sysfs=calls.sysfs, threads=calls.threads)
        self._replicator = Replicator(budget, calls.clock, calls.proc, calls.opened, calls.ask)
        self._tied_to: dict[Identity, int | None] = {}

    def apply(
        self, plan: PlacementPlan, guests: Mapping[str, GuestTopology], is_stopping: Callable[[], bool]
    ) -> ActuationResult:
        """Pin vCPUs, move and replicate within the budget; give up on the rest after a window's length."""
        pinned = pin_all(self._pinner, plan.vcpu_moves, guests)
        for move in pinned.pinned:
            LOG.info("%s", vcpus_line(move))
            self._forgive(guests[move.guest], move)
        # Without its vCPUs, a guest's memory would follow to a node where nobody is.
        tied = {move.guest for move in plan.vcpu_moves if move.nid is not None}
        moves = tuple(move for move in plan.moves if move.guest not in pinned.refused & tied)
        plan = replace(plan, moves=moves)
        dropped, failures = self._drop_copies(plan, guests, is_stopping)
        result = self._mover.apply(plan, guests, stop=is_stopping, patience_s=self._patience_s)
        replicas, refused = self._replicator.apply(plan.replications, guests, is_stopping)
        for outcome in replicas:
            if outcome.replicated:
                LOG.info("%s", copies_line(outcome))
        failures = (*pinned.failures, *failures, *result.failures, *refused)
        return replace(result, failures=failures, replicas=replicas, pinned=pinned.pinned, dropped=dropped)

    def _forgive(self, guest: GuestTopology, move: VcpuMove) -> None:
        """Let pages go back to where they were if vCPUs go to a node, but once: others may move them, too."""
        if move.nid is not None and self._tied_to.get(guest.identity) != move.nid:
            self._mover.forgive(guest)
        self._tied_to[guest.identity] = move.nid

    def _drop_copies(
        self, plan: PlacementPlan, guests: Mapping[str, GuestTopology], is_stopping: Callable[[], bool]
    ) -> tuple[Mapping[str, int], tuple[str, ...]]:
        """Drop copies that do more harm than good; return pages by guest, and what went wrong.

        It ends after a window's length, as those of a whole host take minutes.  The next plan goes on, and
        begins with the guests behind the one that was not done with.
        """
        dropped: Counter[str] = Counter()
        failures, until_ns = [], self._calls.clock() + int(self._patience_s * 1e9)

        def stop() -> bool:
            return is_stopping() or self._calls.clock() > until_ns

        for unwanted in self._in_turn([one for one in plan.collapses if one.guest in guests]):
            try:
                if count := self._replicator.drop(unwanted, guests[unwanted.guest], stop):
                    dropped[unwanted.guest] += count
                    LOG.info(
                        'guest=%s collapsed_pages=%d reason="%s"', unwanted.guest, count, unwanted.reason
                    )
            except Exception as err:
                failures.append(f"guest {unwanted.guest}: copies not dropped: {err}")
            if stop():
                self._dropped_last = unwanted.guest
                break
        return dropped, tuple(failures)

    def _in_turn(self, drops: list[Collapse]) -> list[Collapse]:
        """Return the drops from behind the guest on at which the last ones ended."""
        names = [one.guest for one in drops]
        begin = names.index(self._dropped_last) + 1 if self._dropped_last in names else 0
        return drops[begin:] + drops[:begin]

    def release(self, guest: GuestTopology) -> None:
        """Drop the guest's copies and close its placement fd; VmplaceError if copies are left for later."""
        try:
            dropped = self._replicator.release(guest)
        finally:
            self._mover.release(guest)
            self._tied_to.pop(guest.identity, None)
        for reported in dropped.reported:
            LOG.info('guest=%s reason="%s"', guest.name, reported)
        if dropped.left:
            raise VmplaceError("; ".join(dropped.left), hint=AGAIN)

    def copies(self, guests: Iterable[GuestTopology]) -> Mapping[str, Copies]:
        """Return what copies take, and lost, by guest, as KVM counts them; ``guests``: all that run."""
        return self._replicator.copies(guests)

    def ties(self) -> Mapping[Identity, EarlierTie]:
        """Return whose vCPUs are tied by what the journal holds, by pid and start time.

        A thread that only got more CPUs is tied to none.
        """
        return {
            (guest.identity.pid, guest.identity.start_time): EarlierTie(
                {one.vcpu_id: one.cpus for one in tied}, {one.vcpu_id: one.set_to or () for one in tied}
            )
            for guest in self._journal.without_pages().guests.values()
            if (tied := [one for one in guest.affinities.values() if _is_tied(one)])
            and self._is_there(guest.identity)
        }

    def placed(self) -> Mapping[Identity, str]:
        """Return the names of guests of which the journal holds something, by pid and start time."""
        guests = [one.identity for one in self._journal.without_pages().guests.values()]
        return {(one.pid, one.start_time): one.name for one in guests if self._is_there(one)}

    def _is_there(self, guest: GuestIdentity) -> bool:
        """Tell whether a guest may still run; one that holds up whoever asks must not keep the agent down."""
        try:
            return is_alive(guest, self._calls.proc)
        except HeldError:
            return True

    def own(self, is_managing: bool) -> tuple[str, ...]:
        """Take kernel NUMA balancing while guests are managed, give it back otherwise.

        What of copies was to go before, and would not, is tried again.
        """
        again = self._replicator.retry()
        for line in again.reported:
            LOG.info("%s", line)
        reported = self._balancing.update(1 if is_managing else 0)
        if reported is None:
            return again.left
        LOG.info(
            '%s reason="%s"', reported, "guests are managed" if is_managing else "it interferes with no guest"
        )
        return (reported, *again.left)

    def undo(
        self,
        guest: GuestTopology | None,
        is_stopping: Callable[[], bool],
        held: Collection[Identity] = (),
    ) -> tuple[str, ...]:
        """Undo one guest, or all but those ``held``, within the budget; return what was done.

        It ends early once ``is_stopping()``, and after ``UNDO_S``: then the journal keeps what is left.
        Raises VmplaceError, with what was done, if something could not be restored.
        """
        calls = self._calls
        until_ns = calls.clock() + int(UNDO_S * 1e9)

        def stop() -> bool:
            return is_stopping() or calls.clock() > until_ns

        copies = self._replicator.collapse() if guest is None else self._replicator.release(guest)
        result = undo(
            self._journal,
            calls.proc,
            guests=self._whose(guest, held),
            kernel=calls.kernel,
            stop=stop,
            allowance=UndoAllowance(self._budget, calls, stop),
            room=calls.room_bytes,
            threads=calls.threads,
            sysfs=calls.sysfs,
            sleep=calls.sleep,
        )
        if guest is None:
            # undo gave the sysctls back: what the journal says now is what is taken.
            self._balancing = NumaBalancing(self._journal, self._ownership, proc=calls.proc)
        reported = (*copies.reported, *copies.left, *undo_lines(result))
        for line in reported:
            LOG.info("undo: %s", line)
        if copies.left or not result.is_complete:
            # An error, not a line: the caller may be about to delete the journal.
            hint = AGAIN if result.is_complete else "the rest stays in the journal: run it again"
            raise VmplaceError(f"not everything was restored: {'; '.join(reported)}", hint=hint)
        return reported

    def _whose(
        self, guest: GuestTopology | None, held: Collection[Identity]
    ) -> tuple[GuestIdentity, ...] | None:
        if guest is not None:
            return (read_identity(guest, self._calls.proc),)
        known = [one.identity for one in self._journal.without_pages().guests.values()] if held else []
        return tuple(one for one in known if (one.pid, one.start_time) not in held) if held else None

    def leftover(self) -> str | None:
        """Return what a killed agent left in the journal, in words, or None."""
        if self._killed_pid is None:
            return None
        contents = self._journal.contents()
        moved = [
            f"{guest.identity.name}: {guest.pages.total_pages * PAGE_BYTES >> 20} MiB"
            + (f" and the CPUs of {len(guest.affinities)} vCPUs" if guest.affinities else "")
            for guest in contents.guests.values()
        ]
        taken = [f"{name.replace('/', '.')} was {record.before}" for name, record in contents.sysctls.items()]
        found = "; ".join((*moved, *taken, *self._journal.damage))
        self._settled()
        if not found:
            return f"the agent with pid {self._killed_pid} was killed; it left nothing to restore"
        return (
            f"the agent with pid {self._killed_pid} was killed; its journal holds {found}; "
            "`vmplace undo` restores it"
        )

    def close(self) -> None:
        """Drop replicas, give kernel NUMA balancing back, let go of the journal, which stays for ``undo``."""
        with contextlib.ExitStack() as steps:
            # Each step is done even if one before it failed.  The last callback below is the first to run.
            steps.callback(apart.close)
            steps.callback(self._journal.close)
            steps.callback(self._give_balancing_back)
            steps.callback(self._mover.close)
            for line in self._replicator.close().left:
                LOG.warning("%s; KVM drops them as the agent lets go of the guest", line)

    def _give_balancing_back(self) -> None:
        if reported := self._balancing.give_back():
            LOG.info('%s reason="the agent ends"', reported)


def _is_tied(vcpu: AffinityRecord) -> bool:
    """Tell whether a vCPU may not run somewhere where it did before."""
    return vcpu.set_to is not None and not set(vcpu.cpus) <= set(vcpu.set_to)


def ownership_of(config: Config) -> Ownership:
    """Return what becomes of kernel NUMA balancing: a KVM that replicates keeps it off the guests by itself.

    It does so for guests with node roots, which source "kvm" gives to all that it samples.
    """
    if config.numa_balancing != "auto":
        return Ownership(config.numa_balancing)
    first = config.source.partition("+")[0]
    return Ownership.LEAVE if first in {"auto", "kvm"} and can_replicate() else Ownership.TAKE
