"""Carrefour's gates and what it does with programs like those of its tables 1, 3 and 4."""

import numpy as np
import pytest

from vmplace.policy.baselines import carrefour
from vmplace.policy.host_view import REPLICATED, Counters, GuestEvidence

MEMORY = np.ones(4, np.bool_)
ALL = np.full((4, 4), 1 / 16)
ON_ONE = np.array([[0.25, 0, 0, 0]] * 4)


def counters(shares, *, maptu=200.0, busy=0.1, reads=0.99, faults=10.0) -> Counters:
    return Counters(np.array(shares) * maptu / 1000, 500.0, busy, reads, faults)


def on(*guests: Counters, free: float = 0.9) -> carrefour.Gates:
    return carrefour.gates(guests, free, MEMORY)


def test_streamcluster_under_first_touch_gets_everything():
    # Table 1: LAR 25 %, imbalance 200 %.
    gates = on(counters(ON_ONE))
    assert (gates.enabled, gates.interleave, gates.colocate, gates.replicate) == (True, True, True, (True,))


def test_pca_writes_too_much_for_copies_and_gets_interleaving_and_co_location():
    # Table 1: LAR 33 %, imbalance 154 %; table 4: replication 0 %, interleaving 19 %, co-location 8 %.
    hot = np.array([0.8275, 0.0575, 0.0575, 0.0575])
    shares = np.outer(np.full(4, 0.25), hot) + 0.0
    shares[1:, 0] -= 0.02
    shares[1:, 1:] += np.eye(3) * 0.02
    gates = on(counters(shares, reads=0.8))
    assert (gates.interleave, gates.colocate, gates.replicate) == (True, True, (False,))


def test_sp_only_gets_co_location():
    # Table 4: replication 0 %, interleaving 0 %, co-location 10 %; its controllers are even.
    shares = np.full((4, 4), 0.5 / 12) + np.eye(4) * (0.5 / 4 - 0.5 / 12)
    gates = on(counters(shares, reads=0.7))
    assert (gates.interleave, gates.colocate, gates.replicate) == (False, True, (False,))


@pytest.mark.parametrize(
    "idle", [counters(ON_ONE, maptu=49.0), counters(ON_ONE, busy=0.36)], ids=["few accesses", "IPC above 0.7"]
)
def test_nothing_is_done_where_memory_is_not_the_bottleneck(idle: Counters):
    assert not on(idle).enabled


def test_copies_need_free_memory_reads_and_few_faults():
    assert on(counters(ON_ONE), free=0.74).replicate == (False,)
    assert on(counters(ON_ONE, reads=0.949)).replicate == (False,)
    assert on(counters(ON_ONE, faults=501.0)).replicate == (False,)


def pages(samples, *, written=False) -> GuestEvidence:
    samples = np.array(samples, float)
    count = len(samples)
    return GuestEvidence(
        "g",
        samples,
        np.full(count, written),
        np.zeros(count, np.int8),
        MEMORY,
        np.ones(count, np.int64),
        None,
        16.0,
        9.0,
        2.0,
    )


EVERYTHING = carrefour.Gates(True, True, True, (True,))
LOADS = np.array([1.0, 0, 0, 0])


def placed(evidence: GuestEvidence, replicate: bool = True):
    return carrefour.page_places(
        evidence, evidence.heat, EVERYTHING, replicate, LOADS, np.random.default_rng(1)
    )


def test_a_page_of_one_node_goes_there_once_it_was_sampled_twice():
    assert placed(pages([[0, 0, 1, 0], [0, 0, 2, 0]])).tolist() == [0, 2]


def test_a_page_read_by_several_nodes_gets_copies_and_a_written_one_is_interleaved():
    assert placed(pages([[1, 1, 0, 0]])).tolist() == [REPLICATED]
    spread = placed(pages([[1, 1, 0, 0]] * 900, written=True))
    # P_migrate is 1: all load is on node 0; P_node shares the others alike.
    assert np.bincount(spread, minlength=4)[0] == 0
    assert np.bincount(spread, minlength=4)[1:] / 900 == pytest.approx([1 / 3] * 3, abs=0.06)
