"""What comes out of a perf ring, and what of it is damaged?"""

import errno
import fcntl
import mmap
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.native.perf_records import (
    HEAD_AT,
    LOST,
    LOST_SAMPLES,
    MMAP,
    PAGE,
    SAMPLE,
    TAIL_AT,
    THROTTLE,
    Sample,
    backward_ring_of,
    record,
    ring_of,
    sample_record,
    tail_of,
)
from vmplace import native
from vmplace.errors import UnsupportedHostError
from vmplace.sampling import perf_rings
from vmplace.sampling.perf_rings import PerfRings

CORPUS = Path(__file__).parents[1] / "data/perf_records"
SOFTWARE, PAGE_FAULTS, ENABLE = 1, 2, 0x2400
CPU_CLOCK, MILLISECOND_NS = 0, 1_000_000
SAMPLES = [Sample(phys_addr=i << 12, weight=i, data_src=i << 40, tid=100 + i, cpu=i % 4) for i in range(9)]


class Table:
    def __init__(self, room: int = 64) -> None:
        self.rows = np.zeros((5, room), np.uint64)

    def drain(self, ring: mmap.mmap | npt.NDArray[np.uint8]) -> tuple[int, int, int]:
        return native.perf_drain(ring, self.rows)

    def samples(self, count: int) -> list[Sample]:
        return [Sample(*row) for row in self.rows[:, :count].T.tolist()]


@pytest.mark.parametrize("at", [0, PAGE - 8, PAGE - 64, 7 * PAGE - 104])
def test_samples_come_out_as_they_went_in_also_round_the_end(at: int) -> None:
    table = Table()
    ring = ring_of(b"".join(map(sample_record, SAMPLES)), at=at)
    assert table.drain(ring) == (len(SAMPLES), 0, 0)
    assert table.samples(len(SAMPLES)) == SAMPLES


def test_what_does_not_fit_stays_for_the_next_time() -> None:
    table = Table(room=4)
    ring = ring_of(b"".join(map(sample_record, SAMPLES)))
    taken = []
    for count in (4, 4, 1, 0):
        assert table.drain(ring)[0] == count
        taken += table.samples(count)
    assert taken == SAMPLES


def test_losses_and_throttling_are_counted() -> None:
    records = (
        record(LOST, (7).to_bytes(8, "little") + (30).to_bytes(8, "little"))
        + sample_record(SAMPLES[1])
        + record(THROTTLE, bytes(24))
        + record(LOST_SAMPLES, (12).to_bytes(8, "little"))
    )
    assert Table().drain(ring_of(records)) == (1, 42, 1)


def test_other_records_are_passed_over() -> None:
    table = Table()
    records = record(MMAP, bytes(48)) + record(SAMPLE, bytes(16)) + sample_record(SAMPLES[3])
    assert table.drain(ring_of(records)) == (1, 0, 0)
    assert table.samples(1) == [SAMPLES[3]]


