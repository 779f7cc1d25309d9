"""How does DAMON learn what to watch?  Through sysfs (Documentation/admin-guide/mm/damon/usage.rst).

1. Before the first guest, KDAMONDS kdamonds are prepared: their number cannot change while one runs.
2. Each guest has a kdamond of its own, with operations "fvaddr" (fixed ranges) and no scheme.  A process that
   lets nobody read its memory map (held.py) keeps that one waiting, and no other.
3. A kdamond is asked nothing; it tells by its trace point (damon_trace.py).  It ends with its process.
4. Whoever turns a kdamond off waits until it has looked at its process once more.  Meanwhile nobody else can
   begin one (damon_sysfs_lock).  So one that waits for its process is never turned off.

Read in Linux 6.12 (mm/damon/sysfs.c, core.c); later releases take that lock for as long or longer.

Limits: a process may lock its map in the moment after it was looked whether it does (``stop``).  Until it
unlocks it, no kdamond begins or is turned off; those that run go on.
"""

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from vmplace import apart, held
from vmplace.errors import UnsupportedHostError, VmplaceError
from vmplace.held import HeldError
from vmplace.outside import SMALL_BYTES, read_text, read_whole
from vmplace.sampling.damon_settings import Range, most_regions, settings_of
from vmplace.topology.damon import (
    ADMIN,
    BUSY_S,
    BUSY_STEP_S,
    MARK,
    OPERATIONS_CURE,
    Begun,
    begun_at,
    foreign_use,
    is_marked,
    lacking,
    read_mark,
    read_patiently,
    seen_operations,
)
from vmplace.topology.procfs import PROC

LOG = logging.getLogger(__name__)
KDAMONDS = 512
"""More than a host has guests; each that is prepared takes some KiB of the kernel's memory."""
PATIENCE_S = 5.0
"""To turn a kdamond off usually takes less than a sample."""
BUSY_AGAIN_S = 10.0
LOOKS, LOOK_S = 10, 0.01
STUCK = "DAMON does not answer: a process that it watches blocks its own memory map"


class DamonHeldError(VmplaceError):
    """A process holds up whoever sets DAMON up; nothing but that process, or its end, changes that."""

    def __init__(self, *pids: int) -> None:
        named = f" (pid {', '.join(map(str, pids))})" if pids else ""
        super().__init__(STUCK + named, hint="it goes on once that process unlocks it, or ends")


