"""What comes out of the ring of hint faults, and is a damaged one harmless?"""

import errno
import os
import struct

import numpy as np
import numpy.typing as npt
import pytest

from vmplace import native

SIZE = 128
HEAD, TAIL, LOST, ARMED = range(4)


ENTRY = struct.Struct("<QQIiHHI")
"""struct kvm_placement_hint, after kvm-patches/kvm_placement.h: gpa, time, vCPU, nid, level, flags, pad."""


def ring_of(head: int, tail: int, size: int = SIZE) -> npt.NDArray[np.uint8]:
    """Return a ring in which record n is of address n, vCPU n + 1, node -n, with flags 1 and level 2."""
    ring = np.zeros(4096 + SIZE * 32, np.uint8)
    ring[:32].view(np.uint64)[:] = head, tail, 3, 7
    ring[32:40].view(np.uint32)[:] = size, 32
    for n in range(head, min(tail, head + SIZE)):
        at = 4096 + n % SIZE * 32
        entry = ENTRY.pack(n, 1000 + n, n + 1, -n, 2, 1, 0)
        ring[at : at + 32] = np.frombuffer(entry, np.uint8)
    return ring


def head_of(ring: npt.NDArray[np.uint8]) -> int:
    return int(ring[:8].view(np.uint64)[0])


def drain(ring: npt.NDArray[np.uint8], room: int = 64) -> list[list[int]]:
    table = np.zeros((6, room), np.uint64)
    count, lost, armed = native.placement_drain(ring, table)
    assert (lost, armed) == (3, 7)
    rows: list[list[int]] = table[:, :count].T.astype(np.int64).tolist()
    return rows


def records(first: int, end: int) -> list[list[int]]:
    return [[n, 1000 + n, n + 1, -n, 1, 2] for n in range(first, end)]


@pytest.mark.parametrize("head", [0, 100, 127, 1000])
def test_records_come_out_as_they_went_in_also_round_the_end(head: int) -> None:
    ring = ring_of(head, head + 50)
    assert drain(ring) == records(head, head + 50)
    assert head_of(ring) == head + 50
    assert drain(ring) == []


def test_what_does_not_fit_stays_for_the_next_time() -> None:
    ring = ring_of(0, 10)
    assert drain(ring, room=4) + drain(ring, room=4) + drain(ring, room=4) == records(0, 10)


def test_a_tail_that_cannot_be_empties_the_ring() -> None:
    ring = ring_of(0, SIZE + 1)
    with pytest.raises(OSError, match=os.strerror(errno.EBADMSG)):
        drain(ring)
    assert head_of(ring) == SIZE + 1


@pytest.mark.parametrize("size", [0, 3, 2 * SIZE, 1 << 31])
def test_a_ring_of_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="ring"):
        drain(ring_of(0, 1, size))


def test_a_ring_must_have_its_header() -> None:
    with pytest.raises(ValueError, match="ring"):
        drain(np.zeros(4096, np.uint8))


def test_what_is_no_placement_fd_takes_no_hint_faults() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ENOTTY)):
        native.placement_hints(os.open(os.devnull, os.O_RDWR), np.zeros(2, np.uint64), 1, 100, SIZE)
