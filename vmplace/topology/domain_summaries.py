"""Write placement summaries into domains' metadata, by processes of their own, as libvirt may hang.

1. Texts go in parts of PART_BYTES, a process for each, one after the other: a worker reads no more than
   16 MiB, and has 30 s.
2. If libvirt does not answer for a domain, as its QEMU hangs, the others are written all the same
   (libvirt_worker.py).  That domain is left out once, then twice as often each time it hangs again, and then
   comes last.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vmplace.errors import UnsupportedHostError
from vmplace.outside import printable
from vmplace.topology.domain_policy import PLACEMENT
from vmplace.topology.guests_libvirt import CURE, SYSTEM_URI, Question

PART_BYTES = 4 << 20
LONGEST_WAIT = 16
"""Times that a domain is left out at the most."""
MOST_NAMED = 3


@dataclass(frozen=True)
class _Stuck:
    """A domain that hung: ``wait`` times it was to be left out, ``left`` times are left of these."""

    wait: int
    left: int


class DomainSummaries:
    """Writes the live metadata of domains, all of a time at once."""

    def __init__(self, uri: str = SYSTEM_URI) -> None:
        self._uri = uri
        self._question: Question | None = None
        self._parts: list[dict[str, str]] = []
        self._asked: dict[str, str] = {}
        self._owed: dict[str, str] = {}
        self._stuck: dict[str, _Stuck] = {}

    def is_busy(self) -> bool:
        """Tell whether the last texts are still being written; raises VmplaceError if they could not be."""
        try:
            self.finish(0.0)
        except TimeoutError:
            return True
        return False

    def write(self, texts: Mapping[str, str]) -> None:
        """Begin to write texts by UUID; an empty one is taken out.  Raises UnsupportedHostError."""
        wanted = self._owed | dict(texts)
        # To be taken out is never left out: there may be no other time.
        self._owed = {uuid: text for uuid, text in wanted.items() if text and self._waits(uuid)}
        order = sorted(wanted, key=self._is_last)
        self._parts = list(parts_of({uuid: wanted[uuid] for uuid in order if uuid not in self._owed}))
        self._ask_next()

    def finish(self, patience_s: float) -> None:
        """Wait until all is written.

        Raises TimeoutError while it is not, VmplaceError if it cannot be.
        """
        until = time.monotonic() + patience_s
        while self._question is not None:
            try:
                answer = self._question.result(max(until - time.monotonic(), 0.0))
            except TimeoutError:
                raise
            except BaseException:
                self._question, self._parts = None, []
                raise
            self._question = None
            self._note(frozenset(answer.stuck), frozenset(answer.unreached))
            if unreached := {uuid: self._asked[uuid] for uuid in answer.unreached if uuid in self._asked}:
                # By a connection of its own, in which nothing hangs yet.
                self._parts.insert(0, unreached)
            self._ask_next()
            problems = [*self._stuck_noted(answer.stuck), *filter(None, [printable(answer.text, 300)])]
            if problems:
                raise UnsupportedHostError(f"placement summaries: {'; '.join(problems)}", hint=CURE)

    def close(self) -> None:
        """Give up what is being written."""
        self._parts = []
        if self._question is not None:
            self._question.kill()
            self._question = None

    def _ask_next(self) -> None:
        if not self._parts:
            return
        self._asked = self._parts.pop(0)
        elements = [
            (uuid, f"<placement xmlns='{PLACEMENT}'>{text}</placement>" if text else "")
            for uuid, text in self._asked.items()
        ]
        self._question = Question(self._uri, "summaries", PLACEMENT, text=json.dumps(elements))

    def _waits(self, uuid: str) -> bool:
        """Tell whether a domain is to be left out this time, which counts."""
        stuck = self._stuck.get(uuid)
        if stuck is None or not stuck.left:
            return False
        self._stuck[uuid] = _Stuck(stuck.wait, stuck.left - 1)
        return True

    def _is_last(self, uuid: str) -> bool:
        return uuid in self._stuck

    def _note(self, stuck: frozenset[str], unreached: frozenset[str]) -> None:
        for uuid, text in self._asked.items():
            if uuid in stuck:
                before = self._stuck.get(uuid, _Stuck(0, 0)).wait
                wait = min(2 * before or 1, LONGEST_WAIT)
                self._stuck[uuid] = _Stuck(wait, wait)
                self._owed[uuid] = text
            elif uuid not in unreached:
                self._stuck.pop(uuid, None)

    def _stuck_noted(self, stuck: tuple[str, ...]) -> Iterator[str]:
        if stuck:
            named = ", ".join(printable(uuid) for uuid in stuck[:MOST_NAMED])
            more = f" and {len(stuck) - MOST_NAMED} more" if len(stuck) > MOST_NAMED else ""
            yield f"libvirt does not answer for domain {named}{more}, which is tried again later"


def parts_of(texts: Mapping[str, str], most: int = PART_BYTES) -> Iterator[dict[str, str]]:
    """Yield the texts in their order, in parts of at most so many bytes or of one text."""
    part: dict[str, str] = {}
    size = 0
    for uuid, text in texts.items():
        mine = len(text.encode()) + 200
        if part and size + mine > most:
            yield part
            part, size = {}, 0
        part[uuid] = text
        size += mine
    if part:
        yield part
