"""How much may processes that block their readers cost together (held.py)?  In memory, and in time.

1. A step that was given up takes memory until it ends: one that waits in a thread at most STEP_BYTES, with
   another one that closes its descriptor; one that a process makes (apart.py) at most PROCESS_BYTES; a
   process that counts (counting.py), which is to end even then, at most COUNTING_BYTES.  Each process that
   blocks them may keep all three.  docs/design/hostile-guests.md has what was measured.
2. A process that libvirt started has an account of its own.  So there are no more of these than guests.
3. All others are bounded by user (users.py): ``STEPS``.
4. Waits of all processes together may take COMMON_S in LONGEST_BACKOFF_S.  Beyond that, a process that waits
   and has had half an equal share of them, or more, is left alone.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

LONGEST_BACKOFF_S = 256.0
SHORT_WAITS_S = 10.0
"""Steps that end before they are looked at may have slept so long in LONGEST_BACKOFF_S, for each process."""
COMMON_S = 2 * SHORT_WAITS_S
STEP_BYTES, PROCESS_BYTES, COUNTING_BYTES = 512 << 10, 512 << 10, 512 << 10


@dataclass(frozen=True)
class UserQuota:
    """How many of ``most`` processes that block steps one user may have.

    A user with n of them may have one more while there is room for more than ``share`` * n.  So the first one
    of a user is refused last, and many users are needed to fill the room.  ``reserved`` is for processes that
    were read before, of users none of whose processes block anybody.
    """

    most: int
    share: int
    reserved: int

    def is_full(self, of_user: int, of_all: int, *, is_known: bool) -> bool:
        """Tell whether a user that has ``of_user`` of ``of_all`` may have no more."""
        reserved = 0 if is_known and not of_user else self.reserved
        return self.most - reserved - of_all <= self.share * of_user

    @property
    def most_of_one(self) -> int:
        """Return how many a user may have while nobody else has any."""
        return next(n for n in range(self.most + 1) if self.is_full(n, n, is_known=True))


STEPS = UserQuota(most=64, share=7, reserved=4)


@dataclass
class LeakyBucket:
    """The sum of waits as of ``noted_s``, of which ``most_s`` leak away in LONGEST_BACKOFF_S."""

    most_s: float
    noted_s: float
    sum_s: float = 0.0

    def add(self, now_s: float, seconds: float) -> bool:
        """Note a wait that ends now; tell whether they are too many."""
        forgotten = self.most_s * (now_s - self.noted_s) / LONGEST_BACKOFF_S
        self.sum_s, self.noted_s = max(self.sum_s - forgotten, 0.0) + seconds, now_s
        return self.sum_s >= self.most_s


@dataclass
class CommonWaits:
    """Waits of all processes together, and who caused them since ``began_s``."""

    began_s: float
    _all: LeakyBucket = field(init=False)
    _by_pid: "Counter[int]" = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._all = LeakyBucket(COMMON_S, self.began_s)

    def add(self, pid: int, now_s: float, seconds: float) -> bool:
        """Note a wait; tell whether they are too many, and this process has half an equal share or more."""
        if now_s >= self.began_s + LONGEST_BACKOFF_S:
            self.began_s, self._by_pid = now_s, Counter()
        self._by_pid[pid] += round(seconds * 1e9)
        is_too_much = self._all.add(now_s, seconds)
        # No more than that is kept: else those who are left alone for it would pay for it for long.
        self._all.sum_s = min(self._all.sum_s, COMMON_S)
        return is_too_much and 2 * self._by_pid[pid] * len(self._by_pid) >= self._by_pid.total()


@dataclass
class Blocking:
    """What is remembered of a process that has blocked steps; ``waits``: the recent ones that were seen.

    ``stuck``: of each step that was given up, how to ask whether it is over.
    """

    user: int
    waits: LeakyBucket
    stuck: list[Callable[[], bool]] = field(default_factory=list)
    times: int = 0
    until_s: float = 0.0

    def stuck_count(self) -> int:
        """Return how many steps for it still wait."""
        self.stuck = [has_ended for has_ended in self.stuck if not has_ended()]
        return len(self.stuck)

    def leave_alone(self, now_s: float) -> None:
        """Begin nothing for it, for longer each time."""
        self.waits.sum_s, self.times = 0.0, self.times + 1
        self.until_s = now_s + min(2.0 ** (self.times - 1), LONGEST_BACKOFF_S)
