"""How does DAMON learn what to watch?  Through sysfs (Documentation/admin-guide/mm/damon/usage.rst).

One kdamond watches all guests: the number of kdamonds cannot change while one runs.  Each guest is one
target of operations set fvaddr (fixed ranges), and one scheme of action "stat" with a filter on that target,
because the regions that a scheme reports do not say whose they are.

Limits: a process that lets nobody read its memory map ends the answers for all (held.py).  A kdamond of its
own for each guest would not help: a question waits for the kdamond that it asks, and until it is answered
the kernel takes no question to another one (mm/damon/sysfs.c: damon_sysfs_handle_cmd has one request for
the host in 6.12; from 6.14 on damon_sysfs_lock is kept meanwhile).
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vmplace import apart
from vmplace.errors import UnsupportedHostError, VmplaceError
from vmplace.held import HeldError
from vmplace.outside import SMALL_BYTES, read_text, read_whole
from vmplace.topology.damon import ADMIN, MARK, begun_at, foreign_user, is_marked
from vmplace.topology.procfs import PROC

LOG = logging.getLogger(__name__)
UNLIMITED = 2**63 - 1
MIN_REGIONS, MAX_REGIONS = 200, 1000
UPDATES = 4
"""An update gives up after two aggregations by the clock (damon_sysfs_schemes_update_regions_start, 6.8 to
6.13) and then shows no region; a kdamond that is late, on a busy host, needs another try."""

PATIENCE_S = 5.0
"""An update usually waits for an aggregation or two.  All questions of a window have it once."""
LEAST_S = 0.5
"""No question is begun to be given up sooner: two aggregations."""
STUCK = "DAMON does not answer: a process that it watches blocks its own memory map"


class DamonHeldError(VmplaceError):
    """A watched process holds DAMON up; nothing but that process, or its end, changes that."""

    def __init__(self) -> None:
        super().__init__(STUCK, hint="it goes on once that process lets go, or ends")


@dataclass(frozen=True)
class Region:
    """Addresses ``[start, end)`` and in how many samples of the last aggregation they were touched."""

    start: int
    end: int
    nr_accesses: int


class DamonAdmin:
    """The one kdamond of this agent."""

    def __init__(  # noqa: PLR0913 - seams but for the first two
        self,
        sysfs: Path,
        state_dir: Path,
        *,
        sample_us: int = 25_000,
        aggregation_us: int = 250_000,
        proc: Path = PROC,
        beat: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Probe; raises UnsupportedHostError where DAMON is missing or in somebody else's hands.

        ``beat`` is called before each question.
        One that a killed agent left, and that a process holds up, is taken: DamonHeldError comes later.
        """
        self._sysfs, self._root, self._proc = sysfs, sysfs / ADMIN, proc
        self._owned = state_dir / MARK
        self._beat, self._clock = beat, clock
        self._sample_us = sample_us
        self.aggregation_us = aggregation_us
        self._probe()

    @classmethod
    def give_back(cls, sysfs: Path, state_dir: Path, proc: Path = PROC) -> bool:
        """Stop what a killed agent left watching, if it did; return whether there was anything.

        Raises DamonHeldError, OSError.
        """
        left = cls.__new__(cls)
        left._root, left._owned, left._proc = sysfs / ADMIN, state_dir / MARK, proc
        if not left._root.is_dir() or not left._owned.exists():
            return False
        left.stop()
        return True

    def start(self, targets: Sequence[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Watch processes (pid, ranges of addresses); replaces what was watched.

        Raises OSError, DamonHeldError.
        """
        self.stop()
        settings = _settings(targets, self._sample_us, self.aggregation_us)
        self._create_context(settings)
        for path, value in settings:
            self._write(f"0/contexts/0/{path}", value)
        self._write("0/state", "on")
        self._note(self._read("0/pid").strip(), settings)

    def regions(self, count: int) -> tuple[tuple[Region, ...], ...]:
        """Return the touched regions of each of the ``count`` targets, in the order of ``start``.

        Waits for an aggregation to end, and for PATIENCE_S + LEAST_S at most.  Raises OSError (EINVAL: the
        kdamond ended, as all processes did), DamonHeldError.
        """
        until = self._clock() + PATIENCE_S
        for _ in range(UPDATES):
            tried_before = self._tried_regions(until)
            self._ask("update_schemes_tried_regions", until)
            found = tuple(self._scheme_regions(index) for index in range(count))
            if any(found) or self._tried_regions(until) == tried_before:
                return found
        return found

    def _tried_regions(self, until: float) -> int:
        """Return how many touched regions the kernel has met since the start."""
        self._ask("update_schemes_stats", until)
        schemes = self._root / "0/contexts/0/schemes"
        return sum(read_whole(path) for path in schemes.glob("[0-9]*/stats/nr_tried"))

    def stop(self) -> None:
        """Watch nothing; gives DAMON back.  Leaves alone what is not this agent's."""
        if not self._owned.exists():
            return
        if self._is_owned():
            if self._read("0/state").strip() == "on":
                self._write("0/state", "off")
            self._write("nr_kdamonds", 0)
        self._owned.unlink(missing_ok=True)

    def _probe(self) -> None:
        if not self._root.is_dir():
            raise UnsupportedHostError(
                "the kernel has no DAMON", hint="boot a kernel with CONFIG_DAMON_SYSFS and CONFIG_DAMON_VADDR"
            )
        if not os.access(self._root / "nr_kdamonds", os.W_OK):
            raise UnsupportedHostError("DAMON cannot be configured", hint="run as root")
        try:
            # A kdamond of an agent that was killed goes on: it is taken over.
            self.stop()
        except DamonHeldError:
            # It is the killed agent's, and it worked: once it answers, ``start`` sets it up anew.
            LOG.warning("%s", STUCK)
            return
        if (state := foreign_user(self._sysfs, self._owned, self._proc)) is not None:
            raise UnsupportedHostError(
                f"DAMON is in use by somebody else ({state})",
                hint=f"stop its owner, then: echo 0 > {self._root}/nr_kdamonds",
            )
        self._create_context(())
        known = self._read("0/contexts/0/avail_operations").split()
        self._write("nr_kdamonds", 0)
        self._owned.unlink()
        if "fvaddr" not in known:
            raise UnsupportedHostError(
                f"DAMON cannot watch processes (only {' '.join(known)})",
                hint="boot a kernel with CONFIG_DAMON_VADDR",
            )

    def _is_owned(self) -> bool:
        return bool(int(self._read("nr_kdamonds"))) and is_marked(self._root, self._owned, self._proc)

    def _note(self, pid: str, settings: Sequence[tuple[str, object]]) -> None:
        reported = [f"{path}={value}" for path, value in settings]
        self._owned.parent.mkdir(parents=True, exist_ok=True)
        begun = begun_at(pid, self._proc)
        self._owned.write_text("\n".join([f"{pid} {begun}".strip(), *reported]) + "\n")

    def _create_context(self, settings: Sequence[tuple[str, object]]) -> None:
        # Before there is anything: an agent may be killed at any moment, and nobody else would clean up.
        self._note("", settings)
        self._write("nr_kdamonds", 1)
        self._write("0/contexts/nr_contexts", 1)

    def _scheme_regions(self, index: int) -> tuple[Region, ...]:
        root = self._root / f"0/contexts/0/schemes/{index}/tried_regions"
        return tuple(_read_region(path) for path in root.glob("[0-9]*"))

    def _read(self, path: str) -> str:
        return read_text(self._root / path, SMALL_BYTES)

    def _ask(self, question: str, until: float) -> None:
        """Have the kdamond bring something up to date; a process may have each question wait."""
        self._beat()
        left_s = until - self._clock()
        if left_s <= 0:
            raise DamonHeldError
        self._write("0/state", question, max(left_s, LEAST_S))

    def _write(self, path: str, value: object, patience_s: float = PATIENCE_S) -> None:
        try:
            apart.write(self._root / path, str(value), patience_s=patience_s)
        except HeldError as err:
            raise DamonHeldError from err


def _read_region(path: Path) -> Region:
    return Region(*(read_whole(path / name) for name in ("start", "end", "nr_accesses")))


def _settings(
    targets: Sequence[tuple[int, Sequence[tuple[int, int]]]], sample_us: int, aggregation_us: int
) -> list[tuple[str, object]]:
    """Return the files under a context and what to write, in order."""
    attributes: Mapping[str, object] = {
        "operations": "fvaddr",
        "monitoring_attrs/intervals/sample_us": sample_us,
        "monitoring_attrs/intervals/aggr_us": aggregation_us,
        # Maximum first: the kernel refuses a minimum above it.
        "monitoring_attrs/nr_regions/max": MAX_REGIONS * len(targets),
        "monitoring_attrs/nr_regions/min": MIN_REGIONS * len(targets),
        "targets/nr_targets": len(targets),
        "schemes/nr_schemes": len(targets),
    }
    settings = list(attributes.items())
    for index, (pid, ranges) in enumerate(targets):
        settings += _target(f"targets/{index}", pid, ranges) + _scheme(f"schemes/{index}", index)
    return settings


def _target(root: str, pid: int, ranges: Sequence[tuple[int, int]]) -> list[tuple[str, object]]:
    settings: list[tuple[str, object]] = [
        (f"{root}/pid_target", pid),
        (f"{root}/regions/nr_regions", len(ranges)),
    ]
    for index, (start, end) in enumerate(sorted(ranges)):
        settings += [(f"{root}/regions/{index}/start", start), (f"{root}/regions/{index}/end", end)]
    return settings


def _scheme(root: str, target_index: int) -> list[tuple[str, object]]:
    return [
        (f"{root}/action", "stat"),
        (f"{root}/access_pattern/sz/max", UNLIMITED),
        (f"{root}/access_pattern/nr_accesses/min", 1),
        (f"{root}/access_pattern/nr_accesses/max", 2**31 - 1),
        (f"{root}/access_pattern/age/max", 2**31 - 1),
        (f"{root}/filters/nr_filters", 1),
        (f"{root}/filters/0/type", "target"),
        # A filter takes out what "matches": all that is not this target.
        (f"{root}/filters/0/matching", "N"),
        (f"{root}/filters/0/damon_target_idx", target_index),
    ]
