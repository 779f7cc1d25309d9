"""Does numad run here, and whom may it move?

numad(8) moves every process that is large and busy, guests among them.  If numad and vmplace place the same
guest, its memory moves to and fro.  numad's command line says which processes it leaves alone; later orders
(``numad -x PID``) are in its log.

Source: numad.c 0.5: MEMORY_THRESHOLD, the options, the words of the log.
Limits: a log that was rotated or cannot be read tells nothing; then its command line counts.
"""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from vmplace import held
from vmplace.errors import OutsideError, VmplaceError
from vmplace.outside import lines, read_text, read_whole
from vmplace.topology.guest import GuestTopology
from vmplace.topology.procfs import PROC, iter_pids, read_comm, read_command_line
from vmplace.users import is_nobody_but

PID_FILE, LOG_FILE = Path("run/numad.pid"), Path("var/log/numad.log")
LEAST_BYTES = 300 * 10**6
"""numad ignores processes with less."""
LOOK_S = 30.0
MOST_LOG_BYTES = 4 << 20
WORD = re.compile(
    r"(?:(?P<verb>Adding|Removing) PID (?P<pid>[0-9]{1,7}) (?:to|from) (?P<list>exclusion|inclusion|explicit)"
    r"|(?P<all>Scanning all processes)|(?P<few>Scanning only explicit))"
)


@dataclass(frozen=True)
class Numad:
    """A numad at work; ``scans_all`` False: it looks at ``included`` alone.  Pids, as numad has them."""

    pid: int
    scans_all: bool = True
    included: frozenset[int] = frozenset()
    excluded: frozenset[int] = frozenset()

    def may_move(self, guest: GuestTopology) -> bool:
        """Tell whether it may move this guest once that is busy."""
        if guest.pid in self.excluded:
            return False
        is_large = sum(ram.size_bytes for ram in guest.ram) >= LEAST_BYTES
        return guest.pid in self.included or (self.scans_all and is_large)

    def after_line(self, what: str) -> "Numad":
        """Return what holds once it said ``what`` in its log."""
        found = WORD.search(what)
        if found is None:
            return self
        if found["pid"] is None:
            return Numad(self.pid, found["all"] is not None, self.included, self.excluded)
        one = frozenset({int(found["pid"])})
        included, excluded = self.included - one, self.excluded - one
        if found["list"] == "inclusion":
            included |= one
        elif found["list"] == "exclusion":
            excluded |= one
        return Numad(self.pid, self.scans_all, included, excluded)


def find_numad(root: Path = Path("/"), proc: Path = PROC) -> Numad | None:
    """Return the numad that runs here, or None."""
    pid = _pid(root, proc)
    if pid is None:
        return None
    try:
        found = parse_command_line(pid, read_command_line(pid, proc))
    except VmplaceError:
        return None
    try:
        log = read_text(root / LOG_FILE, MOST_LOG_BYTES)
    except (OSError, OutsideError):
        return found
    return parse_log(found, log)


def parse_command_line(pid: int, words: Iterable[str]) -> Numad:
    """Return what numad was started with; an option's value may be a word of its own."""
    scans_all = True
    included: set[int] = set()
    excluded: set[int] = set()
    for option, value in re.findall(r"-([Spx])\s*([0-9]{1,7})(?=\s|$)", " ".join(words)):
        if option == "S":
            scans_all = value != "0"
        else:
            (included if option == "p" else excluded).add(int(value))
    return Numad(pid, scans_all, frozenset(included), frozenset(excluded))


def parse_log(numad: Numad, text: str) -> Numad:
    """Return what holds by what it was ordered since this numad began; without its beginning, as given."""
    _, begin, since = text.rpartition(f" PID {numad.pid}\n")
    if not begin:
        return numad
    for line in lines(since):
        numad = numad.after_line(line)
    return numad


def numad_note(numad: Numad, guests: Iterable[GuestTopology]) -> str | None:
    """Return what a person should know, with the cure; None if it leaves all these guests alone."""
    moved = [guest for guest in guests if numad.may_move(guest)]
    if not moved:
        return None
    names = ", ".join(guest.name for guest in moved)
    keep_off = "; ".join(f"numad -x {guest.pid}" for guest in moved)
    return (
        f"numad (pid {numad.pid}) may move {names}, too: keep it off (`{keep_off}`), or stop it "
        "(`systemctl disable --now numad`)"
    )


def names_guest(note: str, guest: str) -> bool:
    """Tell whether a note is that of ``numad_note``, and on this guest, too."""
    named = re.match(r"numad \(pid \d+\) may move (.*), too: keep it off ", note, re.DOTALL)
    return named is not None and guest in named[1].split(", ")


class NumadWatch:
    """Looks for numad now and then."""

    def __init__(
        self,
        find: Callable[[], Numad | None] = find_numad,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find, self._clock = find, clock
        self._numad: Numad | None = None
        self._until_s = 0.0

    def notes(self, guests: Iterable[GuestTopology]) -> tuple[str, ...]:
        """Return what a person should know of numad and these guests."""
        if self._clock() >= self._until_s:
            self._numad, self._until_s = self._find(), self._clock() + LOOK_S
        reported = numad_note(self._numad, guests) if self._numad else None
        return (reported,) if reported else ()


def _pid(root: Path, proc: Path) -> int | None:
    try:
        reported = read_whole(root / PID_FILE)
    except (OSError, ValueError):
        reported = 0
    others = (pid for pid in iter_pids(proc) if pid != reported)
    return next((pid for pid in (reported, *others) if pid and _is_numad(pid, proc)), None)


def _is_numad(pid: int, proc: Path) -> bool:
    """Tell whether a process is numad, and root's: anybody can take its name, also with su(1) or sudo(8)."""
    try:
        if read_comm(pid, proc).strip() != "numad":
            return False
        return held.bounded(pid, lambda: _runs_as_root(proc / str(pid)))
    except (VmplaceError, OSError):
        return False


def _runs_as_root(path: Path) -> bool:
    if not is_nobody_but(0, path):
        return False
    return (path / "exe").readlink().name.removesuffix(" (deleted)") == "numad"
