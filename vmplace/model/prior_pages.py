"""Page statistics of a guest that has just arrived, from the summary of its last host.

They are as if the summary's frames had been touched in the last windows, by the nodes on which their vCPUs
run here.  New windows replace them as they replace any others: after HISTORY_WINDOWS nothing of them is left,
and touches by other nodes count from the first window on.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from vmplace.model.handover import Handover, groups_of
from vmplace.model.page_windows import places_of
from vmplace.model.pages import HISTORY_WINDOWS, GuestPages, RangePages, SeenWindow
from vmplace.sampling.block_rows import BIT_ROW, BYTE_ROW, BlockRows, chunks
from vmplace.sampling.page_arrays import Bools, Bytes, Indexes
from vmplace.sampling.page_frames import block_count, block_offset
from vmplace.sampling.sample import RangeSample, SampleBatch
from vmplace.topology.guest import GuestTopology, RamRange
from vmplace.topology.host import HostTopology

PRIOR_WINDOWS = HISTORY_WINDOWS - 1
CHUNK_BLOCKS = 1 << 9
MOST_AGE_S = 3600.0
"""What is older says nothing of a guest now; a clock that is so far off tells no age."""
HALF_LIFE_S = 600.0
MOST_KNOWN_S = 600.0

Numbers = npt.NDArray[np.int64]


def known_for_s(handover: Handover, unix_s: float) -> float:
    """Return for how many seconds its pattern counts as known: less the older it is, 0 for not at all."""
    age_s = abs(unix_s - handover.unix_s)
    if age_s > MOST_AGE_S:
        return 0.0
    return float(min(handover.known_s, MOST_KNOWN_S) * 2.0 ** (-age_s / HALF_LIFE_S))


def prior_pages(
    handover: Handover, host: HostTopology, guest: GuestTopology, batch: SampleBatch
) -> GuestPages | None:
    """Return the statistics that the handover stands for before ``batch``, the first window.

    None where nothing is known, the source does not see nodes, or no vCPUs' node is known.
    """
    nodes = _nodes_of_groups(handover, host, guest, batch.nids)
    if (
        not nodes
        or not handover.runs
        or batch.coverage.sampled
        or any(one.by_node is None for one in batch.ranges)
    ):
        return None
    runs = _Runs(handover, nodes)
    ranges = tuple(_range(one, runs, len(batch.nids)) for one in batch.ranges)
    return GuestPages(batch.guest, batch.nids, PRIOR_WINDOWS, ranges)


def _nodes_of_groups(
    handover: Handover, host: HostTopology, guest: GuestTopology, nids: tuple[int, ...]
) -> dict[int, int]:
    """Return the index of the node on which most vCPUs of each group run here, where there is one."""
    nid_of = {vcpu: nid for nid, vcpus in groups_of(host, guest).items() for vcpu in vcpus}
    found = {}
    for number, group in enumerate(handover.groups):
        here = [nid_of[vcpu] for vcpu in group if vcpu in nid_of]
        most = max(sorted(set(here)), key=here.count, default=None)
        if most in nids and 2 * here.count(most) > len(group):
            found[number] = nids.index(most)
    return found


class _Runs:
    """The runs of a handover: [R] first frame and end, a bit for each node that uses it, if written, rate."""

    def __init__(self, handover: Handover, nodes: dict[int, int]) -> None:
        gaps = np.array([run.gap for run in handover.runs], np.int64)
        sizes = np.array([run.npages for run in handover.runs], np.int64)
        self.end: Numbers = np.cumsum(gaps + sizes)
        self.start: Numbers = self.end - sizes
        self.users = np.array(
            [
                sum({1 << at for number, at in nodes.items() if run.users >> number & 1})
                for run in handover.runs
            ],
            object,
        )
        self.written = np.array([run.written for run in handover.runs], np.bool_)
        self.rate = np.array([run.rate for run in handover.runs], np.uint8)

    def touched_blocks(self, ram: RamRange) -> Indexes:
        """Return which blocks of the range a run has a part of."""
        if ram.base_gfn is None:
            return np.zeros(0, np.intp)
        before = ram.base_gfn - block_offset(ram)
        first = np.maximum(self.start - before, 0) // BYTE_ROW
        last = np.minimum((self.end - 1 - before) // BYTE_ROW, block_count(ram) - 1)
        marks = np.zeros(block_count(ram) + 1, np.int32)
        inside = (first <= last) & (self.end > ram.base_gfn)
        np.add.at(marks, first[inside], 1)
        np.add.at(marks, last[inside] + 1, -1)
        return np.flatnonzero(np.cumsum(marks[:-1]) > 0)

    def of_blocks(self, ram: RamRange, blocks: Indexes) -> tuple[Indexes, Bools]:
        """Return the run of each block's first page [n], and whether all pages are in that one."""
        first, begins = self._runs_of(ram, blocks * BYTE_ROW - block_offset(ram))
        last, ends = self._runs_of(ram, (blocks + 1) * BYTE_ROW - 1 - block_offset(ram))
        return first, begins & ends & (first == last)

    def of_pages(self, ram: RamRange, blocks: Indexes) -> tuple[Indexes, Bools]:
        """Return the run of each page of the blocks [n, 512], and whether it is in one and in the range."""
        return self._runs_of(ram, blocks[:, None] * BYTE_ROW - block_offset(ram) + np.arange(BYTE_ROW))

    def _runs_of(self, ram: RamRange, page: Indexes) -> tuple[Indexes, Bools]:
        gfn = page + (ram.base_gfn or 0)
        run = np.searchsorted(self.start, gfn, side="right") - 1
        there = (run >= 0) & (page >= 0) & (page < ram.npages)
        there &= gfn < self.end[np.maximum(run, 0)]
        return np.maximum(run, 0), there