class DamonAdmin:
    """The kdamonds of this agent."""

    def __init__(  # noqa: PLR0913 - seams but for the first two
        self,
        sysfs: Path,
        state_dir: Path,
        *,
        sample_us: int = 25_000,
        aggregation_us: int = 250_000,
        proc: Path = PROC,
        beat: Callable[[], None] = lambda: None,
    ):
        """Probe; raises UnsupportedHostError where DAMON is missing or in somebody else's hands.

        ``beat`` is called before each kdamond is turned off.
        Kdamonds of a killed agent are turned off.  Those that wait for a process are kept.
        """
        self._begin(sysfs, state_dir, proc, beat)
        self._sample_us = sample_us
        self.aggregation_us = aggregation_us
        self._probe()

    def _begin(self, sysfs: Path, state_dir: Path, proc: Path, beat: Callable[[], None]) -> None:
        self._sysfs, self._root, self._proc = sysfs, sysfs / ADMIN, proc
        self._mark, self._beat = state_dir / MARK, beat
        self._begun: dict[int, Begun] = {}
        self._is_prepared, self._kdamonds, self._not_before = False, KDAMONDS, 0.0
        # Whose kdamond was to be turned off, until it is.
        self._held_by: tuple[int, ...] = ()

    @classmethod
    def give_back(cls, sysfs: Path, state_dir: Path, proc: Path = PROC) -> bool:
        """Stop what a killed agent left watching, if it did; return whether there was anything.

        Raises DamonHeldError, OSError.
        """
        left = cls.__new__(cls)
        left._begin(sysfs, state_dir, proc, lambda: None)
        if not left._root.is_dir() or not left._mark.exists():
            return False
        left._take_over()
        left._raise_if_begun()
        return True

    @property
    def begun(self) -> tuple[Begun, ...]:
        """Return the kdamonds that run; raises OSError."""
        running = (one if one.pid else self._running(one) for one in self._begun.values())
        self._begun = {one.slot: one for one in running if one.runs(self._proc)}
        return tuple(self._begun.values())

    def start(self, target_pid: int, ranges: Sequence[Range]) -> Begun:
        """Watch a process; raises OSError, DamonHeldError."""
        self._prepare()
        used = {one.slot for one in self.begun}
        if (slot := next((slot for slot in range(self._kdamonds) if slot not in used), None)) is None:
            raise VmplaceError(f"DAMON watches {len(used)} processes, and no more", hint="use another source")
        # Before there is anything: an agent may be killed at any moment, and nobody else would clean up.
        self._note(Begun(slot, target_pid))
        self._write(f"{slot}/contexts/nr_contexts", 1)
        most = most_regions(len(used) + 1)
        for path, value in settings_of(target_pid, ranges, most, self._sample_us, self.aggregation_us):
            self._write(f"{slot}/contexts/0/{path}", value)
        self._write(f"{slot}/state", "on")
        pid = self._read(f"{slot}/pid")
        begun = Begun(slot, target_pid, pid, begun_at(pid, self._proc))
        self._note(begun)
        return begun

    def stop(self, begun: Begun, looks: int = 1) -> bool:
        """Turn a kdamond off, unless its process keeps it waiting; tell whether it has ended.

        Raises OSError, DamonHeldError.
        """
        self._beat()
        if begun.runs(self._proc):
            # It sleeps most of the time: the process may have locked its map since.
            if self.is_held_up(begun, looks) or held.probe(begun.target_pid):
                return False
            try:
                self._write(f"{begun.slot}/state", "off")
            except DamonHeldError:
                self._held_by = self._held_by or (begun.target_pid,)
                raise DamonHeldError(*self._held_by) from None
            except PermissionError:
                # What the kernel says of one that has just ended (__damon_stop).
                LOG.debug("kdamond %s ended by itself", begun.pid)
        self._begun.pop(begun.slot, None)
        return True

    def is_held_up(self, begun: Begun, looks: int = 1) -> bool:
        """Tell whether a kdamond waits, each time that it is looked at, for another thing than time."""
        for look in range(looks):
            if look:
                time.sleep(LOOK_S)
            stat = self._proc / begun.pid / "stat"
            try:
                if held.bounded(int(begun.pid), partial(_state, stat)) != "D":
                    return False
            except HeldError:
                # The kdamond has ended, and a process that holds readers up has its pid.
                return False
        return True

    def close(self) -> None:
        """Watch nothing; gives DAMON back.  Raises DamonHeldError if a process prevents that, OSError."""
        if not self._is_prepared:
            return
        self._stop_all()
        self._raise_if_begun()

    def _raise_if_begun(self) -> None:
        if self._begun:
            raise DamonHeldError(*(one.target_pid for one in self._begun.values()))

    def _stop_all(self) -> None:
        for begun in self.begun:
            self.stop(begun, LOOKS)
        if not self._begun:
            self._write("nr_kdamonds", 0)
            self._mark.unlink(missing_ok=True)
        self._is_prepared = bool(self._begun)

    def _probe(self) -> None:
        if not self._root.is_dir():
            raise UnsupportedHostError(
                "the kernel has no DAMON", hint="boot a kernel with CONFIG_DAMON_SYSFS and CONFIG_DAMON_VADDR"
            )
        if not os.access(self._root / "nr_kdamonds", os.W_OK):
            raise UnsupportedHostError("DAMON cannot be configured", hint="run as root")
        try:
            self._take_over()
        except DamonHeldError:
            # It is the killed agent's, and it worked: ``start`` tries again.
            LOG.warning("%s", STUCK)
            return
        if self._is_prepared:
            LOG.warning("%d kdamonds of a killed agent wait for their processes", len(self._begun))
            return
        if (use := foreign_use(self._sysfs, self._mark, self._proc)) is not None:
            # Only what others' kdamonds show: to prepare one for that is not for who may not use DAMON.
            if why := lacking(seen_operations(self._root, read_whole(self._root / "nr_kdamonds"))):
                raise UnsupportedHostError(why, hint=OPERATIONS_CURE)
            raise UnsupportedHostError(f"DAMON is in use {use.why}", hint=use.cure)
        self._probe_operations()

    def _probe_operations(self) -> None:
        self._prepare()
        self._write("0/contexts/nr_contexts", 1)
        known = self._read("0/contexts/0/avail_operations").split()
        self._stop_all()
        if why := lacking(tuple(known)):
            raise UnsupportedHostError(why, hint=OPERATIONS_CURE)

    def _take_over(self) -> None:
        """Stop what a killed agent left; raises OSError, DamonHeldError."""
        noted = read_mark(self._mark)
        if noted is None:
            return
        try:
            if not is_marked(self._root, self._mark, self._proc):
                self._mark.unlink()
                return
            self._kdamonds, self._begun = noted.kdamonds, {one.slot: one for one in noted.begun}
        except OSError as err:
            if err.errno == errno.EBUSY:
                raise DamonHeldError from err
            raise
        self._stop_all()

    def _running(self, noted: Begun) -> Begun:
        pid = noted.pid or self._read(f"{noted.slot}/pid")
        return Begun(noted.slot, noted.target_pid, pid, noted.began or begun_at(pid, self._proc))

    def _prepare(self) -> None:
        if not self._is_prepared:
            self._take_over()
        if not self._is_prepared:
            self._kdamonds = KDAMONDS
            self._note()
            self._write("nr_kdamonds", KDAMONDS)
            self._is_prepared = True

    def _note(self, *changed: Begun) -> None:
        self._begun |= {one.slot: one for one in changed}
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        # An agent that is killed as it writes leaves the mark that there was.
        fresh = self._mark.with_suffix(".new")
        fresh.write_text(
            "\n".join([str(self._kdamonds), *(one.line() for one in self._begun.values())]) + "\n"
        )
        fresh.replace(self._mark)

    def _read(self, path: str) -> str:
        return read_patiently(self._root / path)

    def _write(self, path: str, value: object) -> None:
        end = (began := time.monotonic()) + BUSY_S
        if began < self._not_before:
            raise DamonHeldError(*self._held_by)
        while True:
            try:
                apart.write(self._root / path, str(value), patience_s=PATIENCE_S)
            except HeldError as err:
                raise DamonHeldError(*self._held_by) from err
            except OSError as err:
                if err.errno != errno.EBUSY or time.monotonic() >= end:
                    raise self._explained(err) from err
            else:
                self._held_by = ()
                return
            time.sleep(BUSY_STEP_S)

    def _explained(self, err: OSError) -> Exception:
        """Return DamonHeldError if somebody keeps DAMON's lock, who is then left alone for a while."""
        if err.errno != errno.EBUSY:
            return err
        try:
            self._read("0/state")
        except OSError:
            self._not_before = time.monotonic() + BUSY_AGAIN_S
            return DamonHeldError()
        return err


def _state(stat: Path) -> str:
    """Return the state of a thread by its /proc/PID/stat; "" of one that is gone."""
    with contextlib.suppress(OSError, IndexError):
        return read_text(stat, SMALL_BYTES).rpartition(")")[2].split()[0]
    return ""
