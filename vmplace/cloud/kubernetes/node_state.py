"""What watch and hooks report of this node's instances, and the file in which the agent reads it.

Several threads report; one writes the file (topology/stated_guests.py).  Without news the file stays as it
is, so the last report holds.  After a start, entries of an earlier process are kept for guests that still
run, until each watch had its first list.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from vmplace.cloud.kubernetes.vmis import MIGRATING_S, Vmi, stated
from vmplace.topology.stated_guests import StatedGuest, StatedGuests, boot_s, encoded
from vmplace.whole_file import replace_file

LOG = logging.getLogger(__name__)
Key = tuple[str, str]


@dataclass
class NodeState:
    """Instances by the watch that found them; ``news`` is set when something changed.

    ``watches``: whose lists it takes to know all instances.
    """

    watches: tuple[str, ...] = ()
    news: threading.Event = field(default_factory=threading.Event)
    _by_watch: dict[str, dict[Key, Vmi]] = field(default_factory=dict)
    _listed: set[str] = field(default_factory=set)
    _leaving: dict[Key, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def replace(self, watch: str, vmis: Iterable[Vmi]) -> None:
        """Let these be all that a watch knows."""
        with self._lock:
            self._by_watch[watch] = {vmi.key: vmi for vmi in vmis}
            self._listed.add(watch)
        self.news.set()

    def put(self, watch: str, vmi: Vmi) -> None:
        """Know an instance, or know better."""
        with self._lock:
            self._by_watch.setdefault(watch, {})[vmi.key] = vmi
        self.news.set()

    def drop(self, watch: str, vmi: Vmi) -> None:
        """Forget an instance that the watch no longer has: it is gone, or on another node."""
        with self._lock:
            self._by_watch.get(watch, {}).pop(vmi.key, None)
        self.news.set()

    def migrates(self, key: Key, *, is_over: bool = False) -> None:
        """Know from a hook that an instance leaves or arrives, or that this is over."""
        with self._lock:
            if is_over:
                self._leaving.pop(key, None)
            else:
                self._leaving[key] = boot_s() + MIGRATING_S
        self.news.set()

    @property
    def is_whole(self) -> bool:
        """Tell whether each watch had a list."""
        with self._lock:
            return self._listed.issuperset(self.watches)

    def stated(self, qemu: Mapping[str, tuple[int, int]]) -> tuple[StatedGuest, ...]:
        """Return what to tell the agent."""
        now_s = boot_s()
        with self._lock:
            self._leaving = {key: until for key, until in self._leaving.items() if until > now_s}
            known: dict[Key, Vmi] = {}
            for vmis in self._by_watch.values():
                known |= vmis
            return stated(known.values(), qemu, self._leaving, now_s)


class StatedFile:
    """Writes the file when it differs from what was written; trouble is logged once."""

    def __init__(
        self, path: Path, state: NodeState, find: Callable[[], Mapping[str, tuple[int, int]]]
    ) -> None:
        self._path, self._state, self._find = path, state, find
        self._before = StatedGuests(path, owner=os.geteuid())
        self._written: bytes | None = None
        self._problem = ""

    def run(self, stop: threading.Event, interval_s: float) -> None:
        """Write until stopped: at once on news, else every ``interval_s``, as guests come without any."""
        while not stop.is_set():
            self._state.news.wait(interval_s)
            self._state.news.clear()
            self.write()

    def write(self) -> None:
        """Write what is known now."""
        try:
            text = self._text()
            # systemd takes the agent's directory away when the agent is stopped.
            if text is not None and (text != self._written or not self._path.exists()):
                # Words of tenants, for root alone.
                replace_file(self._path, text, mode=0o600)
                self._written = text
            problem = ""
        except OSError as err:
            problem = (
                f"{self._path} cannot be written: {err.strerror} (is it the directory of the agent's socket?)"
            )
        if problem and problem != self._problem:
            LOG.error("%s", problem)
        self._problem = problem

    def _text(self) -> bytes | None:
        """Return what is to stand in the file, None if nothing is known to change it."""
        is_whole, qemu = self._state.is_whole, self._find()
        said = self._state.stated(qemu)
        if is_whole:
            return encoded(said)
        return encoded(_with_earlier(said, self._before.guests(), qemu.values())) if said else None


def _with_earlier(
    said: Iterable[StatedGuest], earlier: Iterable[StatedGuest], running: Iterable[tuple[int, int]]
) -> tuple[StatedGuest, ...]:
    """Return what is said, and of the other guests that still run what was said earlier."""
    alive = set(running)
    kept = {one.identity: one for one in earlier if one.identity in alive}
    whole = kept | {one.identity: one for one in said}
    return tuple(sorted(whole.values(), key=attrgetter("identity")))
