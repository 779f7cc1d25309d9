"""Recordings: what comes back is what went in, whatever happened to the file."""

import json
import os
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.unit.sampling.guest_process import ram_range
from vmplace.errors import GuestGoneError, OutsideError, RecordingError, UnsupportedHostError
from vmplace.model.host_memory import host_memory
from vmplace.sampling import recording
from vmplace.sampling.recording import FILE_HEAD, FRAME_HEAD, Event, Recorder, iter_recording
from vmplace.sampling.recording_frames import RunFrame, host_frame, host_of
from vmplace.sampling.registry import best_source
from vmplace.sampling.sample import (
    EarlyBits,
    NodeBits,
    NodeHits,
    RangeSample,
    SampleBatch,
    SourceCoverage,
)
from vmplace.sampling.source import SourceSetup
from vmplace.sampling.source_replay import ReplaySource
from vmplace.topology.guest import Cell, GuestTopology, Vcpu
from vmplace.topology.host import HostTopology, HugepagePool, Node, NodeLink
from vmplace.topology.sysfs import read_host

HOST = HostTopology(
    (Node(0, (0, 2), 8 << 30, 1 << 30, (HugepagePool(2 << 20, 4, 1),)), Node(5, (), 4 << 30, 0)),
    {(0, 0): 10, (0, 5): 21, (5, 0): 21, (5, 5): 10},
    {0: (0, 2), 2: (0, 2)},
    {(0, 5): 12_000_000_000},
)
DATA = Path(__file__).parents[2] / "data/recordings"
RAM = (ram_range(0x7F0000000000, 3000), replace(ram_range(0x7F1000001000, 700), base_gfn=0x100000, cell=1))


def guest(name: str) -> GuestTopology:
    vcpus = (Vcpu(0, 4711, (0, 2), 1), Vcpu(1, 4712, (0,)))
    return GuestTopology(name, 4710, 99, "libvirt", vcpus, RAM, (Cell(1, (0,), 1 << 20),), "some-uuid")


def batch(name: str, window: int) -> SampleBatch:
    rng = np.random.default_rng(window)
    ranges = tuple(
        RangeSample(
            ram,
            rng.integers(0, 2, ram.npages).astype(np.uint8),
            rng.integers(-1, 2, ram.npages).astype(np.int8),
            rng.integers(0, 2, blocks).astype(np.uint8),
        )
        for ram, blocks in zip(RAM, (6, 2), strict=True)
    )
    return SampleBatch(
        name, "idle", SourceCoverage(), window * 10**9, window * 10**9 + 500, HOST.nids, ranges
    )


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Give a recording of guests a and b, three windows each."""
    path = tmp_path / "x.vmptrace"
    with Recorder(path, HOST) as recorder:
        for window in range(3):
            recorder.add(guest("a"), batch("a", window))
            recorder.add(guest("b"), batch("b", window + 10))
    return path


def with_users(one: SampleBatch, window: int) -> SampleBatch:
    """Return the batch with all that a source which sees nodes may tell."""
    rng = np.random.default_rng(window + 100)

    def bits(rows: int, npages: int) -> np.ndarray:
        pages = np.zeros((rows, -(-npages // 64) * 64), np.uint8)
        pages[:, :npages] = rng.integers(0, 2, (rows, npages))
        return np.packbits(pages, axis=1, bitorder="little").view(np.uint64)

    ranges = []
    for sample, rows in zip(one.ranges, (3, 1), strict=True):
        npages = sample.ram.npages
        early = tuple(EarlyBits(after, bits(3, npages)) for after in (100, 300)[: window % 3])
        written = bits(rows, npages) if window != 1 else None
        hits = NodeHits(rng.integers(0, npages, 9), rng.integers(0, 3, 9))
        by_node = NodeBits(bits(3, npages), written, early)
        ranges.append(replace(sample, by_node=by_node, counted=hits, text=np.arange(window)))
    return replace(one, ranges=tuple(ranges))


def arrays_of(one: RangeSample) -> list[np.ndarray]:
    assert one.by_node and one.counted and one.text is not None
    arrays = [one.by_node.accessed, one.counted.pages, one.counted.rows, one.text]
    arrays += [] if one.by_node.written is None else [one.by_node.written]
    return [*arrays, *(early.accessed for early in one.by_node.early)]


def test_who_touched_what_and_when_comes_back_too(tmp_path: Path) -> None:
    batches = [with_users(batch("a", window), window) for window in range(3)]
    with Recorder(tmp_path / "x", HOST) as recorder:
        for one in batches:
            recorder.add(guest("a"), one)
    back = [event for event in iter_recording(tmp_path / "x") if isinstance(event, SampleBatch)]
    for one, other in zip(batches, back, strict=True):
        assert same(one, other)
        for mine, theirs in zip(one.ranges, other.ranges, strict=True):
            assert mine.by_node and theirs.by_node
            assert (mine.by_node.written is None) == (theirs.by_node.written is None)
            assert [e.after_ns for e in mine.by_node.early] == [e.after_ns for e in theirs.by_node.early]
            for left, right in zip(arrays_of(mine), arrays_of(theirs), strict=True):
                assert np.array_equal(left, right)


def test_a_recording_with_the_former_name_of_a_field_is_read(tmp_path: Path) -> None:
    with Recorder(tmp_path / "new", HOST) as recorder:
        recorder.add(guest("a"), with_users(batch("a", 2), 2))
    raw, at = (tmp_path / "new").read_bytes(), FILE_HEAD.size
    renamed = raw[:at]
    while at < len(raw):
        magic, head_bytes, body_bytes, _ = FRAME_HEAD.unpack(raw[at : at + FRAME_HEAD.size])
        payload = raw[at + FRAME_HEAD.size :][: head_bytes + body_bytes]
        at += FRAME_HEAD.size + len(payload)
        head = payload[:head_bytes].replace(b'"arrays":', b'"told":')
        payload = head + payload[head_bytes:]
        renamed += FRAME_HEAD.pack(magic, len(head), body_bytes, zlib.crc32(payload)) + payload
    (tmp_path / "old").write_bytes(renamed)
    assert b'"told":' in renamed and b'"told":' not in raw
    (new,), (old,) = (
        [event for event in iter_recording(tmp_path / name) if isinstance(event, SampleBatch)]
        for name in ("new", "old")
    )
    for mine, theirs in zip(new.ranges, old.ranges, strict=True):
        for left, right in zip(arrays_of(mine), arrays_of(theirs), strict=True):
            assert np.array_equal(left, right)


def test_a_recording_of_version_1_is_read_with_what_it_has() -> None:
    """The demo's, as an earlier version made it."""
    events = list(iter_recording(DATA / "format-1.vmptrace"))
    batches = [event for event in events if isinstance(event, SampleBatch)]
    assert isinstance(events[0], HostTopology) and len(batches) >= 2
    assert all(one.by_node is None for event in batches for one in event.ranges)
    assert any(one.accessed.any() for event in batches for one in event.ranges)


