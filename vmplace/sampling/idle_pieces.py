"""Ask the idle bitmap of a guest's frames in pieces, and leave a guest alone whose frames take too long.

For each frame the kernel walks all mappings of the page's file at that place, whether they were touched or
not.  Anybody can map a file 65,530 times in each process (vm.max_map_count): then one frame takes a thousand
times as long as usual, and no signal ends the call.  So:

1. A call asks for PIECE pages at most.  The calls for a chunk are one step, which held.py bounds.
2. What a window of a guest may take is FACTOR times what this process' own pages took at the start, and
   LEAST_S at least.  It is CPU time: who waits for a CPU is not to blame.
3. Beyond that the guest is left alone by this source, for longer each time.

Limits: a word of the bitmap has 64 frames.  Where small pages of several guests lie in one, each of these
guests pays for the dear pages of the others.  KSM lets up to 256 pages share one (max_page_sharing), and the
kernel walks all of them: a guest that shares much with many others may be left alone, too.
"""

import mmap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from vmplace import held, native
from vmplace.errors import VmplaceError
from vmplace.sampling.frame_nodes import Frames
from vmplace.sampling.page_arrays import Bytes
from vmplace.topology.guest import PAGE_BYTES, GuestTopology, Identity

PIECE = 256
FACTOR = 16
LEAST_S = 2.0
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 4.0, 3600.0
FRAMES_PER_WORD = 64
LEAST_NS = 100.0
"""For a frame; no kernel asks for one faster."""


class DearGuestError(VmplaceError):
    """The kernel takes too long for a guest's pages."""


@dataclass
class _Spent:
    """What the present window of a guest took, for so many frames; and until when it is left alone."""

    cpu_ns: int = 0
    frames: int = 0
    times: int = 0
    until_s: float = 0.0


class IdlePieces:
    """The calls to the bitmap; ``frame_ns`` is what one frame usually takes."""

    def __init__(
        self,
        bitmap: int,
        frame_ns: float,
        clock: Callable[[], float] = time.monotonic,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._bitmap, self._clock, self._cpu_ns = bitmap, clock, cpu_ns
        self._frame_ns = max(frame_ns, LEAST_NS)
        self._spent: dict[Identity, _Spent] = {}

    def begin(self, guest: GuestTopology) -> None:
        """Begin a window; raises DearGuestError while the guest is left alone."""
        spent = self._spent.setdefault(guest.identity, _Spent())
        if (rest_s := spent.until_s - self._clock()) > 0:
            raise DearGuestError(
                f"source idle leaves it alone for {rest_s:.0f} s: the kernel takes too long for its pages, "
                "which are mapped too often",
                hint='if that goes on, set source = "damon" in vmplace.toml',
            )
        spent.cpu_ns = spent.frames = 0

    def forget(self, guest: GuestTopology) -> None:
        """Forget a guest that ended."""
        self._spent.pop(guest.identity, None)

    def mark(self, guest: GuestTopology, pfns: Frames) -> None:
        """Mark frames idle; raises HeldError, DearGuestError."""
        own = pfns.copy()
        self._in_pieces(guest, own, lambda fd, part: native.idle_mark(fd, own[part]))

    def collect(self, guest: GuestTopology, pfns: Frames, accessed: Bytes) -> None:
        """Fill in which frames were touched; raises HeldError, DearGuestError."""
        # A step that is given up goes on: it has arrays of its own.
        own, answers = pfns.copy(), np.zeros(len(pfns), np.uint8)
        self._in_pieces(guest, own, lambda fd, part: native.idle_collect(fd, own[part], answers[part]))
        np.copyto(accessed, answers)

    def _in_pieces(self, guest: GuestTopology, pfns: Frames, call: Callable[[int, slice], object]) -> None:
        spent = self._spent.setdefault(guest.identity, _Spent())
        if not held.bounded_on(guest.pid, self._bitmap, lambda fd: self._is_cheap(fd, pfns, call, spent)):
            now_s = self._clock()
            # Each LONGEST_BACKOFF_S that it was read without that counts for one time less.
            forgotten = int((now_s - spent.until_s) // LONGEST_BACKOFF_S)
            times = max(spent.times - forgotten, 0)
            spent.until_s = now_s + min(FIRST_BACKOFF_S * 2.0**times, LONGEST_BACKOFF_S)
            spent.times = times + 1
            self.begin(guest)

    def _is_cheap(self, fd: int, pfns: Frames, call: Callable[[int, slice], object], spent: _Spent) -> bool:
        """Make the calls until they have taken too long; tell whether they have not."""
        # A word is asked for as a whole.
        words = pfns // np.uint64(FRAMES_PER_WORD)
        for part in _pieces(words):
            began_ns = self._cpu_ns()
            call(fd, part)
            spent.cpu_ns += self._cpu_ns() - began_ns
            spent.frames += FRAMES_PER_WORD * (1 + int(np.count_nonzero(np.diff(words[part]))))
            if spent.cpu_ns > max(LEAST_S * 1e9, FACTOR * self._frame_ns * spent.frames):
                return False
        return True


def _pieces(words: Frames) -> Iterator[slice]:
    """Yield pieces that end where a word does: to ask for a word twice would take twice as long."""
    at = 0
    while at < len(words):
        end = min(at + PIECE, len(words))
        behind = words[end : end + FRAMES_PER_WORD]
        end += int(np.argmin(behind == words[end - 1])) if len(behind) else 0
        yield slice(at, end)
        at = end


def usual_frame_ns(bitmap: int, frames_of: Callable[[int, int], Frames]) -> float:
    """Return what marking one of this process' own frames takes; ``frames_of`` address and pages."""
    pages = mmap.mmap(-1, PIECE * PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    content = np.frombuffer(pages, np.uint8)
    content[::PAGE_BYTES] = 1
    # The kernel tells nothing of pages that are still in a CPU's batch.
    native.drain_lru()
    pfns, answers = np.sort(frames_of(content.ctypes.data, PIECE)), np.zeros(PIECE, np.uint8)
    taken = []
    for _ in range(4):
        native.idle_mark(bitmap, pfns)
        began_ns = time.thread_time_ns()
        native.idle_collect(bitmap, pfns, answers)
        taken.append(time.thread_time_ns() - began_ns)
    words = len(np.unique(pfns // np.uint64(FRAMES_PER_WORD)))
    return float(np.median(taken)) / (FRAMES_PER_WORD * words)
