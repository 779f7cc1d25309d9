"""The file of the loop's runs: nothing that is in it gets lost, and nothing wrong is taken from it."""

import json
import resource
from pathlib import Path

import pytest

from vmplace.errors import ConfigError, VmplaceError
from vmplace.fleet.kept_runs import KeptRuns, StateRun

RUN = StateRun((((), (("gups", 2),))), (0.0, 0.5), ((), (0.5,)))
OTHER = StateRun((((), (("gups", 4),))), (0.0, 0.75), ((), (0.75,)))


def kept(path: Path, inputs: str = "traces") -> KeptRuns:
    return KeptRuns(path, 1e9, inputs)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with one run."""
    with kept(tmp_path / "runs") as runs:
        runs.keep(RUN)
    return tmp_path / "runs"


def test_runs_are_kept_and_a_torn_line_is_cut_off_without_a_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"state":[[["gu')
    monkeypatch.setattr(Path, "write_bytes", None)
    with kept(path) as again:
        assert again.runs == {RUN.state: RUN} and path.read_bytes() == whole
        again.keep(RUN)
    assert path.read_bytes() == whole + whole.splitlines(keepends=True)[1]


def test_the_second_user_is_refused_until_the_first_is_done(path: Path) -> None:
    with kept(path) as first:
        with pytest.raises(ConfigError) as caught:
            kept(path)
        first.keep(OTHER)
    assert "another model" in str(caught.value) and "--loop-runs" in (caught.value.hint or "")
    with kept(path) as second:
        assert second.runs == {RUN.state: RUN, OTHER.state: OTHER}


def test_a_full_disk_costs_the_run_that_it_did_not_take(path: Path) -> None:
    size, limits = path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    with kept(path) as runs:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 9, limits[1]))
        try:
            with pytest.raises(VmplaceError, match="cannot write"):
                runs.keep(OTHER)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.stat().st_size == size + 9
    with kept(path) as again:
        assert again.runs == {RUN.state: RUN} and path.stat().st_size == size


@pytest.mark.parametrize("length", [0, 1, 20, -1])
def test_a_file_whose_first_line_was_torn_is_new(tmp_path: Path, length: int) -> None:
    kept(path := tmp_path / "runs").close()
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    with kept(path) as runs:
        assert runs.runs == {} and path.read_bytes() == whole


HEADS = [
    b"no runs\n",
    b"no runs, no end",
    b"\n",
    b'{"version":"0.0","span_ns":1.0}\n',
    b'{"version":"\xff","span_ns":1.0,"inputs":""}\n',
    b"[" * 100_000 + b"\n",
]


@pytest.mark.parametrize("text", HEADS)
def test_a_file_of_something_else_is_refused_and_stays(tmp_path: Path, text: bytes) -> None:
    (path := tmp_path / "runs").write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        kept(path)
    assert "--loop-runs" in (caught.value.hint or "") and path.read_bytes() == text


def test_runs_of_other_inputs_are_refused_and_stay(path: Path) -> None:
    whole = path.read_bytes()
    with pytest.raises(ConfigError, match="other traces"):
        kept(path, "others")
    assert path.read_bytes() == whole
    kept(path).close()


STATE = [[], [["gups", 2]]]
WRONG = [
    {"state": STATE, "nodes": [], "guests": [[], [0.5]]},
    {"state": STATE, "nodes": [0, 0.5, 0], "guests": [[], [0.5]]},
    {"state": STATE, "nodes": [0, 0.5], "guests": [[0.5], []]},
    {"state": STATE, "nodes": [0, 0.5], "guests": [[]]},
    {"state": STATE, "nodes": [-5, 0.5], "guests": [[], [0.5]]},
    {"state": STATE, "nodes": [0, 1e300], "guests": [[], [0.5]]},
    {"state": STATE, "nodes": [0, 0.5], "guests": [[], [2.5]]},
]


@pytest.mark.parametrize("line", [*(json.dumps(one).encode() for one in WRONG), b'{"state":"\xff"}', b""])
def test_a_line_that_is_no_run_is_named_and_the_file_stays(path: Path, line: bytes) -> None:
    path.write_bytes(text := path.read_bytes() + line + b"\n")
    with pytest.raises(ConfigError) as caught:
        kept(path)
    assert f"{path}:3: is no file" in str(caught.value) and path.read_bytes() == text


@pytest.mark.parametrize("name", ["nowhere/runs", "."])
def test_what_cannot_be_opened_has_a_cure(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kept(tmp_path / name)
    assert "--loop-runs" in (caught.value.hint or "")
