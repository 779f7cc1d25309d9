"""The result of a source: which pages of a guest were touched in one window."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vmplace.sampling.block_rows import BlockRows
from vmplace.sampling.page_arrays import Bits, Bools, Bytes, Indexes, NodeIndexes, unpacked
from vmplace.sampling.served import ServedAccesses
from vmplace.topology.guest import RamRange


@dataclass(frozen=True)
class SourceCoverage:
    """What a source can see at all; a sample claims nothing beyond it.

    ``sampled``: it sees some touches only, so that a page it did not see may have been touched all the same.
    """

    accessed: bool = True
    written: bool = False
    accessor_nid: bool = False
    accessor_vcpu: bool = False
    sampled: bool = False


@dataclass(frozen=True)
class EarlyBits:
    """Which bits were set ``after_ns`` the window had begun: ``accessed`` as in ``NodeBits``."""

    after_ns: int
    accessed: Bits


@dataclass(frozen=True)
class NodeBits:
    """Which nodes touched the pages of a range: bitmaps, page i is bit i % 64 of word i // 64.

    A row for each of the batch's ``nids``, and a last one for vCPUs whose node is not known.  ``written`` is
    the same, or one row for all of them; None where the source could not tell.  ``early``: what was read
    before the window's end, in that order.
    """

    accessed: Bits
    written: Bits | None
    early: tuple[EarlyBits, ...] = ()

    def anywhere(self, npages: int) -> Bytes:
        """Return 1 for each page that any node touched."""
        return unpacked(np.bitwise_or.reduce(self.accessed, axis=0), npages)


@dataclass(frozen=True)
class VcpuHits:
    """Sampled accesses to the pages of a range, an entry each.

    ``pages`` are exact 4 KiB pages also where a huge page is mapped.  ``vcpus``: ids as KVM knows them.
    """

    pages: Indexes
    vcpus: Indexes
    written: Bools


@dataclass(frozen=True)
class NodeHits:
    """Counted accesses to the pages of a range, an entry each: ``rows`` are the nodes', as in ``NodeBits``.

    ``pages`` are exact 4 KiB pages also where a huge page is mapped.
    """

    pages: Indexes
    rows: Indexes

    @classmethod
    def joined(cls, parts: Sequence["NodeHits"]) -> "NodeHits":
        """Return all of them together; there must be some."""
        return cls(np.concatenate([one.pages for one in parts]), np.concatenate([one.rows for one in parts]))


@dataclass(frozen=True)
class RangeSample:
    """One RAM range in one window; arrays hold one entry per 4 KiB page, page i at ``ram.hva + 4096 * i``.

    ``accessed``: 1 where the page was touched.  A huge page's answer is repeated for its small pages.
    ``node_index``: index of the page's present node in the batch's ``nids``, -1 = not present or unknown.
    ``huge``: one entry per 2 MiB block, counted from ``ram.hva`` rounded down to 2 MiB: 1 where one huge
    page backs the block, which then moves whole.
    ``nodes``: ``node_index`` by block, from a source that keeps it so.
    ``by_node``: who touched the pages, None from a source that does not see nodes.  ``by_vcpu``: the same of
    vCPUs, for a sample of the accesses.  ``counted``: a sample of the accesses in proportion to how many
    there were.  ``text``: pages of which code was seen to be fetched; None from a source that cannot tell.
    """

    ram: RamRange
    accessed: Bytes
    node_index: NodeIndexes
    huge: Bytes
    by_node: NodeBits | None = None
    by_vcpu: VcpuHits | None = None
    counted: NodeHits | None = None
    text: Indexes | None = None
    nodes: BlockRows | None = None


@dataclass(frozen=True)
class SampleBatch:
    """All ranges of one guest over one window, times in ns of CLOCK_MONOTONIC.

    ``served``: what served the guest's accesses; None from a source that cannot tell.
    """

    guest: str
    source: str
    coverage: SourceCoverage
    started_ns: int
    ended_ns: int
    nids: tuple[int, ...]
    ranges: tuple[RangeSample, ...]
    served: ServedAccesses | None = None
