"""What was sampled, in a file: host, guests and batches, so that a policy runs from it on any machine.

The format is docs/recording.md: a stream of frames, each with lengths and a CRC, appended whole.  A
recorder that is killed leaves a readable prefix.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeAlias

import msgspec
import numpy as np

from vmplace.errors import OutsideError, RecordingError
from vmplace.outside import parse_json
from vmplace.sampling.page_frames import block_count
from vmplace.sampling.recording_frames import (
    BatchFrame,
    Frame,
    GuestFrame,
    batch_frame,
    checked_batch,
    frame_body_bytes,
    guest_of,
    host_frame,
    host_of,
)
from vmplace.sampling.sample import RangeSample, SampleBatch
from vmplace.topology.guest import GuestTopology, RamRange
from vmplace.topology.host import HostTopology

Event: TypeAlias = HostTopology | GuestTopology | SampleBatch

VERSION = 1
FILE_HEAD = struct.Struct("<8sI")
FILE_MAGIC = b"VMPTRACE"
FRAME_HEAD = struct.Struct("<4sIII")
FRAME_MAGIC = b"VMPF"
FRAME: Any = Frame
MOST_HEAD_BYTES = 16 << 20
COMPRESSION = 1
"""The fastest: pages of one node that were not touched are long runs."""


class Recorder:
    """Writes a recording; use as a context manager."""

    def __init__(
        self, path: Path, host: HostTopology, *, overwrite: bool = False, compression: int = COMPRESSION
    ) -> None:
        """Start the file; raises RecordingError if it exists or cannot be written.

        ``compression`` is zlib's level, of 1 to 9.
        """
        self._path = path
        self._compression = compression
        self._guests: dict[str, GuestTopology] = {}
        try:
            self._file: BinaryIO = path.open("wb" if overwrite else "xb")
        except FileExistsError as err:
            raise RecordingError(f"{path} exists", hint="record to another file, or delete it first") from err
        except OSError as err:
            raise RecordingError(f"{path} cannot be written: {err.strerror}") from err
        self._write(FILE_HEAD.pack(FILE_MAGIC, VERSION))
        self._append(host_frame(host), b"")

    def add(self, guest: GuestTopology, batch: SampleBatch) -> None:
        """Append a batch, and before it the guest as it is now, if that changed."""
        if self._guests.get(guest.name) != guest:
            self._append(GuestFrame(guest), b"")
            self._guests[guest.name] = guest
        packer = zlib.compressobj(self._compression)
        body = [packer.compress(array.data) for sample in batch.ranges for array in _arrays(sample)]
        self._append(batch_frame(batch), b"".join([*body, packer.flush()]))

    def close(self) -> None:
        """Close the file; harmless when done twice."""
        self._file.close()

    def __enter__(self) -> "Recorder":
        """Return the recorder."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def _append(self, frame: Frame, body: bytes) -> None:
        head = msgspec.json.encode(frame)
        crc = zlib.crc32(body, zlib.crc32(head))
        self._write(FRAME_HEAD.pack(FRAME_MAGIC, len(head), len(body), crc) + head + body)

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            # Handed to the kernel whole, so that only a crash of the host can lose it.
            self._file.flush()
        except OSError as err:
            raise RecordingError(f"{self._path} cannot be written: {err.strerror}") from err


def iter_recording(path: Path, *, only_guest: str | None = None, tolerant: bool = False) -> Iterator[Event]:
    """Yield host, guests and batches in the order they were recorded (the host first).

    Raises RecordingError, after all that is good, with the offset where a file is cut short or damaged;
    ``tolerant`` ends there in silence.  ``only_guest`` leaves the frames of other guests unread.
    """
    try:
        file = path.open("rb")
    except OSError as err:
        raise RecordingError(f"{path} cannot be read: {err.strerror}") from err
    with file:
        _check_head(path, file)
        try:
            yield from _iter_events(path, file, only_guest)
        except RecordingError:
            if not tolerant:
                raise


def read_recorded_host(path: Path) -> HostTopology:
    """Return the host that a recording was made on; raises RecordingError."""
    for event in iter_recording(path):
        if isinstance(event, HostTopology):
            return event
    raise RecordingError(f"{path} tells no host", hint="the recorder was stopped at once; record again")


