"""Recorded arrivals: replayed as they were written; what is wrong is refused with line, cause and cure."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from vmplace.errors import ConfigError, VmplaceError
from vmplace.fleet.arrivals import COLUMNS, Arrival, read_arrivals, write_arrivals
from vmplace.fleet.fleet_model import FleetSetup, arrivals
from vmplace.fleet.loop_table import LoopTable, shipped_table
from vmplace.fleet.model_command import days_of
from vmplace.interfaces.cli import cli

TABLE = LoopTable("h", "by hand", {"p": {4: 0.5}}, ((0.0, 0.0), (1.0, 1.0)))
HEADER = ",".join(COLUMNS).encode()
GOOD = b"good,0,10,4,4,p"


def refused(tmp_path: Path, content: bytes) -> ConfigError:
    (path := tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(ConfigError) as found:
        read_arrivals(path, TABLE)
    assert found.value.hint and str(path) in str(found.value)
    return found.value


def test_arrivals_are_replayed_as_they_were_recorded(tmp_path: Path) -> None:
    guests = arrivals(FleetSetup(hosts=30, days=1.0, packs=True, seed=2))
    write_arrivals(tmp_path / "a.csv", guests)
    assert guests and read_arrivals(tmp_path / "a.csv", shipped_table()) == guests


def test_arrivals_for_a_folder_that_is_not_there_are_reported(tmp_path: Path) -> None:
    with pytest.raises(VmplaceError, match="cannot be written") as found:
        write_arrivals(tmp_path / "no/a.csv", [])
    assert "make its folder" in str(found.value.hint)


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("empty", [b"", b" \t"], ids=["empty", "blank"])
def test_what_spreadsheets_and_editors_add_is_no_mistake(
    tmp_path: Path, before: bytes, end: bytes, empty: bytes
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(before + end.join((HEADER, empty, GOOD, empty, empty, b"b,5,10,4,4,p", empty, b"")))
    assert [guest.uuid for guest in read_arrivals(path, TABLE)] == ["good", "b"]


def test_lines_are_counted_with_those_that_are_empty(tmp_path: Path) -> None:
    assert "a.csv:4:" in str(refused(tmp_path, HEADER + b"\n\n\na,0,10,5,4,p\n"))


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (b"a,0,10,5,4,p", "no program 'p' on 5 vCPUs"),
        (b"a,0,10,4,4,nosuch", "no program 'nosuch'"),
        (b"a,10,5,4,4,p", "comes at 10 and goes at 5"),
        (b"a,5,5,4,4,p", "comes at 5 and goes at 5"),
        (b"a,0,inf,4,4,p", "to_s is inf"),
        (b"a,nan,10,4,4,p", "from_s is nan"),
        (b"a,-1,10,4,4,p", "from_s is -1"),
        (b"a,x,10,4,4,p", "from_s is 'x'"),
        (b"a,0,10,4,-4,p", "memory_gib is '-4'"),
        (b"a,0,10,4,0,p", "memory_gib is 0"),
        (b"a,0,10,4,99999999,p", "memory_gib is 99999999"),
        (b"a,0,10,-4,4,p", "vcpus is '-4'"),
        (b"a", "1 fields, the header 6"),
        (b"a,0,10,4,4,p,more", "7 fields"),
        (b",0,10,4,4,p", "uuid is ''"),
        (b"\x1b[2J,0,10,4,4,p", "uuid is '?[2J'"),
        (b"x" * 65 + b",0,10,4,4,p", "not 1 to 64 signs"),
        (b"good,20,30,4,4,p", "'good' is in a line before"),
        (b"x" * 200_000 + b",0,10,4,4,p", "field larger than field limit"),
        (b'a,0,10,4,4,"p', "unexpected end of data"),
        (b"a\0b,0,10,4,4,p", ""),
    ],
    ids=lambda one: repr(one[:20]),
)
def test_a_wrong_line_is_refused_with_its_number_and_the_cause(
    tmp_path: Path, row: bytes, cause: str
) -> None:
    error = refused(tmp_path, b"\n".join([HEADER, GOOD, row, b""]))
    assert error.place.endswith("a.csv:3") and cause in str(error)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "no column uuid"),
        (b"uuid,from_s\n", "no column to_s, vcpus"),
        (HEADER + b",uuid\n", "twice"),
        (b"\xff\xfe" + HEADER, "decode"),
    ],
)
def test_what_is_no_csv_of_arrivals_is_refused(tmp_path: Path, content: bytes, cause: str) -> None:
    assert cause in str(refused(tmp_path, content))


def test_the_command_says_it_without_a_traceback(tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_bytes(HEADER + b"\na,0,10,4,-4,gups\n")
    argv = [sys.executable, "-c", "from vmplace.interfaces.cli import main; main()", "fleet-model"]
    ended = subprocess.run([*argv, "--arrivals", path], capture_output=True, text=True, check=False)
    assert ended.returncode and "Traceback" not in ended.stderr
    assert "a.csv:2" in ended.stderr and "memory_gib is '-4'" in ended.stderr
    assert "each uuid once" in " ".join(ended.stderr.split())


def test_recorded_arrivals_are_modelled_until_the_last_came() -> None:
    guests = [Arrival("a", 0.0, 9e5, 1, 1, "redis"), Arrival("b", 80_000.0, 9e5, 1, 1, "redis")]
    assert days_of(guests) == 1.0
    assert days_of(guests[:1]) == 0.1
    with pytest.raises(VmplaceError, match="after 40 days"):
        days_of([Arrival("a", 40 * 86_400.0, 9e6, 1, 1, "redis")])


@pytest.mark.slow
def test_a_replay_has_the_figures_of_a_run_whose_guests_came_to_its_end(tmp_path: Path) -> None:
    path, fleet = str(tmp_path / "arrivals.csv"), ["fleet-model", "--hosts", "60", "--json"]
    saved = CliRunner().invoke(cli, [*fleet, "--days", "0.5", "--save-arrivals", path])
    replayed = CliRunner().invoke(cli, [*fleet, "--arrivals", path])
    assert saved.exit_code == 0, saved.output
    assert saved.output == replayed.output


def test_a_fleet_to_which_nobody_comes_is_no_result() -> None:
    answer = CliRunner().invoke(cli, ["fleet-model", "--hosts", "2", "--days", "0.1"], standalone_mode=False)
    assert "no guest arrives" in str(answer.exception)
