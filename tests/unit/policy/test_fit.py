"""A guest fits where cores and room are; what makes room leaves the node, cheapest first."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.policy.views import GIB, NPAGES, guest_view, host, ram
from vmplace.policy.fit import Flavour, Tenant, evictions, fit, free_cores, tenants
from vmplace.policy.make_room import room_moves
from vmplace.policy.plan import GuestSettings, GuestView, Mode
from vmplace.topology.guest import Movability
from vmplace.topology.host import HostTopology

MIB = 1 << 20
RESERVE = int(0.03 * 4 * GIB)
SIZE = NPAGES * 4096


def with_free(free: dict[int, int], cache: int = 0) -> HostTopology:
    """Return four nodes of two cores and 4 GiB with so much free beyond the reserve, none if not given."""
    nodes = tuple(
        replace(n, free_bytes=free.get(n.nid, 0) + RESERVE + 4096, inactive_file_bytes=cache)
        for n in host().nodes
    )
    return replace(host(), nodes=nodes)


def named(view: GuestView, name: str) -> GuestView:
    return replace(view, topology=replace(view.topology, name=name))


def test_a_node_with_cores_and_room_takes_it_and_the_emptiest_is_first():
    busy = guest_view([0, 1], 0)
    found = fit(host(), [busy], (), Flavour(2, GIB))
    assert found.nids == (1, 2, 3) and found.evictions == ()
    assert found.nodes[0].lacks == ("2 free cores",)


def test_threads_of_a_core_are_one_core_and_floating_vcpus_count_in_part():
    on = replace(host(), smt_siblings={0: (0, 1), 1: (0, 1)})
    floating = guest_view([0], 0)
    vcpu = replace(floating.topology.vcpus[0], cpus=(0, 2))
    floating = replace(floating, topology=replace(floating.topology, vcpus=(vcpu,)))
    assert free_cores(on, [floating]) == {0: 0.5, 1: 1.5, 2: 2.0, 3: 2.0}


def test_for_advice_vcpus_count_as_they_run():
    idle = replace(guest_view([0, 1], 0), cpus=0.5)
    assert free_cores(host(), [idle], really=True)[0] == 1.5
    assert free_cores(host(), [idle])[0] == 0.0


def test_the_reserve_is_no_room_and_file_cache_is():
    assert fit(with_free({}), [], (), Flavour(1, 64 * MIB)).nids == ()
    assert len(fit(with_free({}, cache=65 * MIB), [], (), Flavour(1, 64 * MIB)).nids) == 4


def test_what_is_away_from_its_vcpus_leaves_before_what_is_cold_and_that_before_what_is_hot():
    on = with_free({1: GIB, 2: GIB})
    away = Tenant("away", {0: 3 * MIB}, {0: 4 * MIB}, (1,), (0, 1, 2, 3))
    home = Tenant("home", {0: 8 * MIB}, {0: 16 * MIB}, (0,), (0, 1, 2, 3))
    chosen = evictions(on, (home, away), 0, 20 * MIB)
    reported = [(one.guest, one.to_nid, one.size_bytes // MIB, one.hot) for one in chosen]
    assert reported == [
        ("away", 1, 4, True),
        ("away", 1, 3, False),
        ("home", 1, 8, False),
        ("home", 1, 5, True),
    ]


def test_room_that_cannot_be_made_in_full_is_not_begun():
    some = Tenant("db", {0: 8 * MIB}, {}, (0,), (0, 1))
    assert evictions(with_free({1: GIB}), (some,), 0, 9 * MIB) == ()
    assert evictions(with_free({1: 4 * MIB}), (some,), 0, 8 * MIB) == ()


def test_nothing_goes_where_the_guest_may_not_be():
    some = Tenant("db", {0: 8 * MIB}, {}, (0,), (0, 2))
    assert {one.to_nid for one in evictions(with_free({1: GIB, 2: GIB}), (some,), 0, MIB)} == {2}


@pytest.mark.parametrize(
    "settings",
    [GuestSettings(Mode.ADVISE), GuestSettings(Mode.MANUAL), GuestSettings(moves=False),
     GuestSettings(protected=True), GuestSettings(huge_pages=False)],
)  # fmt: skip
def test_guests_whose_policy_keeps_them_are_no_tenants(settings: GuestSettings):
    assert tenants(host(), [guest_view([0], 0, settings=settings)]) == ()


def test_memory_that_cannot_move_is_no_tenant():
    pinned = ram(movability=Movability.PINNED)
    assert tenants(host(), [guest_view([0], 0, ranges=[pinned])]) == ()


def test_the_node_is_chosen_for_which_least_that_is_in_use_must_leave():
    on = with_free({2: GIB, 3: GIB})
    warm, cool = named(guest_view([0], 0), "warm"), named(guest_view([2], 1, heat=0), "cool")
    crowded = [named(guest_view([cpu, cpu + 1], nid), f"full{nid}") for nid, cpu in ((2, 4), (3, 6))]
    found = fit(on, [warm, cool, *crowded], tenants(on, [warm, cool]), Flavour(1, 8 * MIB))
    assert (found.nids, found.room_nid) == ((), 1)
    assert [(one.guest, one.size_bytes) for one in found.evictions] == [("cool", 8 * MIB)]


def test_the_coldest_pages_of_the_node_leave_each_once():
    rng = np.random.default_rng(1)
    heat, nodes = rng.integers(0, 256, NPAGES) & 0xFE, rng.integers(0, 2, NPAGES)
    view = guest_view([0], nodes, heat=heat)
    chosen = evictions(with_free({1: GIB, 2: 2 * MIB}), tenants(host(), [view]), 0, 6 * MIB)
    moves = room_moves([view], chosen, None)
    pages = np.concatenate([(move.hva.astype(np.int64) - ram().hva) // 4096 for move in moves])
    assert len(np.unique(pages)) == len(pages) == 6 * MIB // 4096
    assert (nodes[pages] == 0).all()
    assert heat[pages].max() <= np.sort(heat[nodes == 0])[len(pages) - 1]


def test_huge_pages_leave_whole_and_the_budget_ends_it():
    view = guest_view([0], 0, huge=1)
    chosen = evictions(with_free({1: GIB}), tenants(host(), [view]), 0, SIZE)
    (move,) = room_moves([view], chosen, 5 * MIB)
    assert (move.npages == 512).all() and move.size_bytes == 6 * MIB
    assert set(move.from_nid.tolist()) == {0} and set(move.to_nid.tolist()) == {1}
