"""What traffic did the meter count?  The truth that estimates are held against."""

import numpy as np

from lab.counters_meter import Counts, MeterReading
from vmplace.model.metrics import TrafficMatrix


def counted_traffic(reading: MeterReading, guest: int | None = None) -> TrafficMatrix:
    """Return the DRAM reads and writes of ``reading`` by (CPU node, memory node).

    Of the guest number ``guest``, or of all guests and the host if that is None.  The nids are those of
    CPUs and of memory together, so a node that lacks one of both has a row or column of zeros.
    """
    return _by_nodes(reading, reading.accesses.sum(axis=0) if guest is None else reading.accesses[guest])


def counted_by_programs(reading: MeterReading, guest: int) -> TrafficMatrix:
    """Return what of the guest's traffic its programs did, without its kernel."""
    return _by_nodes(reading, reading.user_accesses[guest])


def counted_fetches(reading: MeterReading, guest: int) -> TrafficMatrix:
    """Return the instructions of the guest by (CPU node, node of their code), before any cache."""
    return _by_nodes(reading, reading.fetched[guest])


def _by_nodes(reading: MeterReading, by_cpu: Counts) -> TrafficMatrix:
    nids = tuple(sorted({*reading.nids, *reading.cpu_nids}))
    accesses = np.zeros((len(nids), len(nids)))
    columns = [nids.index(nid) for nid in reading.nids]
    for cpu_nid, counts in zip(reading.cpu_nids, by_cpu, strict=True):
        accesses[nids.index(cpu_nid), columns] += counts
    return TrafficMatrix(nids, accesses)
