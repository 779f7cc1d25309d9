"""Files of perf record: what the perf tool prints of them, and the guests in it (tests/data/perf/README)."""

from pathlib import Path

import numpy as np
import pytest

from vmplace.errors import RecordingError, UnsupportedHostError
from vmplace.sampling.page_arrays import unpacked
from vmplace.sampling.perf_recording import PerfRecording, perf_recording, read_perf_data
from vmplace.sampling.perf_script import is_perf_data, parse_header, parse_samples

DATA = Path(__file__).parents[2] / "data/perf"
# perf-script(1) prints loads that Intel's PEBS sampled in the same form.
MEM_LOAD = (
    "  CPU 3/KVM  4711/4720  [012]  1000.000000007:      5080184 |OP LOAD|LVL L3 hit|SNP None"
    "|TLB L1 or L2 hit|LCK No|BLK  N/A    87fa12d0c8"
)


@pytest.fixture(scope="module")
def recorded() -> PerfRecording:
    texts = ((DATA / f"two-vcpus.{part}.txt").read_text().splitlines() for part in ("header", "samples"))
    header, samples = texts
    return perf_recording(parse_header(header), parse_samples(samples))


def test_nodes_and_their_memory_come_from_the_header(recorded: PerfRecording) -> None:
    assert [(node.nid, node.cpus) for node in recorded.host.nodes] == [(0, (0, 1)), (1, (2, 3))]
    assert recorded.header.block_bytes == 128 << 20
    # The firmware of the emulated machine leaves a hole from 2 GiB to 4 GiB.
    assert [node.blocks for node in recorded.header.nodes] == [tuple(range(16)), tuple(range(32, 48))]


def test_vcpus_are_known_by_their_threads_names_and_run_where_they_were_pinned(
    recorded: PerfRecording,
) -> None:
    (guest,) = recorded.guests
    assert [(vcpu.vcpu_id, vcpu.cpus) for vcpu in guest.vcpus] == [(0, (0,)), (1, (2,))]


def touched(recorded: PerfRecording, row: int, *, written: bool = False) -> int:
    """Return how many pages the CPUs of a node touched, in one window that holds everything."""
    (batch,) = recorded.iter_batches(10**6)
    bits = [(one.by_node, one.ram.npages) for one in batch.ranges if one.by_node]
    rows = [(nodes.written if written else nodes.accessed, npages) for nodes, npages in bits]
    return sum(
        int(unpacked(of_nodes[row], npages).sum()) for of_nodes, npages in rows if of_nodes is not None
    )


def test_the_vcpu_that_writes_is_seen_to(recorded: PerfRecording) -> None:
    assert touched(recorded, 1, written=True) > touched(recorded, 0, written=True)
    assert touched(recorded, 2) == 0


def test_pages_that_were_sampled_have_the_node_of_their_block_and_others_none(
    recorded: PerfRecording,
) -> None:
    (batch,) = recorded.iter_batches(10**6)
    for sample in batch.ranges:
        nid = 0 if sample.ram.hva < 2 << 30 else 1
        assert set(sample.node_index[sample.accessed != 0]) == {nid}
        assert set(sample.node_index[sample.accessed == 0]) <= {-1}


def test_windows_hold_their_own_samples_only(recorded: PerfRecording) -> None:
    times = recorded.samples[0].times_ns
    batches = list(recorded.iter_batches(100))
    assert len(batches) == (times[-1] - times[0]) // 10**8 + 1
    of_first = np.unique(recorded.samples[0].frames[times < times[0] + 10**8])
    assert sum(int(sample.accessed.sum()) for sample in batches[0].ranges) == len(of_first)


def test_loads_that_intel_samples_are_read_too() -> None:
    samples = parse_samples([MEM_LOAD])
    assert (samples.comms, samples.tids.tolist(), samples.cpus.tolist()) == (
        {4720: "CPU 3/KVM"},
        [4720],
        [12],
    )
    assert (samples.times_ns.tolist(), samples.phys_addrs.tolist()) == ([1000 * 10**9 + 7], [0x87FA12D0C8])


@pytest.mark.parametrize("order", [1, -1])
def test_a_thread_keeps_its_name_where_perf_has_only_its_number(order: int) -> None:
    # What ran in the guest is printed with ":TID" in place of the name.
    lines = [MEM_LOAD, MEM_LOAD.replace("CPU 3/KVM", ":4720")]
    samples = parse_samples(lines[::order])
    assert len(samples.times_ns) == 2
    assert samples.comms == {4720: "CPU 3/KVM"}


def test_samples_without_an_address_or_a_memory_access_are_left_out() -> None:
    no_address = MEM_LOAD.replace("87fa12d0c8", "0")
    no_access = MEM_LOAD.replace("5080184", "5080181")
    assert not len(parse_samples([no_address, no_access, "", "garbage"]).times_ns)


def test_a_recording_without_vcpus_is_refused_with_the_cure() -> None:
    samples = parse_samples([MEM_LOAD.replace("CPU 3/KVM", "mysqld")])
    with pytest.raises(RecordingError, match="no thread in it is a vCPU's") as refused:
        perf_recording(parse_header((DATA / "two-vcpus.header.txt").read_text().splitlines()), samples)
    assert "debug-threads=on" in (refused.value.hint or "")


def test_perf_files_are_known_by_their_magic(tmp_path: Path) -> None:
    (tmp_path / "perf.data").write_bytes(b"PERFILE2h")
    (tmp_path / "other").write_bytes(b"VMPTRACE")
    assert [is_perf_data(tmp_path / name) for name in ("perf.data", "other", "absent")] == [
        True,
        False,
        False,
    ]


def test_without_the_perf_tool_its_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedHostError, match="perf tool is not installed"):
        read_perf_data(tmp_path / "perf.data")


def test_what_perf_says_of_a_file_it_cannot_read_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "perf"
    tool.write_text("#!/bin/sh\necho incompatible file format >&2; exit 255\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(RecordingError, match="incompatible file format"):
        read_perf_data(tmp_path / "perf.data")
