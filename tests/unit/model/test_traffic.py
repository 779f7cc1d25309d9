"""Estimated traffic: hot pages, shared out over the vCPUs' nodes."""

import numpy as np
import pytest

from tests.unit.model.known_pages import known_pages
from vmplace.model.pages import GuestPages
from vmplace.model.traffic import estimated_traffic, vcpu_shares
from vmplace.topology.guest import GuestTopology, Movability, RamRange, Vcpu
from vmplace.topology.host import HostTopology, Node

HOST = HostTopology((Node(0, (0, 1), 1, 1), Node(2, (2, 3), 1, 1)), {})


def vcpu(*cpus: int, cell: int | None = None) -> Vcpu:
    return Vcpu(0, 1, cpus, cell)


def test_a_floating_vcpu_is_spread_over_its_nodes():
    assert vcpu_shares(HOST, (vcpu(0), vcpu(0, 1, 2, 3))) == {0: 0.75, 2: 0.25}


def test_offline_cpus_count_for_no_node():
    assert vcpu_shares(HOST, (vcpu(9),)) == {}


@pytest.mark.parametrize(("cell", "expected"), [(None, [[2, 1], [2, 1]]), (0, [[4, 2], [0, 0]])])
def test_hot_pages_count_for_the_vcpus_of_their_cell(cell, expected):
    ram = RamRange(0, 8, None, 4096, Movability.MOVABLE, "", cell)
    heat = np.array([200, 200, 200, 200, 200, 200, 3, 200], np.uint8)
    pages = known_pages(ram, heat, np.array([0, 0, 0, 0, 1, 1, 1, -1], np.int8), np.zeros(1, np.uint8))
    guest = GuestTopology("a", 1, 1, "kvm", (vcpu(0, cell=0), vcpu(2, cell=1)), (ram,))
    estimate = estimated_traffic(HOST, guest, GuestPages("a", (0, 2), 1, (pages,)))
    assert estimate.accesses.tolist() == expected
