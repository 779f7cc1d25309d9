"""Layouts of vCPUs, against hosts on which a person can tell the best one."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.policy.test_host_plan import guest, two_nodes
from vmplace.policy.host_view import Counters, GuestEvidence, HostView, Room
from vmplace.policy.vcpu_moves import vcpu_shift
from vmplace.policy.vcpu_plan import SETTLE_NS, VcpuPlanner, better_layout, gathered, worth_gathering

FOREVER = 1e15
MS = 1e6


def spread(
    name: str = "g", *, vcpus: int = 4, written: bool = True, slow: float | None = None
) -> GuestEvidence:
    """A guest with half of its vCPUs on either node, which all write to pages on both."""
    pages = replace(guest([[9, 9], [9, 9]] * 200, written=written), name=name, slowdown_bound=slow)
    pages.node[::2] = 1
    return replace(pages, vcpu_node=np.arange(vcpus) * 2 // vcpus, may_tie=np.ones(2, bool))


def view(
    *guests: GuestEvidence, cpus: float = 4, controllers=(1.0, 1.0), move_ns=0.0, now_ms=0.0
) -> HostView:
    system = two_nodes(controllers, 1.0)
    return HostView(system, np.full(2, 1e9), guests, move_ns, now_ns=now_ms * MS, cpus=np.full(2, cpus))


def test_guests_that_share_their_pages_are_gathered_each_on_a_node_of_its_own():
    layout = better_layout(view(spread("a"), spread("b")), FOREVER)
    assert layout is not None
    assert sorted(set(one.tolist()).pop() for one in layout) == [0, 1]
    assert all(len(set(one.tolist())) == 1 for one in layout)


def test_a_guest_that_needs_the_bandwidth_of_both_nodes_stays_spread():
    assert better_layout(view(spread(), controllers=(0.01, 0.01)), FOREVER) is None


def test_a_layout_is_chosen_only_once_it_pays_for_the_memory_that_must_follow():
    host = view(spread("a"), spread("b"), move_ns=1e6)
    assert better_layout(host, 1 * MS) is None
    assert better_layout(host, 10_000 * MS) is not None


def test_who_is_too_young_to_pay_for_itself_is_not_gathered_for_others_gains():
    """Both together would gain more than both cost; the young one may end before it has gained anything."""
    host = view(spread("old"), spread("young"), move_ns=1e5, cpus=8)
    long_ns, short_ns = 1000 * MS, 1 * MS
    assert worth_gathering(host, np.array([long_ns, long_ns])).keys() == {"old", "young"}
    assert worth_gathering(host, np.array([long_ns, short_ns])).keys() == {"old"}
    assert worth_gathering(host, np.array([short_ns, short_ns])) == {}


def test_who_fits_on_no_node_leaves_the_crowded_one():
    wide = replace(spread("wide", vcpus=6), vcpu_node=np.array([0, 0, 0, 0, 0, 1]))
    (layout,), there = gathered(view(wide))
    assert not there
    assert np.bincount(layout).max() <= 4


def test_protected_guests_stay():
    (layout,), there = gathered(view(spread(slow=0.005)))
    assert not there
    assert layout.tolist() == [0, 0, 1, 1]


def test_shift_tells_where_the_accesses_of_each_node_come_from_then():
    moved = vcpu_shift(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), 3)
    assert moved.tolist() == [[0.5, 0.5, 0], [0, 1, 0], [0, 0, 1]]


def counted(pages: GuestEvidence, rate: float, vcpu_node: list[int] | None = None) -> GuestEvidence:
    counters = Counters(np.full((2, 2), rate / 4), 150.0, 0.5, 0.5, 0.0)
    nodes = pages.vcpu_node if vcpu_node is None else np.array(vcpu_node)
    return replace(pages, counters=counters, vcpu_node=nodes)


def asked(
    planner: VcpuPlanner, rate: float, now_ms: float, vcpu_node: list[int] | None = None
) -> list[int] | None:
    """Return where the planner sends the vCPUs of a guest with ``rate`` accesses per ns; None: nowhere."""
    layout = planner.plan(view(counted(spread(), rate, vcpu_node), now_ms=now_ms))
    return None if layout is None else layout[0].tolist()


def test_a_layout_in_which_the_same_work_takes_longer_is_taken_back_and_the_next_one_waits():
    planner, wait = VcpuPlanner(), 1.01 * SETTLE_NS / MS
    assert asked(planner, 0.02, 0) is None
    there = asked(planner, 0.02, wait)
    assert there in ([0] * 4, [1] * 4)
    assert asked(planner, 0.01, 2 * wait, there) == [0, 0, 1, 1]
    assert asked(planner, 0.02, 3 * wait) is None
    assert asked(planner, 0.02, 5 * wait) == there


def test_a_layout_in_which_the_same_work_is_done_faster_is_kept():
    planner, wait = VcpuPlanner(), 1.01 * SETTLE_NS / MS
    asked(planner, 0.02, 0)
    there = asked(planner, 0.02, wait)
    assert asked(planner, 0.03, 2 * wait, there) is None


def test_nobody_is_gathered_where_there_is_no_room_for_what_it_touches():
    host = view(spread())
    for free, there in ((200.0, {"g"}), (199.0, set())):
        room = Room(np.inf, np.full(2, free), np.zeros(2))
        assert gathered(replace(host, room=room))[1] == there


@pytest.mark.parametrize(("controller", "chosen"), [(0.1, {"g"}), (0.06, set())])
def test_nobody_is_gathered_at_the_cost_of_a_guest_that_is_there_already(
    controller: float, chosen: set[str]
) -> None:
    """One saves twelve percent of its time at least; the other one loses 0.3, or 1.5."""
    beside = replace(guest([[9, 0]] * 400, parallelism=2.0), name="beside", vcpu_node=np.zeros(2, int))
    host = view(spread(), beside, controllers=(controller, 1e-3))
    host = replace(host, cpus=None, cores=np.array([8.0, 0.0]))
    assert set(worth_gathering(host, np.full(2, FOREVER))) == chosen
