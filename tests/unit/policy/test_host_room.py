"""What a plan may use of a host is used once."""

from dataclasses import replace

from tests.unit.model.known_pages import with_history
from tests.unit.policy.views import GIB, HVA, NPAGES, bits, guest_view, host, ram
from vmplace.policy.plan import GuestView, Snapshot
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.topology.guest import PAGE_BYTES
from vmplace.topology.host import HostTopology

S = 1e9
RESERVE_BYTES = 4 * GIB * 3 // 100


def with_free(*free_bytes: int) -> HostTopology:
    nodes = tuple(replace(n, free_bytes=free) for n, free in zip(host().nodes, free_bytes, strict=True))
    return replace(host(), nodes=nodes)


def reader(ranges: int) -> GuestView:
    """Return a guest with its memory on node 0, which vCPUs on all nodes read."""
    window = bits(dict.fromkeys(range(4), range(NPAGES)))
    rams = [replace(ram(hva=HVA + i * NPAGES * PAGE_BYTES), cell=None) for i in range(ranges)]
    seen = guest_view([0, 2, 4, 6] * 2, 0, ranges=rams)
    assert seen.pages is not None
    pages = tuple(with_history(one, *[window] * 4) for one in seen.pages.ranges)
    return replace(seen, pages=replace(seen.pages, ranges=pages), dram_per_us=200.0, cpus=4.0)


def copies_through(free_bytes: int, windows: int = 20) -> list[int]:
    """Return the bytes of copies on each of nodes 1 to 3 after each window; all are made as planned."""
    policy, made, after = AutoPolicy(), 0, []
    guest = reader(8)
    for now_s in range(3601, 3601 + windows):
        on = with_free(free_bytes, *[free_bytes - made] * 3)
        plan = policy(Snapshot(on, (replace(guest, known_s=now_s),), 256 << 20, 0.25, True, now_ns=now_s * S))
        made = sum(one.pages for one in plan.replications) * PAGE_BYTES
        after.append(made)
    return after


def test_copies_take_their_share_of_free_memory_once_not_in_each_window() -> None:
    free_bytes = RESERVE_BYTES * 2
    after = copies_through(free_bytes)
    assert 0.2 * free_bytes < after[-1] <= 0.25 * free_bytes


def test_copies_leave_the_reserve() -> None:
    assert copies_through(RESERVE_BYTES, 3) == [0, 0, 0]
    assert max(copies_through(RESERVE_BYTES + (8 << 20))) <= 8 << 20
