"""A host of narrow controllers, and guests whose pages go where plans send them, window by window."""

from dataclasses import dataclass, field, replace

import numpy as np

from tests.unit.model.known_pages import with_history
from tests.unit.policy.views import HVA, NPAGES, bits, guest_view, host
from vmplace.policy.plan import GuestView, PlacementPlan, Snapshot
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.topology.host import HostTopology

BUSY, CALM = 90.0, 0.2
"""MB/s, of a controller's 100."""


def narrow_host() -> HostTopology:
    return replace(host(), bandwidths={(a, b): 10**8 for a in host().nids for b in host().nids})


def sampled(
    name: str, cpus: list[int], node: np.ndarray, mb_per_s: float, nid: int = 0, **more: object
) -> GuestView:
    """Return a guest on node ``nid`` whose pages lie at ``node``, all of them sampled in each window."""
    seen = guest_view(cpus, node)
    assert seen.pages
    history = [bits({nid: range(NPAGES)})] * 4
    ranges = tuple(replace(with_history(one, *history), sampled=True) for one in seen.pages.ranges)
    topology, pages = replace(seen.topology, name=name), replace(seen.pages, ranges=ranges, guest=name)
    return replace(seen, topology=topology, pages=pages, dram_per_us=mb_per_s / 64, cpus=4.0, **more)  # type: ignore[arg-type]


@dataclass
class Spread:
    """Guests whose pages go where plans send them: "a" runs on node 0, "b" on node 1."""

    policy: AutoPolicy = field(default_factory=AutoPolicy)
    node: dict[str, np.ndarray] = field(default_factory=lambda: {"a": np.zeros(NPAGES, int)})
    now_s: int = 0

    def guest(self, name: str, mb_per_s: float) -> GuestView:
        """Return the guest as it is seen now."""
        nid = "ab".index(name)
        cpus = [2 * nid, 2 * nid + 1] * 2
        return sampled(name, cpus, self.node[name], mb_per_s, nid, known_s=float(self.now_s))

    def window(self, *guests: GuestView) -> PlacementPlan:
        """Let a window pass; what is planned is done."""
        self.now_s += 1
        plan = self.policy(Snapshot(narrow_host(), guests, None, 0, True, now_ns=self.now_s * 1e9))
        for move in plan.moves:
            self.node[move.guest][((move.hva - HVA) // 4096).astype(int)] = move.to_nid
        return plan

    def busy(self, seconds: int = 15) -> "Spread":
        """Let "a" fill its controller."""
        for _ in range(seconds):
            self.window(self.guest("a", BUSY))
        return self

    def away(self, name: str = "a") -> int:
        """Return how many pages do not lie on the guest's own node."""
        return int((self.node[name] != "ab".index(name)).sum())
