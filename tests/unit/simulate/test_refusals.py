"""`vmplace simulate` says in a line what is wrong, before it works for nothing."""

import os
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.unit.simulate.small_trace import arrays_of, private_pages
from vmplace.errors import VmplaceError
from vmplace.interfaces.cli import cli
from vmplace.interfaces.error_lines import error_line
from vmplace.interfaces.output_file import opened_output
from vmplace.simulate.trace import TraceError, parse_trace, read_trace

HOST = """
distances = [[10, 20], [20, 10]]
bandwidth_mib_per_s = [[8000, 4000], [4000, 8000]]
node = [{nid = 0, cpus = 2, memory_mib = 64}, {nid = 1, cpus = 2, memory_mib = 64}]
"""


def simulated(folder: Path, *more: str, guest: str = "", arrays: dict[str, Any] | None = None) -> Any:
    np.savez(folder / "t.npz", **(arrays or private_pages(windows=2, npages=8)))
    (folder / "h.toml").write_text(HOST)
    reported = ["simulate", "--host", str(folder / "h.toml"), "--guest", f"db={folder}/t.npz{guest}", *more]
    return CliRunner().invoke(cli, reported)


@pytest.mark.parametrize(
    ("guest", "said"),
    [
        (",mlp=inf", "mlp is inf"),
        (",mlp=nan", "mlp is nan"),
        (",vcpus=9999", "vcpus is 9999"),
        (",vcpus=4,vcpus=8", "not understood"),
        (",nodes=0+0", "named twice"),
        (",first_touch=1_0", "not a whole number"),
    ],
)
def test_what_is_wrong_with_a_guest_is_said_in_a_line(tmp_path: Path, guest: str, said: str):
    answer = simulated(tmp_path, guest=guest)
    assert isinstance(answer.exception, VmplaceError)
    assert said in str(answer.exception)
    assert "\n" not in str(answer.exception)


@pytest.mark.parametrize(
    "words",
    [
        ("--guest", "a=x.npz,bogus"),
        ("--guest", "db=x.npz"),
        ("--guest", "a={}/t.npz,nodes=7"),
        ("--guest", "a={}/t.npz,pages=3K"),
        ("--source", "nope"),
        ("--source", "ibs:x"),
        ("--source", "hints", "--policy", "agent:auto"),
        ("--host", "nosuch"),
        ("--json", "{}/t.npz"),
    ],
    ids=" ".join,
)
def test_a_command_line_that_is_wrong_is_wrong_usage_by_code_and_by_exit_code(
    tmp_path: Path, words: tuple[str, ...]
):
    answer = simulated(tmp_path, *(word.format(tmp_path) for word in words))
    assert isinstance(answer.exception, VmplaceError), answer.output
    line = error_line(answer.exception)
    assert (line.error.code, line.exit_code) == ("usage", 2) and line.error.cure


@pytest.mark.parametrize("number", ["nan", "inf", "-1"])
def test_the_price_of_a_move_is_finite(tmp_path: Path, number: str):
    assert simulated(tmp_path, "--move-ns", number).exit_code == 2


def test_a_place_that_cannot_be_written_is_reported_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vmplace.simulate.run.simulate", lambda *_: pytest.fail("it ran"))
    answer = simulated(tmp_path, "--json", str(tmp_path / "no/such/x.json"))
    assert "cannot be written" in str(answer.exception)


@pytest.mark.parametrize(
    "period",
    ["", "²", "9" * 5000, "9" * 400, "-1", "0", "1.5", "1e3", str(1 << 33)],
    ids=lambda text: text[:9],
)
def test_a_period_that_no_counter_has_is_said_in_a_line(tmp_path: Path, period: str):
    for name in ("ibs", "ibs-hits"):
        answer = simulated(tmp_path, "--source", f"{name}:{period}")
        assert isinstance(answer.exception, VmplaceError)
        assert "period" in str(answer.exception) and len(str(answer.exception)) < 200
        assert str(answer.exception.hint).startswith(f"for example {name}:")


