"""Which pages had copies at a decision, and of which had KVM refused them?  The body of the decision's frame.

One zlib stream.  For each guest of the frame, of what changed since the frame before: ``copied_blocks``
numbers of 2 MiB blocks (i64), ascending, and a bit for each of their pages; then the same of
``refused_blocks``.  A frame that does not name a guest ends what was known of it.
"""

import zlib
from collections.abc import Mapping
from typing import TypeAlias

import msgspec
import numpy as np

from vmplace.errors import OutsideError, RecordingError
from vmplace.outside import within
from vmplace.sampling.block_rows import BIT_ROW
from vmplace.sampling.page_set import PageSet
from vmplace.sampling.recording_frames import MOST_ADDRESS, MOST_BODY_BYTES, PlanFrame
from vmplace.topology.guest import HUGE_BYTES

KnownCopies: TypeAlias = tuple[PageSet | None, PageSet | None]
"""Pages that have copies, and those that KVM refused; None: nobody knows."""
NOBODY_KNOWS = -1
UNKNOWN: KnownCopies = (None, None)
ROW_BYTES = 8 + BIT_ROW


class RecordedPlan(PlanFrame, frozen=True, kw_only=True):
    """A decision as it is read, with the ``copies`` of its guests; it is written as a ``PlanFrame``."""

    copies: dict[str, KnownCopies]


def with_copies(
    frame: PlanFrame, copies: Mapping[str, KnownCopies], before: Mapping[str, KnownCopies]
) -> tuple[PlanFrame, bytes]:
    """Return the frame, and its body; ``before``: those of the frame before.  Raises RecordingError."""
    guests, parts = [], list[PageSet]()
    for guest in frame.guests:
        counts: list[int | None] = [None, None]
        pairs = zip(copies.get(guest.name, UNKNOWN), before.get(guest.name, UNKNOWN), strict=True)
        for number, (now, last) in enumerate(pairs):
            if now is None:
                counts[number] = None if last is None else NOBODY_KNOWS
            elif not now.is_same(last):
                counts[number] = len(now.blocks)
                parts.append(now)
        guests.append(msgspec.structs.replace(guest, copied_blocks=counts[0], refused_blocks=counts[1]))
    if sum(len(one.blocks) for one in parts) * ROW_BYTES > MOST_BODY_BYTES:
        raise RecordingError("copies of too many pages for one frame", hint="record with fewer guests")
    raw = b"".join(array.tobytes() for one in parts for array in (one.blocks, one.bits))
    body = zlib.compress(raw, 1) if raw else b""
    return msgspec.structs.replace(frame, guests=tuple(guests)), body


def recorded_plan(frame: PlanFrame, body: bytes, before: Mapping[str, KnownCopies]) -> RecordedPlan:
    """Return what was written so; raises OutsideError, or zlib.error, for what was not."""
    counts = [count or 0 for one in frame.guests for count in (one.copied_blocks, one.refused_blocks)]
    for count in counts:
        within(count, NOBODY_KNOWS, MOST_BODY_BYTES, "the number of blocks with copies")
    wanted = within(
        sum(max(one, 0) for one in counts) * ROW_BYTES, 0, MOST_BODY_BYTES, "the size of a decision"
    )
    raw = zlib.decompressobj().decompress(body, wanted + 1) if wanted else b""
    if len(raw) != wanted:
        raise OutsideError(f"a decision without the {wanted} bytes that its guests' copies need")
    at, copies = 0, dict[str, KnownCopies]()
    for guest in frame.guests:
        copied, refused = before.get(guest.name, UNKNOWN)
        copied, at = _read(raw, at, guest.copied_blocks, copied)
        refused, at = _read(raw, at, guest.refused_blocks, refused)
        copies[guest.name] = copied, refused
    return RecordedPlan(*msgspec.structs.astuple(frame), copies=copies)


def _read(raw: bytes, at: int, count: int | None, before: PageSet | None) -> tuple[PageSet | None, int]:
    """Return a set of so many blocks from ``at`` on, and where it ends."""
    if count is None or count == NOBODY_KNOWS:
        return before if count is None else None, at
    rows, end = at + 8 * count, at + ROW_BYTES * count
    # Numbers need not begin at a whole word.
    blocks = np.frombuffer(raw[at:rows], np.int64)
    bits = np.frombuffer(raw[rows:end], np.uint8).reshape(count, BIT_ROW)
    if count and not 0 <= blocks[0] <= blocks[-1] < MOST_ADDRESS // HUGE_BYTES:
        raise OutsideError("copies of pages at no address")
    if (np.diff(blocks) <= 0).any() or not bits.any(axis=1).all():
        raise OutsideError("copies of pages that are not listed block by block")
    return PageSet(blocks, bits), end
