"""Host and guests, looked up now and then: nodes hardly ever change, guests do so within seconds.

Free memory is read for each window, as a plan must not rely on room that is gone.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from vmplace.agent.discovered import Discovered
from vmplace.topology.host import HostTopology

HOST_S = 60.0
GUESTS_S = 3.0
LOOK_SHARE = 0.2
"""The share of time that looks for guests may take.  Hundreds of guests, or processes that take long to read,
are looked at less often."""
SHORT_S = 0.05
"""After a look that took no longer, the next one may follow at once if a guest ended."""


class CachedDiscovery:
    """Remembers the host and its guests for a while, less long if ``look_again`` is called."""

    def __init__(  # noqa: PLR0913 - seams but for the first three
        self,
        read_host: Callable[[], HostTopology],
        read_free_bytes: Callable[[int], int],
        find: Callable[[], Discovered],
        clock: Callable[[], float] = time.monotonic,
        ask_again: Callable[[], None] = lambda: None,
        has_news: Callable[[], bool] = lambda: False,
    ) -> None:
        """``ask_again`` makes ``find`` forget what others had answered.

        ``has_news`` tells whether they have answered since, later than ``find`` waits for them.
        """
        self._read_host = read_host
        self._read_free_bytes = read_free_bytes
        self._find = find
        self._clock = clock
        self._ask_again = ask_again
        self._has_news = has_news
        self._host: HostTopology | None = None
        self._host_until = self._guests_until = self._soonest = 0.0
        self._found = Discovered(())

    def host(self) -> HostTopology:
        """Return the host with the free memory of this moment."""
        if self._host is None or self._clock() >= self._host_until:
            self._host = self._read_host()
            self._host_until = self._clock() + HOST_S
            return self._host
        try:
            nodes = tuple(replace(n, free_bytes=self._read_free_bytes(n.nid)) for n in self._host.nodes)
        except OSError:
            # A node went away.
            self._host = None
            return self.host()
        return replace(self._host, nodes=nodes)

    def guests(self) -> Discovered:
        """Return the guests as they were ``GUESTS_S`` ago at most, or longer where a look takes long.

        What others have answered since is taken up at once: without it a guest may have to be left alone.
        """
        began = self._clock()
        if began >= self._guests_until or self._has_news():
            self._found = self._find()
            ended = self._clock()
            took_s = ended - began
            self._soonest = ended + (took_s / LOOK_SHARE if took_s > SHORT_S else 0.0)
            self._guests_until = max(ended + GUESTS_S, self._soonest)
        return self._found

    def look_again(self, *, asking: bool = False) -> None:
        """Look the guests up as soon as LOOK_SHARE allows, as something changed.

        At the next call, and ask libvirt too, if ``asking``: libvirt or an order reported it.  What
        guests do by themselves, such as to end, anybody's can do all the time.
        """
        self._guests_until = 0.0 if asking else min(self._guests_until, self._soonest)
        if asking:
            self._ask_again()

    def has_news(self) -> bool:
        """Tell whether others have answered what the last ``guests`` did not wait for."""
        return self._has_news()
