"""Give up steps that wait for a process, when that process blocks everybody who asks about it.

Reading cmdline, smaps or pagemap in /proc/PID, the ioctls of a VM, and descriptors of another process wait
for locks that any user can hold for ever.  For instance, one thread reads /proc/self/mem at a page of a FUSE
file whose server never answers.  Another calls mmap(2) and waits behind it, and so does everybody who comes
later.  Or a process calls execve(2), which holds exec_update_lock while it closes such a file: then maps and
syscall wait, and with later kernels (6.18.44) stat and the links of fd.  A reader of "status", or of anything
about memory, may also be the last user of a process' memory map as that process ends.  The reader then waits
for the I/O of that map (exit_aio).

A kill ends most such waits, and nothing ends the last one.  So a thread of its own does the step and waits:

1. ``bounded`` runs a step in a thread and waits for it.  Waiting is limited; a step that works, or waits
   for a CPU, may take MOST_S.  The thread has a file table of its own (step_thread.py): a killed agent's
   files are closed even if one of its threads waits on.
2. A step that waits too long is given up with HeldError.  Its thread waits on; what it returns at last is
   dropped, and a descriptor is closed.  It must change nothing that others use.
3. As long as that thread is there, and a while longer each time, nothing is begun for that process.

A call that not even a kill ends is made by a process (apart.py), and noted here by ``await_end``.

Limits: all processes together may cause waits of WAIT_S in each RENEW_S, and of LEAST_WAIT_S each after that.
Waits that end before they are looked at may take SHORT_WAITS_S for each process, in LONGEST_BACKOFF_S.  Steps
that were given up, and all waits together, have the limits of held_limits.py.  Beyond these nothing is begun
for a process, known or not.  So users can have all of their own processes left alone, but not those that
libvirt started (``vouch``).
"""

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from vmplace.cpu_time import charge_thread
from vmplace.errors import UnsupportedHostError
from vmplace.garbage import COLLECTION
from vmplace.held_limits import (
    LONGEST_BACKOFF_S,
    SHORT_WAITS_S,
    STEPS,
    Blocking,
    CommonWaits,
    LeakyBucket,
)
from vmplace.step_thread import Job, Worker
from vmplace.thread_waits import Look, waited_s_between, waiting_since
from vmplace.users import owner_of

LOG = logging.getLogger(__name__)
T = TypeVar("T")

WAIT_S = 1.0
"""How long one step may wait; a large munmap(2) holds the lock for less."""
LEAST_WAIT_S = 0.1
RENEW_S = 10.0
LOOK_S, LONGEST_LOOK_S = 0.02, 0.16
"""How often a step that has not ended at once is looked at: does it work or wait?

After a quarter of the time that it has taken, within these bounds: looks take CPU time,
and what was waited after the last one is not counted."""
MOST_S = 30.0
"""How long one step may take, whatever it does; the largest guest is read in a few seconds."""
HELD = "left alone: this process, or too many others, block the readers of their memory maps"
PROC = Path("/proc")
GONE = -1
"""Whose a process is that is gone."""


class HeldError(UnsupportedHostError):
    """A process holds up the step; the caller goes on with others and tries again later."""

    def __init__(self) -> None:
        super().__init__(HELD)


