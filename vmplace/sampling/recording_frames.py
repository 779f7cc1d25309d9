"""What stands in the JSON heads of a recording's frames?  docs/recording.md tells it field by field."""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from vmplace.sampling.page_frames import block_count
from vmplace.sampling.sample import SampleBatch, SourceSight
from vmplace.topology.guest import GuestTopology, RamRange
from vmplace.topology.host import HostTopology, Node

Pairs: TypeAlias = tuple[tuple[int, int, int], ...]
"""A mapping (from nid, to nid) -> value, as (from, to, value): JSON has no such keys."""


class HostFrame(msgspec.Struct, frozen=True, tag_field="kind", tag="host"):
    """The host as it was when the recording began."""

    nodes: tuple[Node, ...]
    distances: Pairs
    bandwidths: Pairs = ()
    latencies: Pairs = ()
    smt_siblings: dict[int, tuple[int, ...]] = {}


class GuestFrame(msgspec.Struct, frozen=True, tag_field="kind", tag="guest"):
    """One guest, before its first batch and whenever it changed."""

    guest: GuestTopology


class BatchFrame(msgspec.Struct, frozen=True, tag_field="kind", tag="batch"):
    """One window of one guest; the arrays of its ranges are the frame's body."""

    guest: str
    source: str
    sight: SourceSight
    started_ns: int
    ended_ns: int
    nids: tuple[int, ...]
    ranges: tuple[RamRange, ...]


Frame: TypeAlias = HostFrame | GuestFrame | BatchFrame


def host_frame(host: HostTopology) -> HostFrame:
    """Return the frame that tells ``host``."""
    return HostFrame(
        host.nodes,
        _pairs(host.distances),
        _pairs(host.bandwidths),
        _pairs(host.latencies),
        dict(host.smt_siblings),
    )


def host_of(frame: HostFrame) -> HostTopology:
    """Return the host that ``frame`` tells."""
    return HostTopology(
        frame.nodes,
        _mapping(frame.distances),
        frame.smt_siblings,
        _mapping(frame.bandwidths),
        _mapping(frame.latencies),
    )


def batch_frame(batch: SampleBatch) -> BatchFrame:
    """Return the head of the frame that tells ``batch``."""
    rams = tuple(sample.ram for sample in batch.ranges)
    return BatchFrame(
        batch.guest, batch.source, batch.sight, batch.started_ns, batch.ended_ns, batch.nids, rams
    )


def frame_body_bytes(frame: BatchFrame) -> int:
    """Return how long the arrays of a batch are: two bytes per page, one per 2 MiB block."""
    return sum(2 * ram.npages + block_count(ram) for ram in frame.ranges)


def _pairs(mapping: Mapping[tuple[int, int], int]) -> Pairs:
    return tuple((a, b, value) for (a, b), value in sorted(mapping.items()))


def _mapping(pairs: Pairs) -> dict[tuple[int, int], int]:
    return {(a, b): value for a, b, value in pairs}
