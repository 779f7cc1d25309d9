"""What is expected of vCPUs that are tied to a node, reckoned by hand from the latencies of two nodes."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.policy.test_vcpu_ties import GIB, HOST, NPAGES, guest
from vmplace.agent.planning import planned
from vmplace.policy.forecast import UNCOUNTED, UNSEEN
from vmplace.policy.options import Option, Weighing
from vmplace.policy.plan import GuestView, Snapshot, VcpuMove
from vmplace.policy.planner_view import memory_of
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.policy.unneeded_copies import UnneededCopies
from vmplace.policy.vcpu_forecast import weighed_vcpus
from vmplace.topology.host import HostTopology, Node

LATENCY = memory_of(HOST).latency
MLP = 2.5
PER_US, KNOWN_S = 5.0, 3.0


def counted(view: GuestView) -> GuestView:
    return replace(view, dram_per_us=PER_US, known_s=KNOWN_S)


def tie(view: GuestView, nid: int, vcpus: tuple[int, ...] = (0, 1)) -> VcpuMove:
    cpus = {vcpu: HOST.node(nid).cpus for vcpu in vcpus}
    return VcpuMove(view.topology.name, cpus, (0, 1), nid, "test")


def weighing(view: GuestView, move: VcpuMove, *others: GuestView) -> Weighing:
    (one,) = weighed_vcpus(Snapshot(HOST, (view, *others)), (move,))
    assert one.weighing is not None
    return one.weighing


def chosen(view: GuestView, move: VcpuMove, *others: GuestView) -> Option:
    found = weighing(view, move, *others).chosen
    assert found is not None
    return found


def test_half_of_the_accesses_that_become_local_save_what_the_nodes_latencies_differ_by():
    view = counted(guest("g"))
    option = chosen(view, tie(view, 1))
    # Both vCPUs float, all memory is on node 1; a vCPU waits for MLP accesses at a time.
    saved_each = (LATENCY[0, 1] - LATENCY[1, 1]) / 2 / MLP / 2
    assert option.saved_ns == pytest.approx(PER_US * 1e6 * KNOWN_S * saved_each, rel=0.01)
    assert option.saved_share == pytest.approx(saved_each / (1000 / PER_US), rel=0.01)
    assert (option.way, option.nid, option.moved_bytes) == ("vcpus", 1, 0)


def test_vcpus_that_leave_their_memory_lose_as_much():
    view = counted(guest("g"))
    away, home = (chosen(view, tie(view, nid)) for nid in (0, 1))
    assert away.saved_ns == pytest.approx(-home.saved_ns, rel=0.01)


def test_each_vcpu_that_is_tied_begins_with_cold_caches_once():
    view = counted(guest("g"))
    assert chosen(view, tie(view, 1)).price_ns == pytest.approx(5e5)
    assert chosen(view, tie(view, 1, (0,))).price_ns == pytest.approx(2.5e5)


def test_where_nothing_counts_accesses_what_was_touched_counts_once_and_no_share_is_known():
    view = guest("g")
    found = weighing(view, tie(view, 1))
    assert found.chosen is not None and (found.unknown, found.ahead_s) == (UNCOUNTED, None)
    assert found.chosen.saved_share is None
    expected = NPAGES * (LATENCY[0, 1] - LATENCY[1, 1]) / 2 / MLP / 2
    assert found.chosen.saved_ns == pytest.approx(expected, rel=0.01)


def test_of_a_guest_that_touched_nothing_no_figure_is_known():
    untouched = replace(guest("g"), pages=None)
    assert weighing(untouched, tie(untouched, 1)) == Weighing("g", unknown=UNSEEN)


def test_on_a_host_whose_links_are_crowded_to_be_local_saves_more():
    """The other guest asks node 1 from node 0 for half of what the link carries."""
    rates = {(a, b): 40 * 10**9 if a == b else 700 * 10**6 for a in (0, 1) for b in (0, 1)}
    narrow = replace(HOST, bandwidths=rates)
    view = counted(guest("g"))
    other = counted(guest("other", cpus=(0, 1, 2, 3)))
    alone, beside = (
        weighed_vcpus(Snapshot(narrow, guests), (tie(view, 1),))[0].weighing
        for guests in ((view,), (view, other))
    )
    assert alone and alone.chosen and beside and beside.chosen
    assert beside.chosen.saved_ns > 1.05 * alone.chosen.saved_ns > 0


def test_the_plan_carries_it():
    snapshot = Snapshot(HOST, (counted(guest("g")),))
    plan = planned(AutoPolicy(), snapshot, lambda _, err: pytest.fail(str(err)), UnneededCopies())
    (move,) = plan.vcpu_moves
    assert move.weighing and move.weighing.chosen and move.weighing.chosen.saved_ns > 0


@pytest.mark.parametrize("seed", range(30))
def test_every_figure_is_a_number_whatever_was_seen(seed: int):
    chance = np.random.default_rng(seed)
    nids = (0, 1, 7)
    host = HostTopology((*HOST.nodes, Node(7, (), GIB, GIB)), {(a, b): 10 for a in nids for b in nids})
    views = []
    for number in range(int(chance.integers(1, 5))):
        view = guest(f"g{number}", int(chance.integers(1, 3)), on_node_1=int(chance.integers(0, NPAGES)))
        count = chance.choice([np.nan, 0.0, 1e-6, 5.0, 1e6])
        cpus = chance.choice([np.nan, 0.0, 1.5])
        views.append(
            replace(
                view,
                dram_per_us=None if np.isnan(count) else float(count),
                cpus=None if np.isnan(cpus) else float(cpus),
            )
        )
    for where in (HOST, host):
        moves = weighed_vcpus(Snapshot(where, tuple(views)), tuple(tie(one, 1, (0,)) for one in views))
        options = [one.weighing.chosen for one in moves if one.weighing and one.weighing.chosen]
        assert len(options) == (len(views) if where is HOST else 0)
        assert all(np.isfinite([one.price_ns, one.saved_ns]).all() for one in options)
