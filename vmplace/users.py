"""Which user does a user id belong to?  Limits are by user, and one user may have many ids.

1. /etc/subuid (subuid(5)) gives users ranges of ids that they may run as (newuidmap(1)).  Such an id belongs
   to the range's owner.  If several ranges have an id, the smallest range counts.
2. An owner whom /etc/passwd does not list is known by the first id of its first range.  So is root: root's
   ranges are for containers of others, which count as one user together.

Limits: ranges that nsswitch.conf(5) keeps elsewhere ("subid: sss") are not known, nor are those behind the
first MOST_RANGES: each id there counts as a user.  A user whom /etc/passwd does not list, as with LDAP,
counts as two: by the own id, and by the subordinate ones.
"""

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from vmplace.errors import OutsideError
from vmplace.outside import lines, read_text, whole

LOG = logging.getLogger(__name__)
MOST_BYTES = 1 << 20
MOST_RANGES = 4096
MOST_UID = (1 << 32) - 1
RENEW_S = 60.0
UIDS = re.compile(r"^Uid:(.*)$", re.MULTILINE)
Range = tuple[int, int, int]
"""How many ids, the first of them, and the owner's."""


class Users:
    """Owners of subordinate ids; the files are read again every RENEW_S.  For all threads."""

    def __init__(self, etc: Path = Path("/etc"), clock: Callable[[], float] = time.monotonic) -> None:
        self._etc, self._clock = etc, clock
        self._ranges: list[Range] = []
        self._owners: dict[int, int] = {}
        self._due = float("-inf")

    def owner_of(self, uid: int) -> int:
        """Return the id of the user whom ``uid`` belongs to: usually itself."""
        if self._clock() >= self._due:
            self._due, self._ranges, self._owners = self._clock() + RENEW_S, _read_ranges(self._etc), {}
        owners = self._owners
        if uid not in owners:
            holding = (owner for count, first, owner in self._ranges if first <= uid < first + count)
            owners[uid] = next(holding, uid)
        return owners[uid]


def acts_for(path: Path) -> int:
    """Return whom the process of /proc/PID acts for, its effective id; waits for nobody.  Raises OSError."""
    return path.stat().st_uid


def is_nobody_but(uid: int, path: Path) -> bool:
    """Tell whether the process of /proc/PID is that user's by its real, effective, saved, and file system id.

    Whoever starts a program that acts as root by itself, as su(1), stays its real user.  Raises OSError.
    Of others it reads nothing, as they could hold that up (held.py).
    """
    if acts_for(path) != uid:
        return False
    said = UIDS.search(read_text(path / "status", MOST_BYTES))
    return said is not None and said[1].split() == [str(uid)] * 4


def _read_ranges(etc: Path) -> list[Range]:
    """Return the ranges, the smallest first."""
    ids: dict[str, int] = {}
    for name, uid in _iter_numbers(etc / "passwd", fields=[2]):
        ids.setdefault(name, uid)
    owners: dict[str, int] = {}
    ranges: list[Range] = []
    for name, first, count in islice(_iter_numbers(etc / "subuid", fields=[1, 2]), MOST_RANGES):
        owners.setdefault(name, ids.get(name) or _uid_said(name) or first)
        ranges.append((count, first, owners[name]))
    return sorted(ranges)


def _uid_said(name: str) -> int:
    """Return the id that an owner is given by in place of a name, or 0."""
    with contextlib.suppress(OutsideError):
        return whole(name, most=MOST_UID, what="id")
    return 0


def _iter_numbers(path: Path, fields: list[int]) -> Iterator[tuple[Any, ...]]:
    """Yield the name in each line of a file like /etc/passwd, and ids in it; of an absent file nothing."""
    try:
        text = read_text(path, MOST_BYTES)
    except (OSError, OutsideError) as err:
        LOG.debug("%s is not read: %s", path, err)
        return
    for line in lines(text):
        name, *rest = line.split(":")
        # Lines may be comments, of NIS ("+::::::"), or wrong: these are skipped.
        with contextlib.suppress(OutsideError, IndexError):
            yield name, *(whole(rest[field - 1].strip(), most=MOST_UID, what="id") for field in fields)


owner_of = Users().owner_of
"""Of this host."""
