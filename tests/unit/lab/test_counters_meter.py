"""Reading the meter's region, on regions made here."""

from pathlib import Path

import numpy as np
import pytest

from lab import counters_meter
from lab.counters_meter import CPU, HEADER, MeterCounters, find_device, parse_region
from vmplace.errors import UnsupportedHostError, VmplaceError


class Region:
    """A region of two CPUs on nodes 0 and 5, memory on 0 and 5, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(counters_meter.REGION_BYTES))
        self.bytes = np.memmap(path, np.uint8, "r+")
        self.header = self.bytes[: HEADER.itemsize].view(HEADER)[0]
        self.cpus = self.bytes[0x5000 : 0x5000 + 2 * CPU.itemsize].view(CPU)
        self.header["magic"], self.header["abi"] = counters_meter.MAGIC, counters_meter.ABI
        self.header["cpus_offset"], self.header["cpu_bytes"] = 0x5000, CPU.itemsize
        machine = self.header["machine"]
        machine["cpu_count"] = machine["node_count"] = 2
        machine["nids"][:2] = machine["cpu_nids"][:2] = (0, 5)


@pytest.fixture
def region(tmp_path: Path) -> Region:
    return Region(tmp_path / "shared")


def test_a_count_is_found_by_guest_cpu_and_node(region: Region) -> None:
    region.cpus["guests"]["dram"]["writes"][1, 7, 0] = 11
    reading = MeterCounters(region.path).read()
    assert (reading.nids, reading.cpu_nids) == ((0, 5), (0, 5))
    assert reading.writes[7, 1, 0] == reading.accesses.sum() == 11


def test_instructions_are_by_guest_and_cpu(region: Region) -> None:
    region.cpus["guests"]["instructions"][1, 7] = 5
    assert MeterCounters(region.path).read().instructions[7, 1] == 5


def test_guests_are_seen_by_their_accesses_and_the_host_is_none(region: Region) -> None:
    region.cpus["guests"]["loads"][0, [0, 3]] = 1
    region.cpus["guests"]["stores"][1, 63] = 1
    assert MeterCounters(region.path).read().seen_guests == (3, 63)


def test_a_difference_holds_what_was_counted_between(region: Region) -> None:
    counters = MeterCounters(region.path)
    region.cpus["guests"]["dram"]["reads"][0, 2, 1] = 100
    earlier = counters.read()
    region.cpus["guests"]["dram"]["reads"][0, 2, 1] = 130
    assert counters.read().since(earlier).reads[2, 0, 1] == 30
    assert earlier.reads[2, 0, 1] == 100


def test_a_restored_snapshot_is_noticed(region: Region) -> None:
    counters = MeterCounters(region.path)
    region.cpus["guests"]["loads"][0, 0] = 9
    later = counters.read()
    region.cpus["guests"]["loads"][0, 0] = 8
    with pytest.raises(VmplaceError, match="backwards"):
        counters.read().since(later)


def test_a_header_that_is_being_written_is_not_read(region: Region) -> None:
    counters = MeterCounters(region.path)
    region.header["sequence"] = 3
    with pytest.raises(VmplaceError, match="does not finish"):
        counters.read()


def test_memory_without_a_meter_is_refused(region: Region) -> None:
    region.header["magic"] = 0
    with pytest.raises(UnsupportedHostError, match="no meter"):
        MeterCounters(region.path)


def test_a_meter_of_another_version_is_refused(region: Region) -> None:
    region.header["abi"] = 99
    with pytest.raises(UnsupportedHostError, match="version 99"):
        MeterCounters(region.path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(100))
    with pytest.raises(UnsupportedHostError, match="cannot map"):
        MeterCounters(tmp_path / "short")


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedHostError, match="cannot open"):
        MeterCounters(tmp_path / "nothing")


def add_device(sysfs: Path, name: str, vendor: str, device: str) -> Path:
    path = sysfs / "bus/pci/devices" / name
    path.mkdir(parents=True)
    (path / "vendor").write_text(f"{vendor}\n")
    (path / "device").write_text(f"{device}\n")
    (path / "resource2").touch()
    return path


def test_the_device_is_found_among_others(tmp_path: Path) -> None:
    add_device(tmp_path, "0000:00:01.0", "0x1af4", "0x1041")
    wanted = add_device(tmp_path, "0000:00:04.0", "0x1af4", "0x1110")
    assert find_device(tmp_path) == wanted / "resource2"


def test_a_host_without_the_device_is_said_to_have_no_meter(tmp_path: Path) -> None:
    add_device(tmp_path, "0000:00:01.0", "0x8086", "0x1110")
    with pytest.raises(UnsupportedHostError, match="no meter"):
        find_device(tmp_path)


def test_bytes_cut_short_are_no_region() -> None:
    with pytest.raises(UnsupportedHostError, match="too short"):
        parse_region(b"VMPMETER")