def same(one: SampleBatch, other: SampleBatch) -> bool:
    arrays = ("accessed", "node_index", "huge")
    return replace(one, ranges=()) == replace(other, ranges=()) and all(
        a.ram == b.ram and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays)
        for a, b in zip(one.ranges, other.ranges, strict=True)
    )


def good_events(path: Path) -> list[Event]:
    return list(iter_recording(path, on_damage=lambda _: None))


def test_what_was_recorded_comes_back(recorded: Path) -> None:
    events = list(iter_recording(recorded))
    assert events[0] == HOST
    assert [event for event in events if isinstance(event, GuestTopology)] == [guest("a"), guest("b")]
    batches = [event for event in events if isinstance(event, SampleBatch)]
    wanted = [batch(name, window + skip) for window in range(3) for name, skip in (("a", 0), ("b", 10))]
    assert all(same(*pair) for pair in zip(batches, wanted, strict=True))


def test_a_guest_is_reported_again_only_when_it_changed(tmp_path: Path) -> None:
    with Recorder(tmp_path / "x", HOST) as recorder:
        recorder.add(guest("a"), batch("a", 0))
        recorder.add(guest("a"), batch("a", 1))
        recorder.add(replace(guest("a"), vcpus=()), batch("a", 2))
    kinds = [type(event).__name__ for event in iter_recording(tmp_path / "x")]
    assert " ".join(kinds[1:]) == "GuestTopology SampleBatch SampleBatch GuestTopology SampleBatch"


def test_a_file_cut_anywhere_gives_a_prefix_and_says_where(recorded: Path, tmp_path: Path) -> None:
    data, cut = recorded.read_bytes(), tmp_path / "cut"
    counts = []
    for length in range(12, len(data), 37):
        cut.write_bytes(data[:length])
        counts.append(len(good_events(cut)))
        try:
            list(iter_recording(cut))
        except RecordingError as err:
            assert f"of {length}; " in str(err) and "cut short" in str(err)
    assert counts == sorted(counts) and counts[-1] == 8