class Held:
    """Which processes block steps, and the threads that do the steps.  May be used by all threads."""

    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._clock = proc, clock
        self._lock = threading.Lock()
        self._processes: dict[int, Blocking] = {}
        self._short: dict[int, LeakyBucket] = {}
        self._common = CommonWaits(clock())
        self._slow: dict[int, float] = {}
        self._vouched: frozenset[int] = frozenset()
        self._read: set[int] = set()
        # Whose a process is of which a descriptor was opened: it may be gone as that is closed.
        self._uids: dict[int, int] = {}
        self._idle: list[Worker] = []
        self._unclosed: list[tuple[int, int]] = []
        self._left_s, self._renew_at = WAIT_S, clock() + RENEW_S

    def bounded(self, pid: int, step: Callable[[], T]) -> T:
        """Return what ``step`` returns, or raise what it raises; HeldError if process ``pid`` holds it up.

        The step closes what it opens, and returns nothing that has a descriptor (step_thread.py).
        """
        if _is_step():
            return step()
        uid = self.admit(pid)
        return self._done(pid, uid, Job(step), self._taken())

    def opened(self, pid: int, opener: Callable[[], int]) -> int:
        """Return the descriptor that ``opener`` opens; raises as ``bounded`` does."""
        if _is_step():
            return opener()
        uid = self._uids[pid] = self.admit(pid)
        return self._done(pid, uid, Job(opener, gives=True), self._taken())

    def bounded_on(self, pid: int, fd: int, step: Callable[[int], T]) -> T:
        """Do ``step`` with a copy of the descriptor: the caller's may be closed while the step waits."""
        if _is_step():
            return step(fd)
        uid = self.admit(pid)
        return self._done(pid, uid, Job(step, takes=True), self._taken_with(fd))

    def closed(self, pid: int, fd: int) -> None:
        """Close a descriptor, even if process ``pid`` holds that up; raises HeldError if it does.

        Where no thread can be had, or sent to, ``keep`` closes it later.
        """
        if _is_step():
            os.close(fd)
            return
        try:
            worker = self._taken_with(fd)
        except (OSError, RuntimeError):
            LOG.warning("process %d: there is no thread that closes descriptor %d", pid, fd, exc_info=True)
            with self._lock:
                self._unclosed.append((pid, fd))
        else:
            # The thread has the last one, whose closing may take long.
            os.close(fd)
            uid = self._uids.get(pid, GONE)
            uid = _uid_of(pid, self._proc) if uid == GONE else uid
            self._done(pid, uid, Job(lambda _: None, takes=True), worker)

    def admit(self, pid: int) -> int:
        """Return whose a process is for which a step is to begin; raises HeldError if none may.

        Before the step: the process may be gone by the time that the step is given up.
        """
        uid = self.whose(pid)
        if self.holds(pid, uid):
            raise HeldError
        return uid

    def whose(self, pid: int) -> int:
        """Return whose a process is, GONE for one that is gone."""
        return _uid_of(pid, self._proc)

    def _done(self, pid: int, uid: int, job: Job[T], worker: Worker) -> T:
        try:
            worker.begin(job)
            self.await_end(pid, job.ended.wait, worker.stat, job.is_over, uid=uid)
            job.check()
            worker.receive(job)
        except BaseException:
            self._leave(pid, worker, job)
            raise
        with self._lock:
            self._idle.append(worker)
            self._read.add(pid)
        charge_thread(job.cpu_ns)
        if job.slept_s:
            self._note_short(pid, job.slept_s, uid)
        return job.outcome()

    def _leave(self, pid: int, worker: Worker, job: Job[T]) -> None:
        # Between the last look and now it may have ended after all.
        if job.leave():
            with contextlib.suppress(OSError, HeldError):
                worker.receive(job)
                for fd in job.given():
                    self.closed(pid, fd)
        worker.end()

    def holds(self, pid: int, uid: int | None = None) -> bool:
        """Tell whether nothing is to be begun for the process, as it or others block; waits for nothing.

        ``uid``: whose it is, if that is known.
        """
        with self._lock:
            process, is_known = self._processes.get(pid), pid in self._read
            if process is not None and (process.stuck_count() or self._clock() < process.until_s):
                return True
            if pid in self._vouched:
                return False
            steps = self._stuck_by_user()
        # A pid below zero stands for steps that concern no process.
        if not steps.total() or pid < 0:
            return False
        user = _user_of(_uid_of(pid, self._proc) if uid is None else uid)
        return STEPS.is_full(steps[user], steps.total(), is_known=is_known)

    def _stuck_by_user(self) -> "Counter[int]":
        # Processes, not steps: to close a held guest's descriptor is a second step for the same.
        return Counter(
            one.user
            for pid, one in self._processes.items()
            if one.stuck and pid not in self._vouched and one.stuck_count()
        )

    def vouch(self, pids: Collection[int]) -> None:
        """Note which processes libvirt started: no process of the same user takes room from these."""
        with self._lock:
            self._vouched = frozenset(pids)

    def probe(self, pid: int) -> bool:
        """Read a byte of the process; tell whether it holds that up."""

        def read() -> None:
            with (self._proc / f"{pid}/cmdline").open("rb", buffering=0) as file:
                file.read(1)
            # To open maps takes the other lock, which execve(2) holds while it closes files.
            (self._proc / f"{pid}/maps").open("rb", buffering=0).close()

        try:
            self.bounded(pid, read)
        except HeldError:
            return True
        except OSError:
            # It ended: whoever reads it next gets that error.
            return False
        except Exception:
            # There may be no thread for the step.  A process that cannot be asked may block its readers.
            LOG.warning("process %d is left alone: it cannot be asked", pid, exc_info=True)
            return True
        return False

    def keep(self, pids: set[int]) -> None:
        """Forget processes that ended; ``pids`` are the guests.

        Of others those that held up a step are remembered: whoever looks for guests reads them again.
        """
        with self._lock:
            unclosed, self._unclosed = self._unclosed, []
        for pid, fd in unclosed:
            with contextlib.suppress(HeldError):
                self.closed(pid, fd)
        with self._lock:
            self._read &= pids
            self._uids = {pid: uid for pid, uid in self._uids.items() if pid in pids}
            self._short = {pid: waits for pid, waits in self._short.items() if pid in pids}
            now = self._clock()
            self._processes = {
                pid: one
                for pid, one in self._processes.items()
                if (
                    now < max(one.until_s, one.waits.noted_s) + LONGEST_BACKOFF_S
                    and self._is_there(pid, one, pids)
                )
                or one.stuck_count()
            }

    def _is_there(self, pid: int, process: Blocking, pids: set[int]) -> bool:
        # Another user's process may have got the pid since: it does not answer for the earlier one.
        return pid in pids or (pid >= 0 and _user_of(_uid_of(pid, self._proc)) == process.user)

    def close(self) -> None:
        """End the threads that wait for nobody."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()

    def forget_threads(self) -> None:
        """Begin anew in a child that was forked: threads stay with the parent."""
        COLLECTION.begin_anew()
        for worker in self._idle:
            worker.forget()
        self._lock, self._idle, self._processes = threading.Lock(), [], {}

    def await_end(  # noqa: PLR0913 - the step, and what is known of it
        self,
        pid: int,
        ends_within: Callable[[float], bool],
        stat: Path,
        has_ended: Callable[[], bool],
        patience_s: float | None = None,
        *,
        uid: int | None = None,
    ) -> None:
        """Wait until a step ends; raise HeldError if process ``pid`` has it wait too long.

        ``ends_within`` waits for some seconds; ``stat`` is the file of /proc of the thread that the step is
        done by; ``has_ended`` tells, from then on, whether it is over at last.
        ``patience_s`` is for waits that are usual; ``uid``: whose the process is (``admit``).
        """
        before: Look | None = None
        waited_s, began = 0.0, self._clock()
        is_usual = patience_s is not None
        patience_s = self._patience_s(began) if patience_s is None else patience_s
        look_s, first = LOOK_S, began
        while not ends_within(look_s):
            now, look = self._clock(), waiting_since(stat)
            waited_s += waited_s_between(before, look, now - began)
            before, began = look, now
            if waited_s >= patience_s or now - first >= max(MOST_S, patience_s):
                self._note(pid, waited_s, has_ended, uid)
                raise HeldError
            look_s = max(LOOK_S, min((now - first) / 4, LONGEST_LOOK_S, patience_s - waited_s))
        if waited_s > LOOK_S and not is_usual:
            self._note(pid, waited_s, None, uid)

    def note_stuck(self, pid: int, has_ended: Callable[[], bool]) -> None:
        """Begin nothing for a process until a step has ended, which another process of the agent does."""
        self._note(pid, 0.0, has_ended)

    def note_waits(self, pid: int, waited_s: float) -> None:
        """Note that many steps for a process, each too short to be given up, waited so long together."""
        with self._lock:
            now = self._clock()
            process = self._known(pid, now)
            self._slow[pid] = now
            if process.waits.add(now, waited_s):
                process.leave_alone(now)

    def calls_may_wait_s(self, pid: int) -> float:
        """Return how long all calls for a process may wait: less where others had theirs wait so long."""
        with self._lock:
            since_s = self._clock() - LONGEST_BACKOFF_S
            self._slow = {one: at_s for one, at_s in self._slow.items() if at_s >= since_s}
            return max(MOST_S / (1 + len(self._slow.keys() - {pid})), WAIT_S)

    def _note(
        self, pid: int, waited_s: float, stuck: Callable[[], bool] | None, uid: int | None = None
    ) -> None:
        with self._lock:
            self._left_s -= waited_s
            now = self._clock()
            process = self._known(pid, now, uid)
            is_too_much = process.waits.add(now, waited_s)
            is_too_much |= pid > 0 and self._common.add(pid, now, waited_s)
            if stuck is not None:
                process.stuck.append(stuck)
            if stuck is not None or is_too_much:
                # A process that unblocks each time just before the limit would else cost a wait each time.
                process.leave_alone(now)

    def _note_short(self, pid: int, slept_s: float, uid: int | None = None) -> None:
        """Note what a step waited for that ended before it was looked at."""
        with self._lock:
            now = self._clock()
            if pid <= 0:
                return
            waits = self._short.setdefault(pid, LeakyBucket(SHORT_WAITS_S, now))
            if waits.add(now, slept_s) | self._common.add(pid, now, slept_s):
                waits.sum_s = 0.0
                self._known(pid, now, uid).leave_alone(now)

    def _known(self, pid: int, now_s: float, uid: int | None = None) -> Blocking:
        if pid not in self._processes:
            uid = _uid_of(pid, self._proc) if uid is None else uid
            self._processes[pid] = Blocking(_user_of(uid), LeakyBucket(WAIT_S, now_s))
        return self._processes[pid]

    def _patience_s(self, now: float) -> float:
        with self._lock:
            if now >= self._renew_at:
                self._left_s, self._renew_at = WAIT_S, now + RENEW_S
            return max(self._left_s, LEAST_WAIT_S)

    def _taken(self) -> Worker:
        with self._lock:
            return self._idle.pop() if self._idle else Worker()

    def _taken_with(self, fd: int) -> Worker:
        """Return a thread whose next step takes a copy of the descriptor; raises OSError, RuntimeError."""
        worker = self._taken()
        try:
            worker.send(fd)
        except BaseException:
            worker.end()
            raise
        return worker


def _is_step() -> bool:
    return isinstance(threading.current_thread(), Worker)


def _uid_of(pid: int, proc: Path) -> int:
    """Return whose a process is, GONE for one that is gone."""
    try:
        # By a string: each step comes by here, and a Path takes four times as long.
        return os.stat(f"{proc}/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return GONE


def _user_of(uid: int) -> int:
    """Return who answers for that user's processes."""
    return uid if uid == GONE else owner_of(uid)


_HELD = Held()
os.register_at_fork(after_in_child=_HELD.forget_threads)
bounded, bounded_on, holds, probe = _HELD.bounded, _HELD.bounded_on, _HELD.holds, _HELD.probe
opened, closed = _HELD.opened, _HELD.closed
whose, await_end, note_stuck, note_waits = _HELD.whose, _HELD.await_end, _HELD.note_stuck, _HELD.note_waits
calls_may_wait_s, keep = _HELD.calls_may_wait_s, _HELD.keep
vouch = _HELD.vouch
"""Of this process: all its parts wait for the same guests."""
