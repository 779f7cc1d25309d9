"""The records of the journal, and their frames, which show damage.

A file is the magic ``VMPJRNL`` and a version byte, then frames.  A frame is the mark ``a5 56 4d 52``, the
length and the CRC-32 of the payload (little endian, 32 bits each), and the payload: one msgpack record.
A frame that was cut short or damaged is skipped by looking for the next mark with a right CRC.
"""

import struct
import zlib
from collections.abc import Iterator

import msgspec

from vmplace.errors import JournalError

MAGIC = b"VMPJRNL\x01"
_MARK = b"\xa5VMR"
_HEAD = struct.Struct("<4sII")
_LONGEST = 64 << 20


class GuestId(msgspec.Struct, frozen=True, array_like=True):
    """A GuestIdentity on disk; earlier versions wrote no ``pid_namespace``."""

    name: str
    pid: int
    start_time: int
    boot_id: str
    pid_namespace: int = 0


class PagesRecord(msgspec.Struct, frozen=True, tag="pages"):
    """Pages that are about to be moved and the nodes they are on (``PageRuns.encoded``).

    ``to`` are the nodes they are moved to; empty in what an earlier version wrote.
    """

    guest: GuestId
    runs: bytes
    to: bytes = b""


class AffinityRecord(msgspec.Struct, frozen=True, tag="affinity"):
    """The CPUs a vCPU thread may use before it is pinned to ``set_to``; ``by_libvirt`` = through libvirt.

    ``or_set_to`` is what vmplace had set before that: a tie that fails leaves it so.  Earlier versions
    wrote None for both.  ``usable``: the CPUs that its cpuset left to it when ``cpus`` was read, or that were
    online (a list as in sysfs), as sched_getaffinity(2) leaves out all others; empty where that is not known.
    """

    guest: GuestId
    vcpu_id: int
    tid: int
    thread_start_time: int
    cpus: tuple[int, ...]
    by_libvirt: bool
    set_to: tuple[int, ...] | None = None
    or_set_to: tuple[int, ...] | None = None
    usable: str = msgspec.field(name="online", default="")


class SysctlRecord(msgspec.Struct, frozen=True, tag="sysctl"):
    """A sysctl (path below /proc/sys) before it is set to ``after``."""

    name: str
    before: str
    after: str
    boot_id: str


class SysctlReturnedRecord(msgspec.Struct, frozen=True, tag="sysctl-returned"):
    """The sysctl is no longer ours: given back, or changed by somebody else."""

    name: str


class GuestUndoneRecord(msgspec.Struct, frozen=True, tag="undone"):
    """All earlier records of the guest are settled, but for ``rest``: pages that did not go back.

    ``rest`` and ``rest_to`` are moves, oldest first, as in PagesRecord; an earlier version wrote no
    ``rest_to``.
    """

    guest: GuestId
    rest: tuple[bytes, ...] = ()
    rest_affinities: tuple[AffinityRecord, ...] = ()
    rest_to: tuple[bytes, ...] = ()


Record = PagesRecord | AffinityRecord | SysctlRecord | SysctlReturnedRecord | GuestUndoneRecord

_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def frame(record: Record) -> bytes:
    """Return ``record`` as one frame."""
    return framed(msgspec.msgpack.encode(record))


def framed(payload: bytes) -> bytes:
    """Return one frame around ``payload``; JournalError if that is too long."""
    if len(payload) > _LONGEST:
        raise JournalError(
            f"a record of {len(payload)} bytes is too long: nothing is moved",
            hint="report it with what `vmplace show GUEST --json` prints",
        )
    return _HEAD.pack(_MARK, len(payload), zlib.crc32(payload)) + payload


def iter_frames(data: bytes, start: int = len(MAGIC)) -> Iterator[tuple[int, int, Record]]:
    """Yield (start, end, record) of every sound frame; gaps between them are damage."""
    offset = start
    while (offset := data.find(_MARK, offset)) >= 0:
        record, end = _parse_frame(data, offset)
        if record is None:
            offset += 1
            continue
        yield offset, end, record
        offset = end


def _parse_frame(data: bytes, offset: int) -> tuple[Record | None, int]:
    if len(data) - offset < _HEAD.size:
        return None, offset
    _, length, crc = _HEAD.unpack_from(data, offset)
    body = offset + _HEAD.size
    payload = data[body : body + length]
    if length > _LONGEST or len(payload) != length or zlib.crc32(payload) != crc:
        return None, offset
    try:
        return _decoder.decode(payload), body + length
    # msgspec lets bad UTF-8 through as Python's own error.
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None, offset