def test_a_flipped_bit_anywhere_is_noticed(recorded: Path, tmp_path: Path) -> None:
    data, damaged = bytearray(recorded.read_bytes()), tmp_path / "damaged"
    for at in range(0, len(data), 97):
        data[at] ^= 0x10
        damaged.write_bytes(data)
        with pytest.raises(RecordingError):
            list(iter_recording(damaged))
        data[at] ^= 0x10


def test_an_error_counts_what_is_good(recorded: Path) -> None:
    data = bytearray(recorded.read_bytes())
    data[-1] ^= 1
    recorded.write_bytes(data)
    with pytest.raises(RecordingError, match=r"offset \d+ of \d+; 5 batches before it are good"):
        list(iter_recording(recorded))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a recording"),
        (b"PK\3\4 something else", "not a recording"),
        (b"VMPTRACE" + struct.pack("<I", 3), "version 3, this vmplace reads versions 1 and 2"),
    ],
)
def test_foreign_files_are_kept_apart(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(RecordingError, match=words):
        list(iter_recording(tmp_path / "x"))


def forged(path: Path, head: bytes, body: bytes) -> Path:
    crc = zlib.crc32(body, zlib.crc32(head))
    frame = struct.pack("<4sIII", b"VMPF", len(head), len(body), crc) + head + body
    path.write_bytes(b"VMPTRACE" + struct.pack("<I", 2) + frame)
    return path


def test_a_frame_of_no_known_kind_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="kind"):
        list(iter_recording(forged(tmp_path / "x", b'{"kind": "party"}', b"")))


@pytest.mark.parametrize("extra", [-1, 1, 1 << 20])
def test_arrays_that_do_not_fit_their_ranges_are_refused(recorded: Path, tmp_path: Path, extra: int) -> None:
    data = recorded.read_bytes()
    start = data.index(b'{"kind":"batch"') - 16
    head_bytes = struct.unpack_from("<4sIII", data, start)[1]
    wanted = 2 * (3000 + 700) + 6 + 2
    forged(tmp_path / "x", data[start + 16 : start + 16 + head_bytes], zlib.compress(bytes(wanted + extra)))
    with pytest.raises(RecordingError, match=f"do not hold the {wanted} bytes"):
        list(iter_recording(tmp_path / "x"))


def test_a_batch_that_claims_more_than_memory_holds_is_refused_unseen(recorded: Path, tmp_path: Path) -> None:
    data = recorded.read_bytes()
    start = data.index(b'{"kind":"batch"') - 16
    head = json.loads(data[start + 16 : start + 16 + struct.unpack_from("<4sIII", data, start)[1]])
    head["ranges"][1]["npages"] = 1 << 28
    head["arrays"][1] |= {"node_rows": len(head["nids"]) + 1, "early_ns": [*range(1, 65)]}
    forged(tmp_path / "x", json.dumps(head).encode(), zlib.compress(bytes(1 << 20)))
    with pytest.raises(RecordingError, match="size of a batch"):
        list(iter_recording(tmp_path / "x"))


def test_a_recording_is_its_owners_alone(tmp_path: Path) -> None:
    """It tells addresses of other processes, and names of guests."""
    before = os.umask(0)
    try:
        Recorder(tmp_path / "x", HOST).close()
        (tmp_path / "y").touch(0o644)
        Recorder(tmp_path / "y", HOST, overwrite=True).close()
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "xy"] == [0o600, 0o600]


def test_what_nobody_could_read_back_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_BODY_BYTES", 7000)
    with (
        Recorder(tmp_path / "x", HOST) as recorder,
        pytest.raises(RecordingError, match="guest a takes more"),
    ):
        recorder.add(guest("a"), batch("a", 1))
    assert not any(isinstance(event, SampleBatch) for event in iter_recording(tmp_path / "x"))


def test_a_head_that_nobody_could_read_back_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.vmptrace"
    with Recorder(path, HOST) as recorder:
        recorder.tell(RunFrame("auto", acted=True))
        monkeypatch.setattr(recording, "MOST_HEAD_BYTES", 1000)
        with pytest.raises(RecordingError, match="too long"):
            recorder.tell(RunFrame("x" * 1000, acted=True))
    assert sum(isinstance(event, RunFrame) for event in iter_recording(path)) == 1


def test_an_existing_file_is_not_overwritten(recorded: Path) -> None:
    with pytest.raises(RecordingError, match="exists"):
        Recorder(recorded, HOST)
    assert len(good_events(recorded)) == 9


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="no /dev/full")
def test_a_full_disk_is_a_recording_error() -> None:
    with pytest.raises(RecordingError, match="No space left"):
        Recorder(Path("/dev/full"), HOST, overwrite=True)


