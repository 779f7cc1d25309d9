"""What is on the host now?  Looked up as seldom as will do: nodes hardly change, guests come in seconds.

Free memory is read anew for each window, for a plan must not rely on room that is gone.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from vmplace.agent.discovered import Discovered
from vmplace.topology.host import HostTopology

HOST_S = 60.0
GUESTS_S = 3.0
LOOK_SHARE = 0.2
"""Of the time, what looks at guests may take: hundreds of guests, or processes that somebody made dear to
read, are looked at more seldom."""


class Discovery:
    """Remembers the host and its guests for a while; ``look_again`` makes it forget the guests."""

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
        self._host_until = self._guests_until = 0.0
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
            self._guests_until = ended + max(GUESTS_S, (ended - began) / LOOK_SHARE)
        return self._found

    def look_again(self, *, asking: bool = False) -> None:
        """Look the guests up at the next call, as something changed; also ask libvirt if ``asking``."""
        self._guests_until = 0.0
        if asking:
            self._ask_again()

    def has_news(self) -> bool:
        """Tell whether others have answered what the last ``guests`` did not wait for."""
        return self._has_news()
