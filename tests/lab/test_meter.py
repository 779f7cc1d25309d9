"""The meter in the emulated host, held against programs whose DRAM traffic is known beforehand."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from lab import cache, emulated_time
from lab.counters_meter import GUEST_HOST, GUEST_UNKNOWN, MeterCounters, MeterReading
from lab.machine import LabHost, boot_host
from lab.page_counts import PAGES, read_page_counts
from vmplace.model.described_memory import MLP
from vmplace.model.memory_system import Demand, MemorySystem, solved
from vmplace.model.metrics import Matrix

pytestmark = pytest.mark.lab

HERE = Path(__file__).parent
MIB = 64
LINES = MIB * 2**20 // 64
DILATION = 200.0
CPUS_OF_A_NODE = 4
"""Of n4-crowd."""
INSIDE = """
import json
from lab.counters_meter import MeterCounters
reading = MeterCounters().read()
print(json.dumps([reading.nids, reading.cpu_nids, int(reading.reads.sum()), int(reading.instructions.sum())]))
"""


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    probe = tmp_path_factory.mktemp("probe") / "meter_probe"
    flags = ["-O2", "-static", "-Wall", "-Wextra", "-Werror", f"-I{HERE.parents[1] / 'lab/meter'}"]
    subprocess.run(["gcc", *flags, "-o", probe, HERE / "meter_probe.c"], check=True, timeout=60)
    return probe


@contextmanager
def booted_with(probe: Path, dilation: float, topology: str = "n4-full") -> Iterator[LabHost]:
    files, slow = {"/usr/local/bin/meter_probe": probe}, {"dilation": repr(dilation)} | PAGES
    with boot_host(topology, meter=True, plugin_args=slow, files=files) as booted:
        booted.run("chmod +x /usr/local/bin/meter_probe")
        yield booted


@pytest.fixture(scope="module")
def host(probe: Path) -> Iterator[LabHost]:
    with booted_with(probe, DILATION) as booted:
        yield booted


def metered(host: LabHost, *probe: object) -> MeterReading:
    """Run meter_probe with these arguments and return what was counted meanwhile."""
    with MeterCounters(host.shared_memory) as counters:
        before = counters.read()
        host.run(["meter_probe", *map(str, probe)], timeout=120)
        return counters.read().since(before)


def cpu_of(host: LabHost, nid: int) -> int:
    """Return the first CPU of a node, as the emulated kernel tells it."""
    cpus = host.run(f"cat /sys/devices/system/node/node{nid}/cpulist").stdout
    return int(cpus.replace(",", "-").split("-")[0])


@pytest.mark.parametrize(("cpu_nid", "mem_nid"), [(0, 0), (0, 3), (2, 1), (3, 3)])
def test_a_stream_of_reads_counts_its_lines(host: LabHost, cpu_nid: int, mem_nid: int) -> None:
    cpu = cpu_of(host, cpu_nid)
    counted = metered(host, "stream", cpu, mem_nid, MIB, "read")
    assert counted.reads[GUEST_HOST, cpu, mem_nid] == pytest.approx(LINES, rel=0.02)
    assert counted.user_accesses[GUEST_HOST, cpu, mem_nid] == pytest.approx(LINES, rel=0.02)
    assert counted.unattributed_share < 0.001
    assert counted.accesses[:, cpu].sum() < 1.02 * LINES


def test_a_stream_of_stores_is_written_back_to_its_node(host: LabHost) -> None:
    cpu = cpu_of(host, 1)
    counted = metered(host, "stream", cpu, 2, MIB, "write")
    still_cached = (2304 << 10) // 64
    assert counted.writes[GUEST_HOST, cpu, 2] == pytest.approx(LINES - still_cached, rel=0.02)


def test_a_stream_counts_each_of_its_pages(host: LabHost) -> None:
    cpu, before = cpu_of(host, 2), read_page_counts(host)
    metered(host, "stream", cpu, 1, MIB, "read")
    growth = read_page_counts(host).since(before)
    read = growth.counts[cpu] >= 4096 // 64
    assert np.count_nonzero(read & (growth.nids == 1)) == pytest.approx(MIB * 256, rel=0.02)
    # The rest are pages of the kernel and of the program itself.
    assert np.count_nonzero(read & (growth.nids != 1)) < 0.02 * MIB * 256


@pytest.mark.parametrize(("said", "counted_as"), [(7, 7), (0, GUEST_UNKNOWN)])
def test_a_nested_guests_reads_count_for_that_guest(host: LabHost, said: int, counted_as: int) -> None:
    cpu = cpu_of(host, 2)
    counted = metered(host, "nested", cpu, 3, MIB, said)
    assert counted.reads[counted_as, cpu, 3] == pytest.approx(LINES, rel=0.02)
    assert counted.seen_guests == (counted_as,)
    # What KVM and QEMU do around it is not the guest's: it loads one word a line, and some code ran.
    assert LINES <= counted.loads[counted_as].sum() < 1.01 * LINES
    assert counted.reads[GUEST_HOST, cpu, 3] < 0.02 * LINES


def test_the_code_of_a_nested_guest_counts_on_the_node_it_lies_on(host: LabHost) -> None:
    cpu = cpu_of(host, 2)
    fetched = metered(host, "nested", cpu, 1, MIB, 7).fetched[7]
    # Four instructions a line, and all of the guest's memory on node 1.
    assert fetched[cpu, 1] == pytest.approx(4 * LINES, rel=0.001)
    # Of the host's, what leads to the first instruction behind VMRUN.
    assert fetched.sum() - fetched[cpu, 1] < 0.001 * LINES


def test_nothing_is_counted_when_it_is_off(host: LabHost) -> None:
    host.run("vmp-meter off")
    with MeterCounters(host.shared_memory) as counters:
        before = counters.read()
        host.run("head -c 20M /dev/urandom | md5sum")
        growth = counters.read().since(before)
    assert not growth.enabled
    assert (growth.accesses.sum(), growth.instructions.sum(), growth.loads.sum()) == (0, 0, 0)


def timed(host: LabHost, cpu_nid: int, mem_nid: int) -> tuple[float, MeterReading]:
    """Let a nested guest read MIB in emulated time; return its seconds by its own clock, and the counts."""
    with MeterCounters(host.shared_memory) as counters:
        before = counters.read()
        probe = ["meter_probe", "timed", str(cpu_of(host, cpu_nid)), str(mem_nid), str(MIB), "7"]
        took = host.run(probe, timeout=240).stdout
        return int(took) / 1e9, counters.read().since(before)


@pytest.mark.slow
def test_a_nested_guest_pays_the_modelled_latency(host: LabHost) -> None:
    """One vCPU asks little of the memory: its accesses take the unloaded latency and hardly more."""
    latency = emulated_time.emulated_memory(host.topology).latency / MLP
    (local_s, local), (remote_s, remote) = timed(host, 1, 1), timed(host, 1, 2)
    assert local.stall_ns[7].sum() == pytest.approx(LINES * latency[1, 1], rel=0.05)
    assert remote.stall_ns[7].sum() == pytest.approx(LINES * latency[1, 2], rel=0.05)
    assert local_s == pytest.approx(LINES * latency[1, 1] * DILATION / 1e9, rel=0.2)
    assert remote_s / local_s == pytest.approx(latency[1, 2] / latency[1, 1], rel=0.1)


@pytest.mark.slow
def test_guests_that_share_a_controller_wait_for_each_other(probe: Path) -> None:
    """Sixteen CPUs ask more of node 0 than it has: where they settle, the solver says."""
    with booted_with(probe, emulated_time.DILATION, "n4-crowd") as host:
        waited, system = waits_of_all(host), emulated_time.emulated_memory(host.topology)
    want = contended_latency(system, CPUS_OF_A_NODE)
    assert want[0] > 5 * system.latency[0, 0]
    assert waited == pytest.approx(np.repeat(want, CPUS_OF_A_NODE), rel=0.1)


def waits_of_all(host: LabHost) -> Matrix:
    """Return the mean latency (ns) of each CPU while all read node 0."""
    cpus = range(4 * CPUS_OF_A_NODE)
    readers = [host.spawn(["meter_probe", "serve", str(cpu), "0", "32", str(cpu + 1)]) for cpu in cpus]
    time.sleep(15)
    with MeterCounters(host.shared_memory) as counters:
        host.run("vmp-meter time; sleep 3")
        before = counters.read()
        host.run("sleep 6")
        growth = counters.read().since(before)
        host.run("vmp-meter off")
    for reader in readers:
        reader.kill()
    assert growth.timed
    waited: Matrix = growth.stall_ns.sum(axis=1) / np.maximum(growth.reads.sum(axis=(1, 2)), 1) * MLP
    return waited[[cpu + 1 for cpu in cpus]]


def contended_latency(system: MemorySystem, cpus_of_a_node: int) -> Matrix:
    """Return the latency from each node when so many CPUs of every node do nothing but read node 0."""
    shares = np.zeros((4, 4, 4))
    shares[np.arange(4), np.arange(4), 0] = 1
    cpus = np.full(4, float(cpus_of_a_node))
    return solved(system, Demand(shares, cpus, np.full(4, 1.0), np.full(4, MLP))).latencies


@pytest.fixture
def snapshot_of_guest_9(host: LabHost) -> Iterator[Path]:
    """Save the host while a nested guest, which identified itself long ago, reads 16 MiB on node 2."""
    serving = host.spawn(["meter_probe", "serve", str(cpu_of(host, 1)), "2", "16", "9"])
    time.sleep(3)
    snapshot = host.savevm("meter-test")
    serving.kill()
    yield snapshot
    cache.remove_tree(snapshot)


def test_who_is_who_survives_a_snapshot(host: LabHost, snapshot_of_guest_9: Path) -> None:
    with (
        boot_host("n4-full", meter=True, snapshot=snapshot_of_guest_9) as restored,
        MeterCounters(restored.shared_memory) as counters,
    ):
        before = counters.read()
        restored.run("vmp-meter on; sleep 1; vmp-meter off")
        growth = counters.read().since(before)
    assert growth.seen_guests == (9,)
    assert growth.reads[9, cpu_of(host, 1), 2] > 1000


def test_a_mark_is_seen_outside(host: LabHost) -> None:
    host.run("vmp-meter mark 4711")
    with MeterCounters(host.shared_memory) as counters:
        assert counters.read().mark == 4711


def test_inside_and_outside_the_same_counters_are_read(host: LabHost) -> None:
    inside = json.loads(host.run(["env", "PYTHONPATH=/opt/vmplace", "python3", "-c", INSIDE]).stdout)
    with MeterCounters(host.shared_memory) as counters:
        reading = counters.read()
    sums = [int(reading.reads.sum()), int(reading.instructions.sum())]
    assert inside == [list(reading.nids), list(reading.cpu_nids), *sums]


def test_the_meter_knows_each_cpus_node(host: LabHost) -> None:
    with MeterCounters(host.shared_memory) as counters:
        cpu_nids = counters.read().cpu_nids
    script = 'for c in /sys/devices/system/cpu/cpu[0-9]*; do echo "${c##*cpu} $(basename "$c"/node*)"; done'
    lines = [line.split() for line in host.run(script).stdout.splitlines()]
    assert {int(cpu): int(node.removeprefix("node")) for cpu, node in lines} == dict(enumerate(cpu_nids))
