"""A look at a guest of a TiB takes longer than systemd waits: it beats while it goes on, and only then."""

import mmap
import os
from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.actuation.child_guest import guest_of
from tests.unit.agent.agent_world import World, guest
from vmplace import native
from vmplace.agent.heartbeat import Heartbeat
from vmplace.agent.loop import Agent
from vmplace.sampling.page_frames import CHUNK_PAGES, FrameReader
from vmplace.sampling.source_kvm import KvmSource
from vmplace.topology.guest import PAGE_BYTES, GuestTopology, RamRange
from vmplace.topology.placement import Placement, Slot

GIB = 1 << 30
MAP_NORESERVE = 0x4000
WATCHDOG_S = 1.0


@pytest.mark.skipif(os.geteuid() != 0, reason="frame numbers need root (CAP_SYS_ADMIN)")
def test_frames_are_read_with_a_beat_for_each_chunk():
    beats: list[None] = []
    area = mmap.mmap(-1, 16 * GIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    me = guest_of(os.getpid(), np.frombuffer(area, np.uint8).ctypes.data, 16 * GIB // PAGE_BYTES)
    reader = FrameReader(beat=lambda: beats.append(None))
    with reader.opened(me) as pagemap:
        chunks = sum(1 for _ in reader.chunks(pagemap, me.ram[0]))
    reader.close()
    assert len(beats) == chunks >= 16 * GIB // PAGE_BYTES // CHUNK_PAGES


def test_bits_of_node_roots_are_harvested_in_pieces(monkeypatch: pytest.MonkeyPatch):
    taken: list[tuple[int, int, int]] = []
    beats: list[int] = []

    def harvest(fd: int, gfn: int, npages: int, page: int, *_rest: object) -> bool:
        taken.append((gfn, npages, page))
        return True

    monkeypatch.setattr(native, "placement_harvest", harvest)
    source = KvmSource.__new__(KvmSource)
    source._nids, source._rows = (0,), np.zeros(1, np.int32)
    source._beat = lambda: beats.append(len(taken))
    ram = guest("db1").ram[0]
    npages = 40 * GIB // PAGE_BYTES
    ram = RamRange(1 << 32, npages, None, 4096, ram.movability, "")
    slots = (Slot(1 << 20, npages, 1 << 32, 0),)
    placement = Placement(-1)
    monkeypatch.setattr(placement, "call", lambda step: step(-1))
    source._bits(placement, slots, (ram,), clear=False)
    # All of it once, a beat before each piece.
    ends = np.cumsum([0] + [count for _, count, _ in taken])
    assert ends[-1] == npages and [page for _, _, page in taken] == ends[:-1].tolist()
    assert [gfn for gfn, _, _ in taken] == (ends[:-1] + (1 << 20)).tolist()
    assert beats == list(range(len(taken))) and len(taken) >= 3


class LongLook(World):
    """A world whose source takes its time; ``look`` is what it does meanwhile."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__([guest("db1")])
        self.look = look

    def arm(self, guest: GuestTopology) -> None:
        """Take long."""
        self.look()
        super().arm(guest)


class Hearing(Heartbeat):
    """What a manager hears of a loop: the times between its words, by a clock of the test's own."""

    def __init__(self) -> None:
        super().__init__("unused", WATCHDOG_S, lambda: self.now_s)
        self.now_s, self.said = 0.0, list[float]()

    def _tell(self, word: str) -> None:
        self.said.append(self.now_s)

    def longest_s(self, look: Callable[[], None]) -> float:
        """Return the longest time without a word of a loop that looks once."""
        world = LongLook(look)
        dry = world.agent(window_ms=20)
        Agent(dry.roster._loaded, dry.state.parts, world.wakeup, self).run(windows=1)
        return max(np.diff(self.said).tolist())


def test_a_look_that_goes_on_is_heard_of_all_the_time():
    heart = Hearing()

    def pieces() -> None:
        for _ in range(40):
            heart.now_s += 0.05
            heart.beat()

    assert WATCHDOG_S / 4 <= heart.longest_s(pieces) <= WATCHDOG_S / 2


def test_a_look_that_hangs_is_not_heard_of():
    heart = Hearing()

    def hang() -> None:
        heart.now_s += 1.5 * WATCHDOG_S

    assert heart.longest_s(hang) >= 1.5 * WATCHDOG_S
