"""Orders of root, and the inbox in which the loop finds them."""

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from vmplace.agent.news import News
from vmplace.agent.wakeup import Wakeup
from vmplace.errors import VmplaceError
from vmplace.policy.fit import Flavour

Verb = Literal["apply", "undo", "pause", "resume", "make-room"]
Answer = tuple[str, ...]
MOST_NEWS = 1024


class UnknownGuestError(VmplaceError):
    """No guest of that name; callers answer with an exit code of its own."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"no guest {name!r}", hint=f"known guests: {', '.join(known) or 'none'}")


@dataclass(frozen=True)
class Order:
    """One order; ``guest`` None = all.  ``answer`` is set by the loop: what was done, in words.

    ``flavour``: what "make-room" makes room for.
    """

    verb: Verb
    guest: str | None = None
    flavour: Flavour | None = None
    answer: "Future[Answer]" = field(default_factory=Future)


class Inbox:
    """Orders from other threads; a deque's ends are safe without a lock."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._orders: deque[Order] = deque()
        self._news: deque[News] = deque(maxlen=MOST_NEWS)

    def submit(self, order: Order) -> None:
        """Hand an order to the loop, which is woken for it."""
        self._orders.append(order)
        self._wakeup.wake()

    def take(self) -> Order | None:
        """Return the oldest order, or None."""
        return self._orders.popleft() if self._orders else None

    def tell(self, news: News) -> None:
        """Hand news to the loop, which is woken for it."""
        self._news.append(news)
        self._wakeup.wake()

    def take_news(self) -> tuple[News, ...]:
        """Return what was reported since the last time."""
        return tuple(self._news.popleft() for _ in range(len(self._news)))

    @property
    def news(self) -> tuple[News, ...]:
        """Return what was reported since ``take_news``, and leave it there."""
        # A copy is made in one piece; another thread may add to what is gone through.
        return tuple(self._news.copy())

    @property
    def has_news(self) -> bool:
        """Return whether something was reported."""
        return bool(self._news)

    @property
    def waiting(self) -> bool:
        """Return whether an order waits."""
        return bool(self._orders)
