"""What went wrong, or is worth knowing, in one window of the agent?"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from vmplace.errors import VmplaceError

LOG = logging.getLogger(__name__)


class Notes:
    """The notes of the present window; what the last one had, too, is no news to the log."""

    def __init__(self) -> None:
        self._before: tuple[str, ...] = ()
        self.now: tuple[str, ...] = ()

    def renew(self, *notes: str) -> None:
        """Begin a window, with ``notes``."""
        self._before, self.now = self.now, notes

    def add(self, *notes: str) -> None:
        """Keep notes."""
        self.now = (*self.now, *notes)

    def complain(self, note: str, err: BaseException | None = None) -> None:
        """Keep a note on what went wrong, and log it."""
        if note not in self._before:
            LOG.error("%s", note, exc_info=err)
        self.add(note)

    @contextmanager
    def fenced(self, what: str) -> Iterator[None]:
        """Make an exception inside a note that begins with ``what``: the loop goes on without it."""
        try:
            yield
        except Exception as err:
            self.complain(f"{what}: {described(err)}", unexpected(err))


def described(err: Exception) -> str:
    """Return an exception in words, with its cure if it has one."""
    hint = getattr(err, "hint", None)
    reported = str(err) if isinstance(err, (VmplaceError, OSError)) else f"{type(err).__name__}: {err}"
    return f"{reported} ({hint})" if hint else reported


def unexpected(err: Exception) -> Exception | None:
    """Return ``err`` if its traceback belongs in the log: it is no failure that is expected."""
    return None if isinstance(err, (VmplaceError, OSError)) else err