def test_a_full_disk_is_said_in_a_line(tmp_path: Path):
    answer = simulated(tmp_path, "--json", "/dev/full")
    assert isinstance(answer.exception, VmplaceError)
    assert "/dev/full cannot be written: No space left on device" in str(answer.exception)


def test_a_file_that_grows_too_large_is_said_in_a_line_and_the_old_one_stays(tmp_path: Path):
    (tmp_path / "x").write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(VmplaceError, match="x cannot be written: File too large"):
            _write(tmp_path / "x", b"n" * 4096)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "old")]


def test_a_pipe_that_a_link_stands_for_is_written(tmp_path: Path):
    """As /dev/stdout is in a pipeline: the path behind the link is the name of no file."""
    reader, writer = os.pipe()
    _write(Path(f"/proc/self/fd/{writer}"), b"figures")
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"figures"


@pytest.mark.parametrize("option", ["--json", "--host"])
def test_links_that_lead_to_each_other_are_said_in_a_line(tmp_path: Path, option: str):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for name in ("a", "a/x"):
        answer = simulated(tmp_path, option, str(tmp_path / name))
        assert isinstance(answer.exception, VmplaceError)
        assert "Too many levels of symbolic links" in str(answer.exception)


def _write(path: Path, content: bytes) -> None:
    with opened_output(path) as file:
        file.write(content)


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_person_sees_which_policy_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_watched: bool):
    monkeypatch.setattr("vmplace.simulate.commands._is_watched", lambda: is_watched)
    answer = simulated(tmp_path, "--policy", "bwap")
    assert answer.exit_code == 0
    assert ("2 of 3: policy bwap" in answer.stderr) is is_watched


@pytest.mark.parametrize("name", ["t.npz", "h.toml", "link"])
def test_figures_never_take_the_place_of_what_they_are_made_from(tmp_path: Path, name: str):
    (tmp_path / "link").symlink_to(tmp_path / "t.npz")
    answer = simulated(tmp_path, "--json", str(tmp_path / name), guest=",vcpus=2")
    assert "is read by this run" in str(answer.exception)
    assert (tmp_path / "h.toml").read_text() == HOST
    read_trace(tmp_path / "t.npz")


def test_a_run_that_fails_leaves_no_file_and_the_old_one(tmp_path: Path):
    (tmp_path / "x").write_text("old")

    def fail() -> None:
        with opened_output(tmp_path / "x") as file:
            file.write(b"new")
            raise VmplaceError("no")

    with pytest.raises(VmplaceError):
        fail()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "old")]


@pytest.mark.parametrize("count", [1 << 38, 1 << 60])
def test_counts_that_no_program_has_end_in_a_line_not_in_hours(tmp_path: Path, count: int):
    arrays = private_pages(windows=2, npages=8)
    for name in ("loads", "llc_misses", "totals_raw_loads"):
        arrays[name] = arrays[name].astype(np.uint64)
        arrays[name].flat[0] = count
    arrays["llc_misses"] = np.minimum(arrays["llc_misses"], arrays["loads"])
    assert isinstance(simulated(tmp_path, arrays=arrays).exception, VmplaceError)


def test_a_trace_without_a_record_is_refused():
    with pytest.raises(TraceError, match="no record"):
        parse_trace(arrays_of([], pages=3, threads=2, windows=1), name="t")


def test_an_array_that_claims_more_than_its_bytes_takes_no_memory(tmp_path: Path):
    np.savez(tmp_path / "t.npz", **private_pages(windows=2, npages=8))
    with zipfile.ZipFile(tmp_path / "t.npz") as old, zipfile.ZipFile(tmp_path / "u.npz", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, content.replace(b"(8,), }        ", b"(8589934592,), }"))
    with pytest.raises(TraceError, match=f"an array of {2 << 33} bytes"):
        read_trace(tmp_path / "u.npz")