def _arrays(sample: RangeSample) -> tuple[np.ndarray[tuple[int], np.dtype[np.int8 | np.uint8]], ...]:
    return tuple(np.ascontiguousarray(a) for a in (sample.accessed, sample.node_index, sample.huge))


def _check_head(path: Path, file: BinaryIO) -> None:
    head = file.read(FILE_HEAD.size)
    if len(head) < FILE_HEAD.size or not head.startswith(FILE_MAGIC):
        raise RecordingError(
            f"{path} is not a recording of vmplace",
            hint="such files start with VMPTRACE; see docs/recording.md",
        )
    version = FILE_HEAD.unpack(head)[1]
    if version != VERSION:
        raise RecordingError(
            f"{path} is a recording of version {version}, this vmplace reads version {VERSION}",
            hint="replay it with the vmplace that recorded it",
        )


def _iter_events(path: Path, file: BinaryIO, only_guest: str | None) -> Iterator[Event]:
    batches = 0
    while True:
        offset = file.tell()
        try:
            read = _read_frame(file)
            if read is None:
                return
            event = _event_of(*read, only_guest)
        except (_DamagedError, OutsideError, zlib.error) as err:
            raise RecordingError(
                f"{path}: {err} at offset {offset} of {path.stat().st_size}; "
                f"{batches} batches before it are good",
                hint="replay what is good with --tolerant, or record again",
            ) from err
        batches += isinstance(event, SampleBatch)
        if event is not None:
            yield event


class _DamagedError(Exception):
    """What is wrong with one frame."""


def _read_frame(file: BinaryIO) -> tuple[Frame, bytes] | None:
    head = file.read(FRAME_HEAD.size)
    if not head:
        return None
    if len(head) < FRAME_HEAD.size:
        raise _DamagedError("the recording is cut short")
    magic, head_bytes, body_bytes, crc = FRAME_HEAD.unpack(head)
    if magic != FRAME_MAGIC:
        raise _DamagedError("no frame starts")
    # Compared first: to read what is not there would take as much memory as the lengths say.
    if head_bytes + body_bytes > os.fstat(file.fileno()).st_size - file.tell():
        raise _DamagedError("the recording is cut short")
    if head_bytes > MOST_HEAD_BYTES:
        raise _DamagedError(f"a head of {head_bytes} bytes")
    payload = file.read(head_bytes + body_bytes)
    if len(payload) < head_bytes + body_bytes:
        raise _DamagedError("the recording is cut short")
    if zlib.crc32(payload) != crc:
        raise _DamagedError("a damaged frame (wrong CRC)")
    return parse_json(payload[:head_bytes], FRAME), payload[head_bytes:]


def _event_of(frame: Frame, body: bytes, only_guest: str | None) -> Event | None:
    if isinstance(frame, GuestFrame):
        return guest_of(frame) if only_guest in (None, frame.guest.name) else None
    if isinstance(frame, BatchFrame):
        frame = checked_batch(frame)
        return _batch_of(frame, body) if only_guest in (None, frame.guest) else None
    return host_of(frame)


def _batch_of(frame: BatchFrame, body: bytes) -> SampleBatch:
    wanted = frame_body_bytes(frame)
    # One byte more than wanted shows a body that is too long without unpacking all of it.
    raw = zlib.decompressobj().decompress(body, wanted + 1)
    if len(raw) != wanted:
        raise _DamagedError(f"a batch whose arrays do not hold the {wanted} bytes its ranges need")
    ranges, at = [], 0
    for ram in frame.ranges:
        ranges.append(_range_of(ram, raw, at, len(frame.nids)))
        at += 2 * ram.npages + block_count(ram)
    return SampleBatch(
        frame.guest, frame.source, frame.coverage, frame.started_ns, frame.ended_ns, frame.nids, tuple(ranges)
    )


def _range_of(ram: RamRange, raw: bytes, at: int, nodes: int) -> RangeSample:
    accessed = np.frombuffer(raw, np.uint8, ram.npages, at)
    node_index = np.frombuffer(raw, np.int8, ram.npages, at + ram.npages)
    huge = np.frombuffer(raw, np.uint8, block_count(ram), at + 2 * ram.npages)
    if max(accessed.max(), huge.max()) > 1 or not -1 <= node_index.min() <= node_index.max() < nodes:
        raise _DamagedError("a batch with pages on nodes that it does not tell, or touched by no 0 and no 1")
    return RangeSample(ram, accessed, node_index, huge)
