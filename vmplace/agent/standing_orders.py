"""What root ordered until `vmplace resume`: that all guests are paused, and which ones are held by name.

A file in the state directory keeps it for the next agent, so that no crash, upgrade or reboot ends it.
1. An order is on disk before it is answered.  Where it cannot be written it holds for this agent alone, and
   the answer and a note say so.
2. A guest is known by its process (boot, pid, start time): another of its name is not held.
3. A file that is damaged may have held anything.  So all guests are paused, which does no harm, and a note
   names the cure.  Where there is no file, nothing was ordered.
"""

import logging
from pathlib import Path
from typing import Annotated

import msgspec

from vmplace.actuation.identity import PROC, GuestIdentity, has_ended, read_boot_id
from vmplace.errors import OutsideError
from vmplace.outside import MOST_BITS, parse_json, read_bytes
from vmplace.topology.guest import GuestTopology, Identity
from vmplace.whole_file import replace_file

LOG = logging.getLogger(__name__)
MOST_BYTES = 4 << 20
MOST_HELD = 1 << 16
"""Processes; so many fit in MOST_BYTES."""
_Process = tuple[
    Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)], Annotated[int, msgspec.Meta(ge=0, le=MOST_BITS)]
]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``held``: guests by pid and start time, of the boot ``boot_id``."""

    version: Annotated[int, msgspec.Meta(ge=1, le=1)]
    paused: bool
    boot_id: Annotated[str, msgspec.Meta(max_length=64)]
    held: Annotated[tuple[_Process, ...], msgspec.Meta(max_length=MOST_HELD)]


class StandingOrders:
    """``paused``, and who is held; without a ``path`` they end with the agent.

    ``problem``: why the next agent would not know of them, None if it will.
    """

    def __init__(self, path: Path | None = None, proc: Path = PROC) -> None:
        """Read what an earlier agent kept; a file that cannot be read pauses all guests."""
        self._path, self._proc = path, proc
        self.paused = False
        self.problem: str | None = None
        self._damage: str | None = None
        self._held: frozenset[Identity] = frozenset()
        if path is not None:
            self._take_up(path)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a person should know."""
        return tuple(filter(None, (self._damage, self.problem)))

    @property
    def held(self) -> frozenset[Identity]:
        """Return who is to be left alone, by pid and start time."""
        return self._held

    def holds(self, guest: GuestTopology) -> bool:
        """Tell whether this guest is to be left alone."""
        return guest.identity in self._held

    def hold_all(self, *, held: bool) -> None:
        """Pause all guests, or let go of all of them, whether they were held by name or not."""
        self.paused, self._damage = held, None
        self._keep(self._held if held else frozenset())

    def hold(self, guest: GuestTopology, *, held: bool) -> None:
        """Hold one guest, or let go of it."""
        self._keep(self._held | {guest.identity} if held else self._held - {guest.identity})

    def _take_up(self, path: Path) -> None:
        try:
            read = parse_json(read_bytes(path, MOST_BYTES), _File)
        except FileNotFoundError:
            return
        except (OSError, OutsideError) as err:
            self.paused = True
            self._damage = (
                f"all guests are paused: {path}, which tells what was paused, cannot be read: {err} "
                "(`vmplace resume` goes on, and writes it anew)"
            )
            LOG.error("%s", self._damage)
            return
        # A reboot ended the guests of another boot, and others may have their pids.
        is_same_boot = read.boot_id == read_boot_id(self._proc)
        self.paused, self._held = read.paused, frozenset(read.held if is_same_boot else ())
        if self.paused or self._held:
            LOG.warning('paused=%d held=%d reason="until vmplace resume"', self.paused, len(self._held))

    def _keep(self, held: frozenset[Identity]) -> None:
        """Hold these, and write that down; guests that ended are forgotten."""
        self._held = held
        if self._path is None:
            return
        try:
            boot_id = read_boot_id(self._proc)
            self._held = frozenset(one for one in held if not self._has_ended(one, boot_id))
            file = _File(1, self.paused, boot_id, tuple(sorted(self._held)))
            replace_file(self._path, msgspec.json.encode(file) + b"\n", mode=0o600, lasting=True)
        except OSError as err:
            self.problem = (
                f"the next agent will not know what is paused and held now: {self._path} cannot be written: "
                f"{err.strerror}"
            )
            LOG.error("%s", self.problem)
        else:
            self.problem = None

    def _has_ended(self, process: Identity, boot_id: str) -> bool:
        return has_ended(GuestIdentity("held guest", *process, boot_id), self._proc)
