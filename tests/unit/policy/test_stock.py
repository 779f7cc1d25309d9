"""What stock hosts do, against what numad(8) and the kernel's scan say of themselves."""

from dataclasses import replace

import numpy as np
import pytest

from vmplace.model.published import square
from vmplace.policy.baselines.stock import ENOUGH, SLOWEST, BalancingPlanner, NumadPlanner, Scan, numad_nodes
from vmplace.policy.host_view import GuestEvidence, HostView

NPAGES = 800


def guest(vcpus: int, *, samples=None) -> GuestEvidence:
    heat = np.zeros((NPAGES, 4)) if samples is None else samples
    return GuestEvidence(
        "g",
        heat,
        np.zeros(NPAGES, np.bool_),
        np.zeros(NPAGES, np.int8),
        np.ones(4, np.bool_),
        np.ones(NPAGES, np.int64),
        None,
        float(vcpus),
        9.0,
        2.0,
        recent=heat,
        samples_recent=samples,
        vcpu_node=np.zeros(vcpus, np.intp),
        may_tie=np.ones(4, np.bool_),
    )


def view(one: GuestEvidence) -> HostView:
    system = square(local=100.0, hop=100.0, controller=0.04, link=0.03, queue=1.0)
    return HostView(system, np.full(4, 1e5), (one,), 2000.0, cpus=np.full(4, 8.0))


@pytest.mark.parametrize(("vcpus", "nodes"), [(6, 1), (7, 2), (13, 2), (14, 3)])
def test_numad_fills_nodes_to_85_percent(vcpus: int, nodes: int):
    # numad(8), -u: 0.85 x 8 CPUs are 6.8.
    one = guest(vcpus)
    assert len(numad_nodes(view(one), one, np.full(4, 8.0), np.full(4, 1e5))) == nodes


def test_numad_takes_the_guest_with_most_memory_first_not_the_one_with_most_pages():
    # 800 pages of 4 KiB, and 100 of 2 MiB; both lie on node 0, where one of them can run.
    small = guest(6)
    some = small.of_pages(np.arange(100))
    huge = replace(some, name="huge", sizes=np.full(100, 512.0))
    both = replace(view(small), guests=(small, huge))
    vcpu_nodes = NumadPlanner().plan(both).vcpu_node
    assert vcpu_nodes is not None
    first, second = vcpu_nodes
    assert second is not None and (second == 0).all()
    assert first is not None and not (first == 0).any()


def test_numad_leaves_alone_whom_the_operator_pinned():
    pinned = replace(guest(6), name="pinned", may_tie=None, node=np.full(NPAGES, 3, np.int8))
    both = replace(view(guest(6)), guests=(guest(6), pinned))
    plan = NumadPlanner().plan(both)
    assert plan.vcpu_node is not None
    assert plan.vcpu_node[0] is not None and plan.vcpu_node[1] is None
    assert (plan.pages[1] == 3).all()


def test_each_page_that_was_unmapped_counts_and_the_second_fault_of_a_node_moves_it():
    faults = np.zeros((NPAGES, 4))
    faults[::8, 3] = 1.0
    one, planner = guest(4, samples=faults), BalancingPlanner()
    assert (planner.plan(view(one)).pages[0] == 0).all()
    assert np.flatnonzero(planner.plan(view(one)).pages[0] == 3).tolist() == list(range(0, NPAGES, 8))


def test_of_a_guest_with_local_memory_fewer_and_fewer_pages_are_unmapped():
    faults = np.zeros((NPAGES, 4))
    faults[:, 0] = 1.0
    one, planner, shares = guest(4, samples=faults), BalancingPlanner(), []
    assert planner.watch_share == 1.0
    for _ in range(400):
        planner.plan(view(one))
        shares.append(planner.watch_share)
    assert shares[7] < 1.0 and shares[-1] < 0.2 and shares == sorted(shares, reverse=True)


def passes(scan: Scan, count: int, *, faults: int, local: int, private: int) -> None:
    for _ in range(count):
        scan.faults, scan.local, scan.private = faults, local, private
        scan.go_on(1.0)


def test_the_kernel_scans_less_often_where_faults_are_local_and_as_often_as_it_may_where_they_are_not():
    """update_task_scan_period: a tenth of the period more or less for each tenth of the faults."""
    scan = Scan()
    passes(scan, 1, faults=100, local=95, private=0)
    assert scan.slowness == pytest.approx(1 + (9 - ENOUGH) / 10)
    passes(scan, 50, faults=100, local=100, private=0)
    assert scan.slowness == SLOWEST
    passes(scan, 1, faults=100, local=25, private=25)
    assert scan.slowness == pytest.approx(SLOWEST * (1 - (ENOUGH - 2) / 10))
    passes(scan, 50, faults=100, local=25, private=25)
    assert scan.slowness == 1.0


def test_where_nothing_faults_the_period_doubles():
    scan = Scan()
    passes(scan, 3, faults=0, local=0, private=0)
    assert scan.slowness == 8.0


def test_the_period_follows_whole_passes_only():
    scan = Scan(faults=100, local=100)
    for _ in range(7):
        scan.go_on(1 / 8)
    assert scan.slowness == 1.0
    scan.go_on(1 / 8)
    assert scan.slowness > 1.0 and scan.faults == 0
