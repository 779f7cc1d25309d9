"""vCPUs that may run anywhere go to the cores next to their memory, as long as there are cores."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.model.known_pages import known_pages
from vmplace.model.pages import GuestPages
from vmplace.policy import home
from vmplace.policy.plan import GuestSettings, GuestView, Mode, Snapshot
from vmplace.policy.vcpu_ties import plan_vcpus, with_vcpus
from vmplace.topology.guest import GuestTopology, Movability, RamRange, Vcpu
from vmplace.topology.host import HostTopology, Node

GIB = 1 << 30
# Two nodes of two cores with two threads each.
SIBLINGS = {cpu: tuple(sorted((cpu, cpu ^ 1))) for cpu in range(8)}
HOST = HostTopology(
    (Node(0, (0, 1, 2, 3), 4 * GIB, 3 * GIB), Node(1, (4, 5, 6, 7), 4 * GIB, 3 * GIB)),
    {(a, b): 10 if a == b else 20 for a in (0, 1) for b in (0, 1)},
    SIBLINGS,
)
ANYWHERE = tuple(range(8))
NPAGES = 1000
PLACE = GuestSettings(place_vcpus=True)


def guest(
    name: str,
    vcpus: int = 2,
    *,
    on_node_1: int = NPAGES,
    cpus: tuple[int, ...] = ANYWHERE,
    movability: Movability = Movability.MOVABLE,
    settings: GuestSettings = PLACE,
) -> GuestView:
    """Return a guest with one RAM range, ``on_node_1`` of its pages there and the rest on node 0."""
    ram = RamRange(0x1000_0000, NPAGES, 0, 4096, movability, "test")
    node_index = np.zeros(NPAGES, np.int8)
    node_index[:on_node_1] = 1
    pages = known_pages(ram, np.full(NPAGES, 128, np.uint8), node_index, np.zeros(2, np.uint8))
    threads = tuple(Vcpu(i, 100 + i, cpus) for i in range(vcpus))
    topology = GuestTopology(name, 1, 1, "kvm", threads, (ram,))
    return GuestView(topology, GuestPages(name, (0, 1), 1, (pages,)), settings)


def homes(*guests: GuestView, host: HostTopology = HOST) -> dict[str, int | None]:
    """Return the chosen node of each guest that is to be pinned."""
    return {move.guest: move.nid for move in plan_vcpus(Snapshot(host, guests))}


def test_vcpus_go_where_most_of_their_memory_is_to_all_cpus_of_the_node():
    (move,) = plan_vcpus(Snapshot(HOST, (guest("one", on_node_1=600),)))
    assert move.cpus == {0: (4, 5, 6, 7), 1: (4, 5, 6, 7)}
    assert (move.from_nids, move.nid) == ((0, 1), 1)
    assert "node 1, which holds 2 MiB" in move.reason


def test_physical_cores_count_not_threads():
    # Four threads a node, two cores: the second guest of two vCPUs goes to the other node.
    assert homes(guest("a"), guest("b")) == {"a": 1, "b": 0}
    alone = replace(HOST, smt_siblings={})
    assert homes(guest("a"), guest("b"), host=alone) == {"a": 1, "b": 1}


def test_vcpus_that_are_tied_already_take_room_and_stay():
    tied = guest("tied", cpus=(4, 5))
    assert homes(tied, guest("a")) == {"a": 0}


def test_the_largest_choose_first():
    assert homes(guest("small", 1), guest("large", 2)) == {"large": 1, "small": 0}


def test_guests_that_may_not_be_changed_take_no_cores_from_others():
    still = replace(guest("still"), may_change=False)
    assert homes(still, guest("goes"))["goes"] == 1
    assert homes(replace(guest("still", 2), may_change=False), guest("goes", 1))["goes"] == 1


def test_memory_that_its_policy_holds_holds_its_vcpus():
    held = replace(PLACE, moves=False)
    assert homes(guest("a", on_node_1=0, settings=held)) == {"a": 0}
    assert homes(guest("a", on_node_1=500, settings=held)) == {}


def test_a_guest_that_fits_on_no_node_stays():
    assert homes(guest("wide", 3)) == {}


def test_on_an_overcommitted_host_each_node_takes_its_share():
    guests = [guest(name, on_node_1=500) for name in "abcd"]
    assert sorted(nid for nid in homes(*guests).values() if nid is not None) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    "settings", [GuestSettings(), replace(PLACE, mode=Mode.MANUAL)], ids=["not asked", "manual"]
)
def test_without_the_operators_word_nothing_is_pinned(settings: GuestSettings):
    assert homes(guest("a", settings=settings)) == {}


def test_allowed_nodes_are_obeyed():
    assert homes(guest("a", settings=replace(PLACE, allowed_nids=(0,)))) == {"a": 0}


def test_memory_that_must_stay_holds_its_vcpus():
    stuck = Movability.HUGETLB
    assert homes(guest("a", on_node_1=0, movability=stuck)) == {"a": 0}
    assert homes(guest("a", on_node_1=500, movability=stuck)) == {}


def test_a_node_without_room_for_the_memory_is_not_chosen():
    full = replace(HOST, nodes=(HOST.nodes[0], replace(HOST.nodes[1], free_bytes=0)))
    assert homes(guest("a", on_node_1=600), host=full) == {"a": 0}


def test_the_vcpus_of_a_cell_stay_together():
    view = guest("cells", 4)
    vcpus = tuple(replace(v, cell=v.vcpu_id // 2) for v in view.topology.vcpus)
    view = replace(view, topology=replace(view.topology, vcpus=vcpus))
    chosen = plan_vcpus(Snapshot(HOST, (view,)))
    assert sorted(tuple(move.cpus) for move in chosen) == [(0, 1), (2, 3)]
    assert {move.nid for move in chosen} == {0, 1}


def test_memory_is_planned_for_where_the_vcpus_will_be_and_then_all_is_quiet():
    snapshot = Snapshot(HOST, (guest("one", on_node_1=600),))
    after = with_vcpus(snapshot, plan_vcpus(snapshot))
    (move,) = home.plan(after).moves
    assert set(move.to_nid.tolist()) == {1} and len(move.hva) == 400
    assert plan_vcpus(after) == ()
