"""What was sampled, in a file: host, guests and batches, so that a policy runs from it on any machine.

The format is docs/recording.md: a stream of frames, each with lengths and a CRC, appended whole.  A
recorder that is killed leaves a readable prefix.
"""

import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeAlias

import msgspec

from vmplace.errors import OutsideError, RecordingError, cure_of_reading, cure_of_writing
from vmplace.outside import parse_json
from vmplace.sampling.recording_body import DamagedError, arrays_of, batch_of
from vmplace.sampling.recording_frames import (
    MOST_BODY_BYTES,
    BatchFrame,
    Frame,
    GuestFrame,
    OldBatchFrame,
    OldFrame,
    PlanFrame,
    RunFrame,
    batch_frame,
    checked_batch,
    checked_plan,
    checked_run,
    frame_body_bytes,
    guest_of,
    host_frame,
    host_of,
)
from vmplace.sampling.sample import SampleBatch
from vmplace.topology.guest import GuestTopology
from vmplace.topology.host import HostTopology

Event: TypeAlias = HostTopology | GuestTopology | GuestFrame | SampleBatch | RunFrame | PlanFrame
"""A GuestFrame: one that begins anew."""

VERSION = 2
OLD_VERSION = 1
"""Which kept no nodes of touches, and no decisions."""
FILE_HEAD = struct.Struct("<8sI")
FILE_MAGIC = b"VMPTRACE"
FRAME_HEAD = struct.Struct("<4sIII")
FRAME_MAGIC = b"VMPF"
FRAMES: dict[int, Any] = {VERSION: Frame, OLD_VERSION: OldFrame}
MOST_HEAD_BYTES = 16 << 20
COMPRESSION = 1
"""The fastest: pages of one node that were not touched are long runs."""
RECORD_FEWER = "record with fewer guests"
RECORD_LONGER = "record for longer than a window: vmplace record FILE --duration 60"


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
            # For its owner alone: it tells addresses of other processes, and guests by name.
            self._file: BinaryIO = _opened(path, os.O_TRUNC if overwrite else os.O_EXCL)
        except FileExistsError as err:
            raise RecordingError(f"{path} exists", hint="record to another file, or delete it first") from err
        except OSError as err:
            raise RecordingError(
                f"{path} cannot be written: {err.strerror}", hint=cure_of_writing(err)
            ) from err
        self._write(FILE_HEAD.pack(FILE_MAGIC, VERSION))
        self._host: HostTopology | None = None
        self.see_host(host)

    def see_host(self, host: HostTopology) -> None:
        """Append the host as it is now, if it changed."""
        if self._host != host:
            self._append(host_frame(host), b"")
            self._host = host

    def see_guest(self, guest: GuestTopology) -> None:
        """Append the guest as it is now, if it changed."""
        if self._guests.get(guest.name) != guest:
            self._append(GuestFrame(guest), b"")
            self._guests[guest.name] = guest

    def begin_guest(self, guest: GuestTopology, handover: str = "") -> None:
        """Append that nothing is known of the guest's pages so far, but for what its last host tells."""
        self.see_guest(guest)
        self._append(GuestFrame(guest, begins=True, handover=handover), b"")

    def tell(self, frame: RunFrame | PlanFrame) -> None:
        """Append that decisions follow, or one of them."""
        self._append(frame, b"")

    def add(self, guest: GuestTopology, batch: SampleBatch) -> None:
        """Append a batch, and before it the guest as it is now, if that changed."""
        self.see_guest(guest)
        frame = batch_frame(batch)
        if frame_body_bytes(frame) > MOST_BODY_BYTES:
            raise RecordingError(
                f"a batch of guest {guest.name} takes more than {MOST_BODY_BYTES >> 30} GiB",
                hint="record without early readings: first_ms = 0 in [readings]",
            )
        packer = zlib.compressobj(self._compression)
        body = [packer.compress(array.data) for sample in batch.ranges for array in arrays_of(sample)]
        self._append(frame, b"".join([*body, packer.flush()]))

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
        if len(head) > MOST_HEAD_BYTES or len(body) >> 32:
            raise RecordingError(
                f"a frame of {len(head)} and {len(body)} bytes is too long", hint=RECORD_FEWER
            )
        crc = zlib.crc32(body, zlib.crc32(head))
        self._write(FRAME_HEAD.pack(FRAME_MAGIC, len(head), len(body), crc) + head + body)

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            # Handed to the kernel whole, so that only a crash of the host can lose it.
            self._file.flush()
        except OSError as err:
            raise RecordingError(
                f"{self._path} cannot be written: {err.strerror}", hint=cure_of_writing(err)
            ) from err


