"""Where would a recorded guest's pages be if a policy had placed them, and what would that have done?"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from vmplace.agent.run_recorder import costs_of, shares_of
from vmplace.model.handover import Handover
from vmplace.model.metrics import TrafficMatrix, local_access_ratio
from vmplace.model.page_windows import absorbed, places_of
from vmplace.model.pages import GuestPages
from vmplace.model.prior_pages import prior_pages
from vmplace.model.traffic import estimated_traffic
from vmplace.policy.plan import GuestSettings, GuestView, Move
from vmplace.sampling.page_arrays import NodeIndexes
from vmplace.sampling.recording_frames import PlannedGuest
from vmplace.sampling.sample import RangeSample, SampleBatch
from vmplace.topology.guest import PAGE_BYTES, GuestTopology
from vmplace.topology.host import HostTopology


@dataclass(frozen=True)
class RehearsedGuest:
    """One guest of a recording: estimated LAR of its first and last window, bytes that would have moved.

    ``moved_bytes_by_nid``: these by the node that they go to.  ``saved_ns``: the latency that moves are
    expected to save, of those for which it was reckoned; None if for none.  ``other_reasons``: those of the
    others.
    """

    windows: int
    lar_before: float | None
    lar_after: float | None
    moved_bytes: int
    reasons: tuple[str, ...]
    moved_bytes_by_nid: Mapping[int, int] = field(default_factory=dict)
    saved_ns: float | None = None
    other_reasons: tuple[str, ...] = ()


@dataclass
class GuestReplay:
    """A guest as far as its recording was read, with its pages where the policy has put them."""

    topology: GuestTopology
    pages: GuestPages | None = None
    handover: Handover | None = None
    moved_to: dict[int, NodeIndexes] = field(default_factory=dict)
    moved_bytes: int = 0
    moved_bytes_by_nid: Counter[int] = field(default_factory=Counter)
    saved_ns: dict[str, float | None] = field(default_factory=dict)
    """By reason."""
    recorded: list[TrafficMatrix] = field(default_factory=list)
    placed: list[TrafficMatrix] = field(default_factory=list)

    def take(self, batch: SampleBatch, host: HostTopology) -> None:
        """Take a window in, with the pages where the policy has put them."""
        moved = replace(batch, ranges=tuple(self._where_put(sample) for sample in batch.ranges))
        before = self.pages
        if before is None and self.handover is not None:
            before = prior_pages(self.handover, host, self.topology, batch)
        self.pages = absorbed(before, moved)
        self.placed.append(estimated_traffic(host, self.topology, self.pages))
        # The same heat, the recorded nodes: what the host did itself is not the policy's merit.
        places = (places_of(sample) for sample in batch.ranges)
        still = replace(
            self.pages,
            ranges=tuple(replace(p, nodes=n) for p, n in zip(self.pages.ranges, places, strict=True)),
        )
        self.recorded.append(estimated_traffic(host, self.topology, still))

    def carry_out(self, move: Move, nids: tuple[int, ...]) -> None:
        """Note where a move's pages would be; pages on no node stay so."""
        index = {nid: i for i, nid in enumerate(nids)}
        wanted = np.array([index[nid] for nid in move.to_nid.tolist()], np.int8)
        for ram in self.topology.ram:
            mine = (move.hva >= ram.hva) & (move.hva < ram.hva + ram.size_bytes)
            if not mine.any():
                continue
            put = self.moved_to.setdefault(ram.hva, np.full(ram.npages, -1, np.int8))
            first = ((move.hva[mine] - np.uint64(ram.hva)) // np.uint64(PAGE_BYTES)).astype(np.int64)
            for at, count, nid in zip(first.tolist(), move.npages[mine].tolist(), wanted[mine], strict=True):
                put[at : at + count] = nid
        self.tell(move)

    def tell(self, move: Move) -> None:
        """Note what was decided."""
        self.moved_bytes += move.size_bytes
        for nid in np.unique(move.to_nid).tolist():
            self.moved_bytes_by_nid[nid] += (
                int(move.npages[move.to_nid == nid].sum(dtype=np.int64)) * PAGE_BYTES
            )
        saved = self.saved_ns.get(move.reason)
        self.saved_ns[move.reason] = saved if move.saved_ns is None else (saved or 0.0) + move.saved_ns

    def view(self, settings: GuestSettings, planned: PlannedGuest | None) -> GuestView:
        """Return what the policy may know; ``planned``: with what the agent planned for it, if recorded."""
        view = GuestView(self.topology, self.pages, settings)
        if planned is None:
            return view
        return replace(
            view,
            dram_per_us=planned.dram_per_us,
            cpus=planned.cpus,
            known_s=planned.known_s,
            costs=costs_of(planned),
            may_change=planned.may_change,
            lar=planned.lar,
            node_shares=shares_of(planned),
        )

    def result(self) -> RehearsedGuest:
        """Return what came of all windows so far."""
        saved = [one for one in self.saved_ns.values() if one is not None]
        return RehearsedGuest(
            len(self.placed),
            local_access_ratio(self.recorded[0]) if self.recorded else None,
            local_access_ratio(self.placed[-1]) if self.placed else None,
            self.moved_bytes,
            tuple(self.saved_ns),
            dict(sorted(self.moved_bytes_by_nid.items())),
            sum(saved) if saved else None,
            tuple(reason for reason, one in self.saved_ns.items() if one is None),
        )

    def _where_put(self, sample: RangeSample) -> RangeSample:
        put = self.moved_to.get(sample.ram.hva)
        if put is None or len(put) != len(sample.node_index):
            return sample
        nodes = np.where((put >= 0) & (sample.node_index >= 0), put, sample.node_index)
        return replace(sample, node_index=nodes.astype(np.int8), nodes=None)