def _range(sample: RangeSample, runs: _Runs, nodes: int) -> RangePages:
    ram, blocks = sample.ram, block_count(sample.ram)
    used = runs.touched_blocks(ram) if len(runs.start) else np.zeros(0, np.intp)
    by_node = [
        np.array([users >> node & 1 for users in runs.users.tolist()], np.bool_) for node in range(nodes)
    ]
    # The last plane is of nodes that are not known.
    planes = [*by_node, np.zeros(len(runs.start), np.bool_)]
    seen = SeenWindow(
        _bits(ram, runs, used, planes),
        _bits(ram, runs, used, [runs.written]),
    )
    rate = None
    if sample.by_node is not None and sample.by_node.early:
        codes = [np.where(mine, runs.rate, np.uint8(0)) for mine in by_node]
        rate = BlockRows.built(nodes * blocks, BYTE_ROW, _pages(ram, runs, used, codes))
    return RangePages(ram, places_of(sample), sample.huge, (seen,) * PRIOR_WINDOWS, PRIOR_WINDOWS, rate=rate)


def _bits(ram: RamRange, runs: _Runs, used: Indexes, of_runs: list[Bools]) -> BlockRows:
    """Return rows of bits, a plane for each of ``of_runs[R]``."""
    values = [one.astype(np.uint8) for one in of_runs]
    rows = (
        (some, np.packbits(pages, axis=1, bitorder="little"))
        for some, pages in _pages(ram, runs, used, values)
    )
    return BlockRows.built(len(of_runs) * block_count(ram), BIT_ROW, rows)


def _pages(
    ram: RamRange, runs: _Runs, used: Indexes, of_runs: list[Bytes]
) -> Iterator[tuple[Indexes, Bytes]]:
    """Yield rows of a byte per page, plane by plane: what holds for the page's run, 0 without one."""
    for plane, values in enumerate(of_runs):
        for some in chunks(used, CHUNK_BLOCKS):
            rows = np.empty((len(some), BYTE_ROW), np.uint8)
            run, whole = runs.of_blocks(ram, some)
            rows[whole] = values[run[whole]][:, None]
            of_page, there = runs.of_pages(ram, some[~whole])
            rows[~whole] = np.where(there, values[of_page], np.uint8(0))
            yield plane * block_count(ram) + some, rows
