"""Measured bandwidth: what is measured, where it is kept, and when it counts."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.unit.nobody import holds_for_nobody, needs_nobody
from vmplace import native
from vmplace.errors import VmplaceError
from vmplace.topology import calibration_runs
from vmplace.topology.bandwidth import bandwidth_weights
from vmplace.topology.calibration import (
    Calibration,
    LoadedLatency,
    MachineIdentity,
    NodePath,
    WorkerSet,
    calibrated,
    encoded,
    machine_identity,
    read_calibration,
    read_machine_identity,
)
from vmplace.topology.calibration_runs import measured, spread_by_core, worker_sets
from vmplace.topology.host import HostTopology, Node
from vmplace.topology.streams import Reader, Readings, chased_mib, readings
from vmplace.topology.sysfs import read_cache_bytes, read_host

HOSTS = Path(__file__).parents[2] / "data/hosts"
FOUR = read_host(HOSTS / "16amd64-4n8c")
MACHINE = machine_identity(FOUR, "model name\t: Some CPU\n")


def calibration(**changed: object) -> Calibration:
    paths = tuple(NodePath(k, j, (10 if k == j else 4) * 10**9) for k in range(4) for j in range(4))
    squeezed = tuple(NodePath(k, j, (j + 1) * 10**9) for k in (0, 1) for j in range(4))
    together = (WorkerSet((0, 1), squeezed, {}),)
    whole = Calibration(machine=MACHINE, measured_at=1.0, paths=paths, worker_sets=together)
    return msgspec.structs.replace(whole, **changed)


def test_this_machine_is_measured_for_real():
    host = read_host()
    cpus = frozenset(os.sched_getaffinity(0))
    seen: list[tuple[int, int]] = []
    got = measured(
        host,
        read_machine_identity(host),
        duration_ms=20,
        cpus=cpus,
        report=lambda _what, done, todo: seen.append((done, todo)),
    )
    assert {(path.cpu_nid, path.mem_nid) for path in got.paths} >= {
        (node.nid, node.nid) for node in host.nodes if node.cpus and node.memory_bytes
    }
    # No memory is slower than a disk, none faster than 10 TB/s.
    assert all(10**8 < path.bytes_per_s < 10**13 for path in got.paths)
    assert [done for done, _ in seen] == list(range(seen[-1][1]))
    # A line of memory takes longer than one of a cache close by, and less than a page fault.
    has_room = chased_mib(host, max(read_cache_bytes(cpu) for cpu in cpus)) > 0
    assert all(
        15 < path.latency_ns < 20_000 if path.latency_ns is not None else not has_room for path in got.paths
    )
    readers = {node.nid: len(cpus & {*node.cpus}) for node in host.nodes if node.memory_bytes}
    cores = {
        node.nid: len({host.smt_siblings.get(cpu, (cpu,)) for cpu in cpus & {*node.cpus}})
        for node in host.nodes
    }
    assert {one.nid for one in got.loaded} == {nid for nid in readers if cores[nid] > 1 and has_room}
    assert all(1 <= one.streams < readers[one.nid] and one.latency_ns > 15 for one in got.loaded)
    assert 0 < got.cpu_share <= 1.01
    for one in got.worker_sets:
        assert sum(one.canonical_weights.values()) == pytest.approx(1, abs=1e-5)


def test_what_was_measured_with_these_workers_makes_their_weights():
    host = calibrated(FOUR, calibration())
    assert bandwidth_weights(host, (1, 0)) == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4})


def test_other_workers_go_by_the_pairs():
    host = calibrated(FOUR, calibration())
    assert bandwidth_weights(host, (2,)) == pytest.approx({0: 4 / 22, 1: 4 / 22, 2: 10 / 22, 3: 4 / 22})


def test_worker_sets_are_nodes_with_their_nearest():
    # Nodes 0 and 3 are farthest from each other: nobody runs a guest on just these.
    sets = worker_sets(FOUR)
    assert {(0,), (1,), (2,), (3,), (0, 1, 2, 3)} <= set(sets)
    far = max(((a, b) for a in range(4) for b in range(a + 1, 4)), key=lambda pair: FOUR.distances[pair])
    assert far not in sets


def test_a_node_without_cpus_is_read_but_reads_nothing():
    assert all(2 not in one for one in worker_sets(read_host(HOSTS / "24amd64-3n4c-cxl")))


def test_a_calibration_comes_back_as_it_was_kept(tmp_path: Path):
    (tmp_path / "bandwidth.json").write_bytes(encoded(calibration()))
    assert read_calibration(MACHINE, tmp_path / "bandwidth.json") == calibration()


@needs_nobody
def test_a_file_that_may_not_be_read_was_not_damaged(tmp_path: Path):
    (path := tmp_path / "bandwidth.json").write_bytes(encoded(calibration()))
    path.chmod(0o600)
    tmp_path.chmod(0o755)

    def names_the_cure() -> bool:
        with pytest.raises(VmplaceError, match="cannot be read: Permission denied") as caught:
            read_calibration(MACHINE, Path("bandwidth.json"))
        return "sudo" in str(caught.value.hint)

    with contextlib.chdir(tmp_path):
        assert holds_for_nobody(names_the_cure)


def test_latencies_and_what_they_show_reach_the_host():
    paths = tuple(msgspec.structs.replace(one, latency_ns=90.4) for one in calibration().paths)
    # A controller that serves 12.8 GB/s, a line in 5 ns, and two at a time.
    loaded = tuple(
        LoadedLatency(nid, streams, round(12.8e9 * used), 90.4 + 2 * 5 * used / (1 - used))
        for nid in range(4)
        for streams, used in ((1, 0.5), (2, 0.7), (3, 0.8))
    )
    host = calibrated(FOUR, calibration(paths=paths, loaded=loaded))
    assert set(host.idle_latencies.values()) == {90.4}
    assert host.queue == pytest.approx(2.0, rel=1e-3)
    assert host.bandwidths[0, 0] == pytest.approx(12.8e9, rel=1e-3)
    assert host.bandwidths[0, 1] == 4 * 10**9


def test_a_calibration_that_others_disturbed_tells_no_waits():
    paths = tuple(msgspec.structs.replace(one, latency_ns=90.4) for one in calibration().paths)
    loaded = tuple(
        LoadedLatency(nid, streams, round(12.8e9 * used), 90.4 + 10 * used / (1 - used))
        for nid in range(4)
        for streams, used in ((1, 0.5), (2, 0.7), (3, 0.8))
    )
    assert calibrated(FOUR, calibration(paths=paths, loaded=loaded)).queue is not None
    host = calibrated(FOUR, calibration(paths=paths, loaded=loaded, cpu_share=0.5))
    assert host.queue is None and host.bandwidths[0, 0] == 10**10 and host.idle_latencies
    # Nor where that of one node of two is known: the others would be compared with less.
    some = calibrated(FOUR, calibration(paths=paths, loaded=loaded[:6]))
    assert some.queue is None and some.bandwidths[0, 0] == 10**10


def test_threads_of_a_core_come_last_and_neighbours_late():
    siblings = {cpu: (cpu % 4, cpu % 4 + 4) for cpu in range(8)}
    assert spread_by_core(range(8), siblings) == [0, 2, 1, 3, 4, 6, 5, 7]
    assert spread_by_core([3], {}) == [3] and spread_by_core([], {}) == []


def test_a_calibration_without_latencies_still_counts(tmp_path: Path):
    old = msgspec.json.decode(encoded(calibration()))
    assert "latency_ns" not in old["paths"][0]
    del old["loaded"], old["at_once"], old["cpu_share"]
    (tmp_path / "b.json").write_bytes(msgspec.json.encode(old))
    host = calibrated(FOUR, read_calibration(MACHINE, tmp_path / "b.json"))
    assert host.queue is None and not host.idle_latencies and host.latencies == FOUR.latencies


def test_latencies_of_other_nodes_are_refused(tmp_path: Path):
    other = calibration(loaded=(LoadedLatency(77, 1, 10**9, 100.0),))
    (tmp_path / "b.json").write_bytes(encoded(other))
    with pytest.raises(VmplaceError, match="nodes that this machine does not have"):
        read_calibration(MACHINE, tmp_path / "b.json")


def test_nothing_measured_is_no_error(tmp_path: Path):
    assert read_calibration(MACHINE, tmp_path / "none.json") is None


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{", "is no calibration"), (b"{}", "is no calibration"), (b"\xff\xff", "is no calibration")],
)
def test_a_damaged_file_is_reported(tmp_path: Path, content: bytes, said: str):
    (tmp_path / "bandwidth.json").write_bytes(content)
    with pytest.raises(VmplaceError, match=said) as caught:
        read_calibration(MACHINE, tmp_path / "bandwidth.json")
    assert caught.value.hint == "vmplace calibrate"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"machine": MachineIdentity("Other CPU", ())}, "another machine"),
        ({"schema_version": 99}, "version 99"),
    ],
)
def test_figures_of_another_machine_or_version_do_not_count(
    tmp_path: Path, changed: dict[str, object], said: str
):
    (tmp_path / "bandwidth.json").write_bytes(encoded(calibration(**changed)))
    with pytest.raises(VmplaceError, match=said):
        read_calibration(MACHINE, tmp_path / "bandwidth.json")


def test_cpus_that_this_process_may_not_use_are_reported():
    with pytest.raises(VmplaceError, match="no CPU of node 0"):
        measured(FOUR, MACHINE, cpus=frozenset({99}))


def test_streams_that_read_nothing_in_so_short_a_time_are_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "measure_streams", lambda *_: None)
    with pytest.raises(VmplaceError, match="read nothing of node 0 within 20 ms") as reported:
        measured(read_host(), read_machine_identity(read_host()), duration_ms=20)
    assert "--duration-ms" in (reported.value.hint or "")


def test_a_node_that_is_not_there_is_reported():
    lone = replace(FOUR.nodes[0], nid=900, cpus=(0,), free_bytes=1 << 30)
    host = replace(FOUR, nodes=(lone,), distances={(900, 900): 10})
    with pytest.raises(VmplaceError, match="cannot read nodes") as caught:
        measured(host, MACHINE, duration_ms=20)
    assert caught.value.hint


def test_figures_where_nothing_fits_are_refused():
    one, two = np.zeros(1, np.int32), np.zeros(2, np.uint64)
    with pytest.raises(ValueError, match="a result for each pair"):
        native.measure_streams(one, one, one, one, 1 << 20, 1, two, two)


@pytest.mark.parametrize(
    ("chased", "only", "said"), [(3, -1, "power of two"), (-1, -1, "power of two"), (0, 1, "no node")]
)
def test_readers_that_cannot_be_are_refused(chased: int, only: int, said: str):
    one, result = np.zeros(1, np.int32), np.zeros(1, np.uint64)
    with pytest.raises(ValueError, match=said):
        native.measure_streams(one, one + chased, one + only, one, 1 << 20, 1, result, result)


def test_a_reader_that_stays_on_a_node_reads_no_other():
    host, cpu = read_host(), min(os.sched_getaffinity(0))
    nid = host.nid_of_cpu(cpu)
    assert nid is not None
    read = readings(host, [Reader(cpu, nid, of=nid)], (nid,), 20)
    assert read.bytes_per_s().keys() == {(nid, nid)}


def test_all_lines_are_chased_in_a_buffer_that_no_cache_holds():
    host = FOUR
    # Four times a cache of 32 MiB; without room for that nothing is measured.
    assert chased_mib(host, 32 << 20) == 128
    full = replace(host, nodes=tuple(replace(node, free_bytes=200 << 20) for node in host.nodes))
    assert chased_mib(full, 32 << 20) == 0
    # Unused file cache gives way.
    cached = replace(full, nodes=tuple(replace(node, inactive_file_bytes=4 << 30) for node in full.nodes))
    assert chased_mib(cached, 32 << 20) == 128


@dataclass
class SeveralNodes:
    """Stands for memory of several nodes, which no machine here has: what streams read, by how many they are.

    ``seen``: who read at each call.
    """

    bytes_per_s: Callable[[int], float]
    seen: list[tuple[Reader, ...]] = field(default_factory=list)

    def __call__(
        self, _host: object, readers: tuple[Reader, ...], nids: tuple[int, ...], ms: int
    ) -> Readings:
        self.seen.append(readers)
        streams = sum(not one.chased_mib for one in readers)
        each = self.bytes_per_s(streams) / max(streams, 1)
        rows = np.array([[640 if one.chased_mib else each] * len(nids) for one in readers])
        return Readings(readers, nids, rows.astype(np.uint64), np.full(rows.shape, 10**9, np.uint64), ms)


def wide_host() -> HostTopology:
    """Return a node of eight cores of two threads each, and three others in a square with it."""
    cpus = [tuple(range(16 * nid, 16 * nid + 16)) for nid in range(4)]
    nodes = tuple(Node(nid, cpus[nid], 64 << 30, 32 << 30) for nid in range(4))
    far = {(a, b): 10 if a == b else 22 if abs(a - b) == 2 else 16 for a in range(4) for b in range(4)}
    siblings = {cpu: (cpu & ~8, cpu | 8) for own in cpus for cpu in own}
    return HostTopology(nodes, far, siblings)


def test_streams_are_added_until_two_numbers_of_them_gain_nothing(monkeypatch: pytest.MonkeyPatch):
    fake = SeveralNodes(lambda streams: min(streams, 6) * 10**9)
    monkeypatch.setattr(calibration_runs, "readings", fake)
    got = measured(wide_host(), MACHINE)
    # 6 fill the controller; 8 and 12 gain nothing, and more are not tried.
    assert [one.streams for one in got.loaded if one.nid == 0] == [1, 2, 3, 4, 6, 8, 12]
    waiting = [readers for readers in fake.seen if len(readers) > 1 and readers[0].chased_mib]
    assert len(waiting) == len(got.loaded)
    for chaser, *streams in waiting:
        core = {chaser.cpu & ~8, chaser.cpu | 8}
        assert not core & {one.cpu for one in streams}
        # A thread of each core first.
        assert len({one.cpu & ~8 for one in streams}) == min(len(streams), 7)


def test_paths_that_may_share_a_link_are_read_at_once_each_by_its_own_node(monkeypatch: pytest.MonkeyPatch):
    fake = SeveralNodes(lambda streams: streams * 10**9)
    monkeypatch.setattr(calibration_runs, "readings", fake)
    got = measured(wide_host(), MACHINE)
    tried = {(two.one.cpu_nid, two.one.mem_nid, two.other.cpu_nid, two.other.mem_nid) for two in got.at_once}
    # All latencies are alike here, so nothing is far; by distances the square has its ways.
    assert tried == set()
    monkeypatch.setattr(calibration_runs, "chased_mib", lambda *_: 0)
    fake.seen.clear()
    got = measured(wide_host(), MACHINE)
    tried = {(two.one.cpu_nid, two.one.mem_nid, two.other.cpu_nid, two.other.mem_nid) for two in got.at_once}
    assert {(0, 2, 1, 0), (0, 2, 3, 0), (2, 0, 1, 2)} <= tried
    pairs = [{(one.nid, one.of) for one in readers} for readers in fake.seen if readers[0].of is not None]
    assert {(0, 2), (1, 0)} in pairs and len(pairs) == len(got.at_once)