WRITER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tests.unit.sampling.test_recording import HOST, Recorder, batch, guest
recorder = Recorder(Path(sys.argv[1]), HOST)
for window in range(10**6):
    recorder.add(guest("a"), batch("a", window))
    print(window, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 20, 53])
def test_a_killed_recorder_leaves_all_that_it_added(tmp_path: Path, after: int) -> None:
    command, path = [sys.executable, "-c", WRITER, str(tmp_path / "x")], tmp_path / "x"
    with subprocess.Popen(command, stdout=-1, text=True, env={**os.environ, "PYTHONPATH": "."}) as writer:
        assert writer.stdout
        while int(writer.stdout.readline()) < after:
            pass
        writer.kill()
        added = 1 + max([after, *map(int, writer.stdout.read().split())])
    batches = [event for event in good_events(path) if isinstance(event, SampleBatch)]
    assert added <= len(batches) <= added + 1
    assert all(a.started_ns < b.started_ns for a, b in pairwise(batches))


def test_replay_gives_each_guest_its_batches_and_then_ends(recorded: Path) -> None:
    source = ReplaySource(SourceSetup(HOST, recording=recorded))
    assert source.host == HOST
    assert [same(source.harvest(guest("b")), batch("b", window + 10)) for window in range(3)] == [True] * 3
    assert same(source.harvest(guest("a")), batch("a", 0))
    with pytest.raises(GuestGoneError):
        source.harvest(guest("b"))


def test_timed_replay_takes_as_long_as_the_windows_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Recorder(tmp_path / "x", HOST) as recorder:
        recorder.add(guest("a"), replace(batch("a", 0), started_ns=0, ended_ns=200_000_000))
    slept_s: list[float] = []
    monkeypatch.setattr("vmplace.sampling.source_replay.time", SimpleNamespace(sleep=slept_s.append))
    ReplaySource(SourceSetup(HOST, recording=tmp_path / "x"), timed=True).harvest(guest("a"))
    assert slept_s == [0.2]


def test_without_any_sensor_all_reasons_are_given(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedHostError) as refused:
        best_source(SourceSetup(HOST, sysfs=tmp_path))
    assert "idle: the kernel has no idle-page tracking" in str(refused.value)
    assert "damon: the kernel has no DAMON" in str(refused.value)
    assert "CONFIG_IDLE_PAGE_TRACKING" in str(refused.value.hint)


def test_replay_is_never_chosen_by_itself(recorded: Path) -> None:
    assert best_source(SourceSetup(HOST, recording=recorded), "replay").source.name == "replay"
    with pytest.raises(UnsupportedHostError, match="no recording"):
        best_source(SourceSetup(HOST), "replay")


def test_the_reader_in_the_documentation_works(recorded: Path, tmp_path: Path) -> None:
    text = Path("docs/recording.md").read_text().partition("## Reading one without vmplace")[2]
    code = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    code = code.replace("x.vmptrace", str(recorded))
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in shown.splitlines()] == [
        "host",
        "guest",
        "batch",
        "guest",
        *["batch"] * 5,
    ]


CALIBRATED = replace(
    read_host(DATA.parent / "hosts/16amd64-4n8c"),
    idle_latencies={(0, 0): 90.5, (0, 1): 140.25},
    links=(NodeLink((0, 1), 10**10), NodeLink((1, 3), 10**10)),
    queue=5.25,
)


def test_what_a_calibration_found_is_kept():
    back = host_of(host_frame(CALIBRATED))
    assert (back.idle_latencies, back.links, back.queue) == (
        CALIBRATED.idle_latencies,
        CALIBRATED.links,
        CALIBRATED.queue,
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"queue": 0.0},
        {"queue": float("nan")},
        {"links": (NodeLink((0, 9), 1),)},
        {"links": (NodeLink((0, 0), 1),)},
        {"links": (NodeLink((0, 1), 1), NodeLink((1, 0), 1))},
        {"links": (NodeLink((0, 1), 0),)},
        {"idle_latencies": {(0, 9): 90.0}},
        {"idle_latencies": {(0, 1): 0.0}},
    ],
)
def test_a_host_that_no_calibration_finds_is_refused(changed: dict[str, object]):
    wrong = replace(CALIBRATED, **changed)  # type: ignore[arg-type]
    with pytest.raises(OutsideError):
        host_of(host_frame(wrong))


def test_links_that_do_not_lead_everywhere_leave_each_path_its_own():
    alone = replace(CALIBRATED, bandwidths={(a, b): 10**10 for a in range(4) for b in range(4)})
    known = host_memory(host_of(host_frame(alone)))
    assert known is not None and len(known.links) == 12
