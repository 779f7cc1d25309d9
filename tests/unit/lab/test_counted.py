"""The meter's counts as traffic."""

import numpy as np

from lab.counted import counted_by_programs, counted_fetches, counted_traffic
from lab.counters_meter import GUEST_UNKNOWN, MeterReading
from vmplace.model.metrics import local_access_ratio


def reading(nids: tuple[int, ...], cpu_nids: tuple[int, ...]) -> MeterReading:
    """Return counters of zero for 64 guests."""
    dram, plain = (64, len(cpu_nids), len(nids)), (64, len(cpu_nids))
    return MeterReading(
        nids,
        cpu_nids,
        enabled=True,
        timed=False,
        switches=1,
        mark=0,
        marks=0,
        reads=np.zeros(dram, np.int64),
        writes=np.zeros(dram, np.int64),
        instructions=np.zeros(plain, np.int64),
        loads=np.zeros(plain, np.int64),
        stores=np.zeros(plain, np.int64),
        unplaced=np.zeros(len(cpu_nids), np.int64),
        unseen=np.zeros(len(cpu_nids), np.int64),
        kernel_reads=np.zeros(dram, np.int64),
        kernel_writes=np.zeros(dram, np.int64),
        stall_ns=np.zeros(plain, np.int64),
        work=np.zeros(plain, np.int64),
        fetched=np.zeros(dram, np.int64),
    )


def test_reads_and_writes_of_a_nodes_cpus_are_one_row() -> None:
    counted = reading((0, 2), (0, 0, 2, 2))
    counted.reads[1, 2, 0], counted.writes[1, 3, 0], counted.reads[1, 0, 0] = 10, 20, 70
    traffic = counted_traffic(counted, 1)
    assert traffic.accesses.tolist() == [[70, 0], [30, 0]]
    assert local_access_ratio(traffic) == 0.7


def test_instructions_count_by_the_node_of_their_code() -> None:
    counted = reading((0, 2), (0, 0, 2, 2))
    counted.fetched[1, 2, 0], counted.fetched[1, 3, 1], counted.fetched[2, 0, 0] = 10, 30, 7
    assert counted_fetches(counted, 1).accesses.tolist() == [[0, 0], [10, 30]]


def test_a_guests_traffic_leaves_out_that_of_others() -> None:
    counted = reading((0, 2), (0, 2))
    counted.reads[1, 0, 0], counted.reads[2, 1, 1] = 5, 6
    assert counted_traffic(counted, 1).accesses.sum() == 5
    assert counted_traffic(counted).accesses.sum() == 11


def test_what_a_guests_kernel_did_is_kept_apart() -> None:
    counted = reading((0, 2), (0, 2))
    counted.reads[1, 0, 0], counted.writes[1, 0, 1] = 50, 9
    counted.kernel_reads[1, 0, 0], counted.kernel_writes[1, 0, 1] = 20, 8
    assert counted_by_programs(counted, 1).accesses.tolist() == [[30, 1], [0, 0]]


def test_what_has_no_place_or_no_owner_is_reported() -> None:
    counted = reading((0, 2), (0, 2))
    counted.loads[1, 0], counted.reads[1, 0, 0] = 10_000, 1000
    assert counted.unattributed_share == 0
    counted.unseen[1] = 10
    assert counted.unattributed_share == 0.001
    counted.reads[GUEST_UNKNOWN, 1, 1] = 1000
    assert counted.unattributed_share == 0.5
    counted.unplaced[0] = 1200
    assert counted.unattributed_share == 0.6


def test_nodes_without_cpus_or_without_memory_are_kept() -> None:
    counted = reading((0, 3), (0, 1))
    counted.reads[1, 1, 1] = 8
    traffic = counted_traffic(counted, 1)
    assert traffic.nids == (0, 1, 3)
    assert traffic.accesses.tolist() == [[0, 0, 0], [0, 0, 8], [0, 0, 0]]
