"""What went wrong, or is worth knowing, in one window of the agent?"""

import logging

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