def iter_recording(
    path: Path, *, only_guest: str | None = None, on_damage: Callable[[RecordingError], None] | None = None
) -> Iterator[Event]:
    """Yield host, guests and batches in the order they were recorded (the host first).

    Raises RecordingError, after all that is good, with the offset where a file is cut short or damaged;
    ``on_damage`` is called with it instead.  ``only_guest`` leaves the frames of other guests unread.
    """
    try:
        file = path.open("rb")
    except OSError as err:
        raise RecordingError(f"{path} cannot be read: {err.strerror}", hint=cure_of_reading(err)) from err
    with file:
        version = _check_head(path, file)
        try:
            yield from _iter_events(path, file, only_guest, FRAMES[version])
        except RecordingError as err:
            if on_damage is None:
                raise
            on_damage(err)


def read_recorded_host(path: Path) -> HostTopology:
    """Return the host that a recording was made on; raises RecordingError."""
    for event in iter_recording(path):
        if isinstance(event, HostTopology):
            return event
    raise RecordingError(f"{path} tells no host", hint="the recorder was stopped at once; record again")


def _opened(path: Path, flags: int) -> BinaryIO:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        # One that is written over may have been everybody's.
        os.fchmod(fd, 0o600)
    return os.fdopen(fd, "wb")


def _check_head(path: Path, file: BinaryIO) -> int:
    head = file.read(FILE_HEAD.size)
    if len(head) < FILE_HEAD.size or not head.startswith(FILE_MAGIC):
        raise RecordingError(
            f"{path} is not a recording of vmplace",
            hint="such files start with VMPTRACE; see docs/recording.md",
        )
    version = FILE_HEAD.unpack(head)[1]
    if version not in FRAMES:
        known = " and ".join(map(str, sorted(FRAMES)))
        raise RecordingError(
            f"{path} is a recording of version {version}, this vmplace reads versions {known}",
            hint="replay it with the vmplace that recorded it",
        )
    return int(version)


def _iter_events(path: Path, file: BinaryIO, only_guest: str | None, frames: Any) -> Iterator[Event]:
    batches = 0
    while True:
        offset = file.tell()
        try:
            read = _read_frame(file, frames)
            if read is None:
                return
            event = _event_of(*read, only_guest)
        except MemoryError as err:
            raise RecordingError(
                f"{path}: no memory for the frame at offset {offset}", hint="replay it on a larger machine"
            ) from err
        except (DamagedError, OutsideError, zlib.error) as err:
            raise RecordingError(
                f"{path}: {err} at offset {offset} of {path.stat().st_size}; "
                f"{batches} batches before it are good",
                hint="`vmplace replay --tolerant FILE` replays what is good; or record again",
            ) from err
        batches += isinstance(event, SampleBatch)
        if event is not None:
            yield event


def _read_frame(file: BinaryIO, frames: Any) -> tuple[Frame | OldFrame, bytes] | None:
    head = file.read(FRAME_HEAD.size)
    if not head:
        return None
    if len(head) < FRAME_HEAD.size:
        raise DamagedError("the recording is cut short")
    magic, head_bytes, body_bytes, crc = FRAME_HEAD.unpack(head)
    if magic != FRAME_MAGIC:
        raise DamagedError("no frame starts")
    # Compared first: to read what is not there would take as much memory as the lengths say.
    if head_bytes + body_bytes > os.fstat(file.fileno()).st_size - file.tell():
        raise DamagedError("the recording is cut short or damaged")
    if head_bytes > MOST_HEAD_BYTES:
        raise DamagedError(f"a head of {head_bytes} bytes")
    payload = file.read(head_bytes + body_bytes)
    if len(payload) < head_bytes + body_bytes:
        raise DamagedError("the recording is cut short")
    if zlib.crc32(payload) != crc:
        raise DamagedError("a damaged frame (wrong CRC)")
    return parse_json(payload[:head_bytes], frames), payload[head_bytes:]


def _event_of(frame: Frame | OldFrame, body: bytes, only_guest: str | None) -> Event | None:
    if isinstance(frame, GuestFrame):
        guest = guest_of(frame)
        mine = only_guest in (None, guest.name)
        return (frame if frame.begins else guest) if mine else None
    if isinstance(frame, RunFrame):
        return checked_run(frame)
    if isinstance(frame, PlanFrame):
        return checked_plan(frame)
    if isinstance(frame, OldBatchFrame):
        frame = frame.renewed
    if isinstance(frame, BatchFrame):
        frame = checked_batch(frame)
        return batch_of(frame, body) if only_guest in (None, frame.guest) else None
    return host_of(frame)
