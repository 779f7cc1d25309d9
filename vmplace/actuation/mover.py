"""Carry out a plan for all guests of the host, within the budget, and tell what became of each page."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from vmplace.actuation.admission import admitted, unmovable_reasons
from vmplace.actuation.batch import MoveKernel
from vmplace.actuation.batch_size import LIMIT_NS, BatchSizes
from vmplace.actuation.budget import Budget
from vmplace.actuation.gfn_kernel import GuestKernels
from vmplace.actuation.guest_mover import GuestMemory, GuestMover, Tools
from vmplace.actuation.identity import PROC, read_identity
from vmplace.actuation.journal import Journal
from vmplace.actuation.pages import WantedPages
from vmplace.actuation.result import ActuationResult
from vmplace.actuation.tally import Tally
from vmplace.actuation.veto import PingPongVeto
from vmplace.errors import GuestGoneError, JournalError, VmplaceError
from vmplace.policy.plan import Move, PlacementPlan
from vmplace.topology.guest import HUGE_BYTES, GuestTopology

LOG = logging.getLogger(__name__)
_CHUNK_BYTES = 16 << 20


class Mover:
    """Moves pages; remembers from window to window what moved to and fro, and what would not move.

    Each call of ``apply`` is one window for that memory.  ``longest_call_ns`` is what one call of the kernel
    may take; batches are sized so that it does.  ``by_gfn`` has a guest's own KVM move its pages where it can
    (gfn_kernel.py); else ``kernel`` does, by move_pages(2).
    """

    def __init__(  # noqa: PLR0913 - three parts, three options
        self,
        journal: Journal,
        budget: Budget,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        longest_call_ns: int = LIMIT_NS,
        kernel: MoveKernel | None = None,
        by_gfn: bool = False,
        proc: Path = PROC,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._longest_call_ns = longest_call_ns
        self._journal = journal
        self._budget = budget
        self._clock = clock
        self._sleep = sleep
        self._kernels = GuestKernels(kernel, proc, by_gfn=by_gfn)
        self._proc = proc
        self._memories: dict[tuple[int, int], GuestMemory] = {}

    def apply(
        self,
        plan: PlacementPlan,
        guests: Mapping[str, GuestTopology],
        *,
        stop: Callable[[], bool] = lambda: False,
        patience_s: float = 0.0,
    ) -> ActuationResult:
        """Move what the budget allows now, waiting at most ``patience_s`` for more; the rest is ``left``.

        ``stop`` is asked before every call.  A guest that ends, or will not be moved, is a failure in the
        result and does not concern the others.  JournalError when nothing could be journaled.
        """
        self._start_window(guests)
        tools = Tools(self._kernels.stock, self._journal, self._budget, self._clock, stop, self._proc)
        failures: list[str] = []
        movers = list(self._movers(plan.moves, guests, tools, failures))
        try:
            self._run(movers, tools, self._clock() + int(patience_s * 1e9), failures)
        except JournalError as err:
            if not any(m.tally.counts["moved"] for m in movers):
                raise
            failures.append(str(err))
        for mover in movers:
            mover.end()
            failures += mover.failures
        return ActuationResult(tuple(m.tally.outcome() for m in movers), tuple(failures))

    def forgive(self, guest: GuestTopology) -> None:
        """Let pages of the guest go to where they came from: its vCPUs run elsewhere now."""
        memory = self._memories.get(guest.identity)
        if memory is not None:
            memory.veto = PingPongVeto()

    def release(self, guest: GuestTopology) -> None:
        """Let go of one guest until it is moved again."""
        self._kernels.release(guest)

    def close(self) -> None:
        """Let go of the guests; what was moved stays."""
        self._kernels.close()

    def _start_window(self, guests: Mapping[str, GuestTopology]) -> None:
        alive = {guest.identity for guest in guests.values()}
        self._kernels.forget_ended(alive)
        self._memories = {key: memory for key, memory in self._memories.items() if key in alive}
        for memory in self._memories.values():
            memory.start_window(self._clock() / 1e9)

    def _movers(
        self,
        moves: Iterable[Move],
        guests: Mapping[str, GuestTopology],
        tools: Tools,
        failures: list[str],
    ) -> Iterable[GuestMover]:
        by_guest: dict[str, list[Move]] = {}
        for move in moves:
            by_guest.setdefault(move.guest, []).append(move)
        for name, mine in by_guest.items():
            guest = guests.get(name)
            if guest is None:
                failures.append(f"guest {name}: ended before its pages were moved")
                continue
            try:
                mover = self._mover(guest, mine, tools)
            except VmplaceError as err:
                failures.append(f"guest {name}: {err}")
            except Exception as err:
                failures.append(f"guest {name}: {type(err).__name__}: {err}")
            else:
                yield mover

    def _mover(self, guest: GuestTopology, moves: list[Move], tools: Tools) -> GuestMover:
        memory = self._memories.get(guest.identity)
        if memory is None:
            memory = GuestMemory(sizes=BatchSizes(self._longest_call_ns))
            memory.start_window(self._clock() / 1e9)
            self._memories[guest.identity] = memory
        wanted = WantedPages.of_moves(moves)
        tally = Tally(guest.name, wanted.total_pages)
        # A loss that was measured ends, wherever pages came from lately.
        veto = None if all(move.undoes for move in moves) else memory.veto
        passed = admitted(wanted, guest, veto, memory.stubborn, tally)
        tools = replace(tools, kernel=self._kernels.of(guest))
        mover = GuestMover(read_identity(guest, self._proc), passed, memory, tally, tools)
        if tally.refused or tally.counts["pinned"]:
            mover.failures += [f"guest {guest.name}: {reason}" for reason in unmovable_reasons(guest)]
        return mover

    def _run(self, movers: list[GuestMover], tools: Tools, until_ns: int, failures: list[str]) -> None:
        """Serve the guest that got least so far, one chunk at a time."""
        while (waiting := [m for m in movers if len(m.queue)]) and not tools.stop():
            mover = min(waiting, key=lambda m: m.served_bytes)
            if not self._await_budget(int(mover.queue.sizes_bytes[0]), tools, until_ns):
                return
            share = self._budget.available_bytes(self._clock()) // len(waiting)
            try:
                mover.move_chunk(max(min(_CHUNK_BYTES, share), HUGE_BYTES))
            except JournalError:
                raise
            except GuestGoneError:
                failures.append(f"guest {mover.tally.guest}: ended while its pages were moved")
                mover.end("gone")
            except VmplaceError as err:
                failures.append(f"guest {mover.tally.guest}: {err}" + (f" ({err.hint})" if err.hint else ""))
                mover.end()
            except Exception as err:
                LOG.error("guest %s cannot be moved", mover.tally.guest, exc_info=err)
                failures.append(f"guest {mover.tally.guest}: {type(err).__name__}: {err}")
                mover.end()

    def _await_budget(self, size_bytes: int, tools: Tools, until_ns: int) -> bool:
        """Wait until ``size_bytes`` may be moved; False when that is too late or never."""
        while not tools.stop():
            now = self._clock()
            wait_s = self._budget.wait_s(size_bytes, now)
            if wait_s == 0:
                return True
            if wait_s is None or now + wait_s * 1e9 > until_ns:
                return False
            self._sleep(min(wait_s, 0.05))
        return False
