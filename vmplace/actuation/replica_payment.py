"""What KVM has copied of one guest's pages, by its own count, and what of that is paid for.

Which copies of those that are asked for are new, the agent does not know: KVM tells how many it dropped, not
which.  So what is paid for is what KVM counts as copied since the last look.
"""

from collections.abc import Mapping

from vmplace.actuation.replica_patience import LOST, MADE
from vmplace.topology.guest import PAGE_BYTES

COPIES = "replica_copies"
"""KVM's statistic of pages that are copies now."""


class Payment:
    """What was counted of one guest at the last look, and what was paid for beyond that.

    ``copies``: pages that were copies then.
    """

    def __init__(self) -> None:
        self._made: int | None = None
        self.copies = 0
        self._ahead_bytes = 0

    def due_bytes(self, statistics: Mapping[str, int], each_bytes: float) -> int:
        """Return what is to be paid since the last look, the first time nothing.

        ``each_bytes``: what all copies of a page take, on average.  Pages that got further copies KVM counts
        as copies alone.
        """
        before, self._made = self._made, statistics[MADE]
        more, self.copies = statistics[COPIES] - self.copies, statistics[COPIES]
        ahead, self._ahead_bytes = self._ahead_bytes, 0
        if before is None:
            return 0
        return max(round((self._made - before) * each_bytes), more * PAGE_BYTES, ahead) - ahead

    def pay_ahead(self, size_bytes: int) -> int:
        """Return what may have been copied, as nobody can count it now: later, no more is paid for that."""
        self._ahead_bytes += size_bytes
        return size_bytes


class LastCount:
    """What KVM counted of one guest at the last look that it answered: of copies, and of losses."""

    def __init__(self) -> None:
        self.present_bytes = self.lost_bytes = 0

    def note(self, statistics: Mapping[str, int]) -> None:
        """Note what KVM counts now."""
        self.present_bytes = statistics[COPIES] * PAGE_BYTES
        self.lost_bytes = statistics.get(LOST, 0) * PAGE_BYTES

    def note_end(self) -> None:
        """Note that the VM is gone, and its copies with it."""
        self.present_bytes = 0