@pytest.mark.parametrize("size", [0, 7, 9000])
def test_a_record_of_an_impossible_size_empties_the_ring(size: int) -> None:
    damaged = sample_record(SAMPLES[1]) + SAMPLE.to_bytes(4, "little") + bytes(2) + size.to_bytes(2, "little")
    ring = ring_of(damaged)
    with pytest.raises(OSError, match=os.strerror(errno.EBADMSG)):
        Table().drain(ring)
    assert tail_of(ring) == len(damaged)


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_rings_that_a_fuzzer_found_are_drained_to_their_end(path: Path) -> None:
    found = path.read_bytes()
    at, length = struct.unpack_from("<HH", found)
    ring = np.zeros(2 * PAGE, np.uint8)
    ring[PAGE : PAGE + len(found) - 8] = np.frombuffer(found, np.uint8, offset=8)
    ring.view(np.uint64)[[HEAD_AT // 8, TAIL_AT // 8]] = at + length, at
    # A record that cannot be empties the ring, too.
    with suppress(OSError):
        Table(room=PAGE).drain(ring)
    assert tail_of(ring) == at + length


def test_a_ring_must_have_its_control_page() -> None:
    with pytest.raises(ValueError, match="ring"):
        Table().drain(np.zeros(PAGE, np.uint8))


def touched_by_a_child(memory: mmap.mmap, npages: int) -> int:
    """Write each page in a child process, which copies it; return the child's pid."""
    pid = os.fork()
    if not pid:
        for page in range(npages):
            memory[page * PAGE] = 2
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def frames_of(memory: mmap.mmap, npages: int) -> set[int]:
    entries = np.zeros(npages, np.uint64)
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        native.read_pagemap(pagemap.fileno(), np.frombuffer(memory, np.uint8).ctypes.data, entries)
    return {int(entry) & ((1 << 55) - 1) for entry in entries}


@pytest.fixture
def one_cpu() -> Iterator[int]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield min(before)
    os.sched_setaffinity(0, before)


def test_samples_of_the_kernel_name_the_frames_that_pagemap_names(one_cpu: int) -> None:
    try:
        fd = native.perf_open(SOFTWARE, PAGE_FAULTS, 1, one_cpu)
    except PermissionError:
        pytest.skip("perf events are not permitted here")
    # Of all that runs on the CPU meanwhile: a compiler has a million faults a second.
    table = Table(room=1 << 17)
    with mmap.mmap(fd, (1 + 1024) * PAGE) as ring, mmap.mmap(-1, 64 * PAGE, flags=mmap.MAP_PRIVATE) as memory:
        memory[:] = bytes([1]) * len(memory)
        frames = frames_of(memory, 64)
        fcntl.ioctl(fd, ENABLE, 0)
        # A page that is to be copied is still the parent's when the fault is sampled.
        child = touched_by_a_child(memory, 64)
        count, lost, _ = table.drain(ring)
    os.close(fd)
    sampled = {s.phys_addr // PAGE for s in table.samples(count) if s.tid == child}
    assert lost == 0
    assert frames <= sampled


def busy_samples(rings: PerfRings, at_most_s: float) -> int:
    """Keep this CPU busy until there are samples; return how many."""
    until, count = time.monotonic() + at_most_s, 0
    while not count and time.monotonic() < until:
        count = sum(len(part.tids) for part in rings.drain())
    return count


def test_an_event_ends_with_its_descriptor_though_its_ring_is_mapped() -> None:
    """As when an agent is killed that cannot end: its memory stays, its descriptors do not."""
    cpus = os.sched_getaffinity(0)
    cpu = min(cpus)
    try:
        rings = PerfRings(SOFTWARE, CPU_CLOCK, MILLISECOND_NS, [cpu])
    except UnsupportedHostError as err:
        pytest.skip(str(err))
    os.sched_setaffinity(0, {cpu})
    try:
        rings.control(perf_rings.ENABLE)
        assert busy_samples(rings, 60.0)
        for fd in rings._rings:
            os.close(fd)
        rings.drain()
        assert not busy_samples(rings, 0.5)
    finally:
        os.sched_setaffinity(0, cpus)
        rings.close()


def newest(ring: npt.NDArray[np.uint8], data_bytes: int = 4 * PAGE) -> bytes:
    content = np.zeros(data_bytes, np.uint8)
    return content[: native.perf_newest(ring, content)].tobytes()


BACKWARD = [record(SAMPLE, bytes([i]) * 64) for i in range(40)]


def test_of_a_ring_that_is_written_over_the_newest_records_come_first() -> None:
    ring = backward_ring_of(BACKWARD, data_bytes=4 * PAGE)
    assert newest(ring) == b"".join(reversed(BACKWARD))
    assert newest(ring) == b"".join(reversed(BACKWARD)), "nothing is taken out"
    assert newest(backward_ring_of([], data_bytes=4 * PAGE)) == b""


def test_where_the_kernel_may_just_write_nothing_is_read() -> None:
    written = [record(SAMPLE, i.to_bytes(8, "little") * 8) for i in range(1000)]
    found = newest(backward_ring_of(written, data_bytes=4 * PAGE))
    # It has gone round many times; a page in front of the newest record may be half written.
    assert len(found) == 3 * PAGE
    assert b"".join(reversed(written)).startswith(found)


def test_a_ring_and_what_it_is_copied_to_must_fit() -> None:
    ring = backward_ring_of([], data_bytes=4 * PAGE)
    with pytest.raises(ValueError, match="as many bytes"):
        native.perf_newest(ring, np.zeros(PAGE, np.uint8))
    with pytest.raises(TypeError):
        native.perf_newest(ring, b"read only" * PAGE)  # type: ignore[arg-type]


RAW_SYSCALLS = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/id"
GETPPID = 110


def test_what_a_thread_passes_is_reported_by_the_kernel() -> None:
    """By the trace point of system calls: its number is reported with the time, the newest one first."""
    mounted = ["unshare", "-m", "sh", "-c", f"mount -t tracefs t /sys/kernel/tracing && cat {RAW_SYSCALLS}"]
    found = subprocess.run(mounted, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"no trace points here: {found.stderr.strip()}")
    fd = native.perf_trace(int(found.stdout), os.getpid())
    with mmap.mmap(fd, 5 * PAGE, prot=mmap.PROT_READ) as ring:
        began = time.monotonic_ns()
        os.getppid()
        os.getppid()
        ended = time.monotonic_ns()
        # It goes on to be reported until the ring is written over.
        content = newest(np.frombuffer(ring, np.uint8).copy())
    os.close(fd)
    calls = []
    while content:
        kind, _, size, at_ns, _, number = struct.unpack_from("<IHHQI8xQ", content)
        calls.append((kind, at_ns, number))
        content = content[size:]
    assert {kind for kind, *_ in calls} == {SAMPLE}
    times = [at_ns for _, at_ns, _ in calls]
    assert times == sorted(times, reverse=True)
    assert [number for _, at_ns, number in calls if began <= at_ns <= ended].count(GETPPID) == 2
