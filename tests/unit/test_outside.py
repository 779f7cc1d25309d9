"""The gate for what comes from outside, and the readers of files that somebody else wrote."""

import ast
import json
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.unit.topology.test_calibration import MACHINE, calibration
from vmplace import outside
from vmplace.agent.config import parse_config
from vmplace.errors import ConfigError, OutsideError, RecordingError, VmplaceError
from vmplace.interfaces.agent_socket import DEFAULT_SOCKET, socket_path
from vmplace.interfaces.report_policy import parse_policy_table
from vmplace.sampling.perf_script import parse_header, parse_samples
from vmplace.sampling.recording import FILE_HEAD, FILE_MAGIC, FRAME_HEAD, FRAME_MAGIC, iter_recording
from vmplace.topology.calibration import read_calibration
from vmplace.topology.capability import Roots
from vmplace.topology.sampling_capabilities import probe_access_sampling, probe_damon

HOST = '{"kind":"host","nodes":[{"nid":0,"cpus":[0],"memory_bytes":1,"free_bytes":1}],"distances":[[0,0,10]]}'
PACKAGE = Path(outside.__file__).parent


def strict_reads(source: str) -> Iterator[int]:
    """Yield the lines that read text as Python does: without a limit, and failing at the first bad byte."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="read_text")):
                yield node.lineno
            case (
                ast.Call(func=ast.Name("open"), args=[_, *rest])
                | ast.Call(func=ast.Attribute(attr="open"), args=rest)
            ):
                named = [word.value for word in node.keywords if word.arg == "mode"]
                mode = next(iter([*named, *rest]), ast.Constant("r"))
                if isinstance(mode, ast.Constant) and set(str(mode.value)) <= set("rt+"):
                    yield node.lineno


@pytest.mark.parametrize(
    ("source", "is_strict"),
    [
        ("Path('/proc/1/stat').read_text()", True),
        ("(proc / name).read_text(encoding='utf-8')", True),
        ("path.open()", True),
        ("path.open(encoding='utf-8')", True),
        ("path.open('r')", True),
        ("path.open(mode='rt')", True),
        ("open('/proc/1/stat')", True),
        ("read_text(path)", False),
        ("path.open('rb', buffering=0)", False),
        ("path.open('w')", False),
        ("open('/proc/self/comm', 'w')", False),
        ("os.open(path, os.O_RDONLY)", False),
    ],
)
def test_what_counts_as_a_strict_read(source: str, is_strict: bool):
    assert bool(list(strict_reads(source))) is is_strict


@pytest.mark.slow
def test_text_is_read_by_the_gate_alone():
    """Guests choose names that /proc shows as they are: a strict read ends whoever makes it."""
    found = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in PACKAGE.rglob("*.py")
        for line in strict_reads(path.read_text())
    }
    assert found == set()


def test_a_file_is_read_up_to_its_limit(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"abc")
    assert outside.read_bytes(tmp_path / "x", 3) == b"abc"
    with pytest.raises(OutsideError, match="more than 2 bytes"):
        outside.read_bytes(tmp_path / "x", 2)


def test_a_file_without_end_takes_no_more_than_its_limit():
    tracemalloc.start()
    with pytest.raises(OutsideError):
        outside.read_bytes(Path("/dev/zero"), 1 << 20)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_only_a_newline_ends_a_line():
    assert outside.lines("a\vb\fc\rd\x1ce\x85f\u2028g\nh\n") == ["a\vb\fc\rd\x1ce\x85f\u2028g", "h"]


@pytest.mark.parametrize("text", ["", " 1", "+1", "1_0", "٣", "-1", "1" * 5000, "0x1", "11"])
def test_a_number_has_one_form_and_a_range(text: str):
    with pytest.raises(OutsideError):
        outside.whole(text, most=10)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "x", None, 10**400])
def test_a_finite_number_is_one(value: object):
    with pytest.raises(OutsideError):
        outside.finite(value, least=0, most=10, what="it")


@pytest.mark.parametrize("content", [b"\xff", b'"\xff"', b"[" * 50_000, b"9" * 5000, b"{}x"])
def test_json_that_is_none_is_reported(content: bytes):
    with pytest.raises(OutsideError):
        outside.parse_json(content, list[object])


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000 + "]" * 5000,
        "window_ms = " + "9" * 5000,
        '"\\U0001F600" = 1',
        'socket = "/a\\u0000b"',
        "[budget]\ncall_ms = 1e-300",
        "[budget]\ncall_ms = nan",
    ],
)
def test_a_configuration_that_cannot_be_is_reported_with_its_place(text: str):
    with pytest.raises(ConfigError):
        parse_config(text, Path("v.toml"))


def test_a_command_finds_its_socket_whatever_the_configuration_holds(tmp_path: Path):
    for content in (b"a = " + b"[" * 5000 + b"]" * 5000, b"\xff", b'socket = "/a\\u0000b"'):
        (tmp_path / "v.toml").write_bytes(content)
        assert socket_path(tmp_path / "v.toml") == Path(DEFAULT_SOCKET)


def test_a_bad_byte_in_bandwidth_json_is_reported(tmp_path: Path):
    content = msgspec.json.encode(calibration()).replace(b"Some", b"So\xffe")
    (tmp_path / "b.json").write_bytes(content)
    with pytest.raises(VmplaceError, match="is no calibration"):
        read_calibration(MACHINE, tmp_path / "b.json")


@pytest.mark.parametrize(("old", "new"), [(b'"mem_nid":3', b'"mem_nid":9'), (b"10000000000", b"0")])
def test_a_calibration_of_other_nodes_or_of_no_bandwidth_is_refused(tmp_path: Path, old: bytes, new: bytes):
    (tmp_path / "b.json").write_bytes(msgspec.json.encode(calibration()).replace(old, new))
    with pytest.raises(VmplaceError):
        read_calibration(MACHINE, tmp_path / "b.json")


def frames(path: Path, *heads: str, body: bytes = b"") -> Path:
    content = FILE_HEAD.pack(FILE_MAGIC, 1)
    for text in heads:
        head = text.encode("latin-1")
        content += FRAME_HEAD.pack(FRAME_MAGIC, len(head), len(body), zlib.crc32(head + body)) + head + body
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "head",
    [
        HOST.replace("host", "h\xff"),
        HOST.replace("[0,0,10]", "[0,7,10]"),
        HOST.replace('"nid":0', '"nid":-1'),
        HOST.replace('"cpus":[0]', '"cpus":[' + "[" * 20_000),
    ],
)
def test_a_frame_that_cannot_be_is_damage(tmp_path: Path, head: str):
    with pytest.raises(RecordingError):
        list(iter_recording(frames(tmp_path / "x", head)))


@pytest.mark.parametrize("npages", [-1, 0, 1 << 40])
def test_a_range_of_a_recording_has_as_many_pages_as_a_guest(tmp_path: Path, npages: int):
    ram: dict[str, object] = {"hva": 4096, "npages": npages, "base_gfn": None, "page_size_bytes": 4096}
    ram |= {"movability": "movable", "reason": ""}
    batch = {"kind": "batch", "guest": "a", "source": "idle", "sight": {}, "started_ns": 0, "ended_ns": 1}
    path = frames(
        tmp_path / "x", HOST, json.dumps({**batch, "nids": [0], "ranges": [ram]}), body=zlib.compress(b"")
    )
    with pytest.raises(RecordingError, match="pages of a range"):
        list(iter_recording(path))


def test_lengths_of_a_recording_are_not_taken_at_their_word(tmp_path: Path):
    (tmp_path / "x").write_bytes(
        FILE_HEAD.pack(FILE_MAGIC, 1) + struct.pack("<4sIII", FRAME_MAGIC, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    )
    tracemalloc.start()
    with pytest.raises(RecordingError, match="cut short"):
        list(iter_recording(tmp_path / "x"))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_what_perf_never_prints_is_no_sample_and_no_header():
    line = "CPU 0/KVM 1/99999999999999999999 [000] 1.000000000: 68100142 |OP LOAD 1000\n"
    assert not len(parse_samples([line]).times_ns)
    with pytest.raises(OutsideError):
        parse_header(["# node0 cpu list : 0-9999999999\n"])


def test_a_table_of_policies_with_a_bad_byte_is_reported():
    with pytest.raises(VmplaceError):
        parse_policy_table(b'{"rows": "\xff"}', Path("x"))


@pytest.mark.parametrize(
    ("mark", "answer"),
    [(None, False), ("1\n0 12 77", False), ("2\n0 12 4711", False), ("1\n0 12 4711", True)],
)
def test_doctor_tells_of_damon_what_the_agent_will_find(tmp_path: Path, mark: str | None, answer: bool):
    root = tmp_path / "kernel/mm/damon/admin/kdamonds/0"
    root.mkdir(parents=True)
    (root.parent / "nr_kdamonds").write_text("1\n")
    (root / "state").write_text("on\n")
    (root / "pid").write_text("4711\n")
    (tmp_path / "run").mkdir()
    if mark:
        (tmp_path / "run/damon-kdamonds").write_text(mark)
    trace_point = tmp_path / "kernel/tracing/events/damon/damon_aggregated/format"
    trace_point.parent.mkdir(parents=True)
    trace_point.touch()
    roots = Roots(sys=tmp_path, dev=tmp_path, run=tmp_path / "run")
    found = probe_damon(roots)
    assert found.answer is answer
    assert answer or "in use by somebody else (on)" in found.why
    assert probe_access_sampling(roots).answer is answer
    trace_point.unlink()
    assert not probe_damon(roots).answer
