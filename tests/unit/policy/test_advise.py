"""Advice for a new guest: the fewest nodes with cores and room, near to each other, the least busy."""

from dataclasses import replace

from tests.unit.policy.test_fit import with_free
from tests.unit.policy.views import GIB, guest_view, host
from vmplace.policy.advise import advise
from vmplace.policy.fit import Flavour
from vmplace.topology.host import HostTopology, Node

MIB = 1 << 20


def test_one_node_is_enough_if_it_has_all_and_the_least_busy_is_taken():
    reported = advise(host(), [], {0: 5.0, 1: 1.0, 2: 0.5, 3: 2.0}, Flavour(2, GIB))
    assert (reported.nids, reported.fits, reported.free_cores) == ((2,), True, 2.0)


def test_idle_vcpus_take_no_cores_where_counters_tell():
    idle, busy = replace(guest_view([0, 1], 0), cpus=0.0), guest_view([0, 1], 0)
    loads = {nid: float(nid) for nid in range(4)}
    assert advise(host(), [idle], loads, Flavour(2, GIB)).nids == (0,)
    assert advise(host(), [busy], loads, Flavour(2, GIB)).nids == (1,)


def test_several_nodes_are_those_nearest_to_each_other():
    far = {pair: 10 if pair[0] == pair[1] else 20 for pair in host().distances}
    far |= {(1, 3): 12, (3, 1): 12}
    reported = advise(replace(host(), distances=far), [], {}, Flavour(3, 4 * GIB))
    assert reported.nids == (1, 3)


def test_what_fits_nowhere_gets_all_nodes_and_says_so():
    reported = advise(with_free({}), [], {}, Flavour(1, GIB))
    assert (reported.nids, reported.fits) == ((0, 1, 2, 3), False)


def test_a_node_without_cpus_or_memory_is_no_advice():
    nodes = (Node(0, (), 4 * GIB, 4 * GIB), Node(1, (0,), 0, 0), Node(2, (1,), 4 * GIB, 4 * GIB))
    on = HostTopology(nodes, {(a, b): 10 for a in range(3) for b in range(3)})
    assert advise(on, [], {}, Flavour(1, MIB)).nids == (2,)


def test_many_nodes_are_answered_at_once():
    nids = range(64)
    nodes = tuple(Node(n, (n,), GIB, GIB) for n in nids)
    distances = {(a, b): 10 + abs(a - b) for a in nids for b in nids}
    reported = advise(HostTopology(nodes, distances), [], {}, Flavour(8, 0))
    assert reported.fits and len(reported.nids) == 8 and max(reported.nids) - min(reported.nids) == 7
