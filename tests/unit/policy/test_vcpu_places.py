"""Where vCPUs run that may run on several nodes, and to which of them they may be tied."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.policy.tied_guests import HOST, ON_1, view
from vmplace.policy.gather_trial import FRESH_S
from vmplace.policy.plan import GuestSettings, GuestView
from vmplace.policy.planner_view import _only_from
from vmplace.policy.vcpu_places import free_cores, may_tie, vcpu_nodes
from vmplace.topology.guest import Movability


def test_vcpus_that_float_are_where_touches_come_from() -> None:
    assert vcpu_nodes(HOST, view(vcpus=4).topology, np.array([[30.0, 10.0]])).tolist() == [0, 0, 0, 1]
    assert vcpu_nodes(HOST, view(vcpus=4).topology, np.zeros((1, 2))).tolist() == [0, 0, 1, 1]
    assert vcpu_nodes(HOST, view(ON_1).topology, np.array([[30.0, 0.0]])).tolist() == [1, 1]


def test_accesses_come_from_where_vcpus_may_run_by_now() -> None:
    heat = np.array([[8.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
    for worker, expected in (
        ([False, True, False], [[0, 10, 0], [0, 0, 0]]),
        ([True, True, False], [[9, 1, 0], [0, 0, 0]]),
        ([True, True, True], [[8, 0, 2], [0, 0, 0]]),
        ([False, False, False], [[8, 0, 2], [0, 0, 0]]),
    ):
        some = heat.copy()
        _only_from(np.array(worker), some)
        assert some.tolist() == expected


@pytest.mark.parametrize(
    ("guest", "nodes"),
    [
        (view(), [True, True]),
        (view(settings=GuestSettings(allowed_nids=(1,))), [False, True]),
        (view((0, 1, 4)), [False, False]),
        (view((0, 4, 5, 6, 7)), [False, True]),
        (view(ON_1), None),
        (view(settings=GuestSettings(gathers=False)), None),
        (view(settings=GuestSettings(moves=False)), None),
        (view(settings=GuestSettings(huge_pages=False)), None),
        (view(settings=GuestSettings(place_vcpus=True)), None),
        (view(settings=GuestSettings(protected=True)), None),
        (replace(view(), may_change=False), None),
        (replace(view(), dram_per_us=None), None),
        (view(costs=[1.0] * 3), None),
        (view(until_s=99.9 - FRESH_S), None),
        (view(vcpus=0), None),
    ],
)
def test_vcpus_may_be_tied_if_what_comes_of_it_is_allowed_and_can_be_judged(
    guest: GuestView, nodes: list[bool] | None
) -> None:
    found = may_tie(HOST, guest, 100.0)
    assert (None if found is None else found.tolist()) == nodes


def test_memory_that_cannot_follow_keeps_vcpus_where_they_may_run() -> None:
    fixed = view()
    ram = tuple(replace(one, movability=Movability.PINNED) for one in fixed.topology.ram)
    assert may_tie(HOST, replace(fixed, topology=replace(fixed.topology, ram=ram)), 100.0) is None


def test_a_node_has_the_physical_cores_that_others_leave() -> None:
    pairs = {cpu: (cpu & ~1, cpu | 1) for cpu in range(8)}
    host = replace(HOST, smt_siblings=pairs)
    assert free_cores(HOST, []).tolist() == [4.0, 4.0]
    assert free_cores(host, [view((0, 1)), view(vcpus=1)]).tolist() == [0.0, 1.5]
