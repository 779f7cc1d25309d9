"""What was measured is kept whatever fails, and the exit code tells that something did."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.policy_table import Table
from bench.record import Figures, Part, measure, portable

CHECKOUT = Path(__file__).parents[3]


def options(out: Path, runs: int = 1) -> argparse.Namespace:
    return argparse.Namespace(out=out, runs=runs)


def record_of(out: Path) -> Any:
    return json.loads(out.read_text())


def broken() -> Figures:
    raise OSError("no such device")


def half_done() -> Iterator[Figures]:
    yield {"first": {"value": 1.5, "control": 3.0}}
    raise ValueError("the second part of it")


def test_paths_of_a_command_are_those_from_the_checkout() -> None:
    words = [str(CHECKOUT / "bench/bench_policy.py"), "--traces", str(CHECKOUT.parent / "traces"), "build/x"]
    assert [*map(portable, words)] == ["bench/bench_policy.py", "--traces", "../traces", "build/x"]


def test_a_part_that_fails_is_named_and_the_others_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "build" / "x.json"
    parts: dict[str, Part] = {
        "one": lambda: {"cost": 1.0},
        "two": broken,
        "three": half_done,
        "four": lambda: {"cost": 4.0},
    }
    assert measure("x", parts, options(out)) == 1
    record = record_of(out)
    assert record["parts"]["one"]["figures"] == {"cost": 1.0}
    assert record["parts"]["three"]["figures"] == {"first": {"value": 1.5, "control": 3.0}}
    assert record["parts"]["four"]["figures"] == {"cost": 4.0}
    assert record["failed"] == {
        "two": "OSError: no such device",
        "three": "ValueError: the second part of it",
    }
    said = capsys.readouterr()
    assert json.loads(said.out) == record
    assert "x: part 'two' failed: OSError: no such device" in said.err


def test_a_bench_without_failures_ends_well_and_says_what_it_was_measured_on(tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    assert measure("x", {"one": lambda: {"cost": 1}}, options(out)) == 0
    record = record_of(out)
    assert record["failed"] == {}
    found = record["record"]
    assert found["machine"]["kernel"] == os.uname().release
    assert found["machine"]["cpus"] == len(os.sched_getaffinity(0))
    head = subprocess.run(
        ["git", "-C", CHECKOUT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    assert head.returncode or found["commit"].removesuffix("-dirty") == head.stdout.strip()
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_runs_give_medians_and_their_spread(tmp_path: Path) -> None:
    values = iter((5.0, 1.0, 3.0))
    part = {"one": lambda: {"cost": {"value": next(values), "unit": "s"}}}
    assert measure("x", part, options(tmp_path / "x.json", runs=3)) == 0
    found = record_of(tmp_path / "x.json")["parts"]["one"]
    assert found["figures"] == {"cost": {"value": 3.0, "unit": "s"}}
    assert (found["runs"], found["spread"]["cost"]["value"]) == (3, [1.0, 5.0])


def test_runs_before_one_that_fails_are_kept(tmp_path: Path) -> None:
    values = iter((5.0, 1.0))
    part = {"one": lambda: {"cost": next(values)}}
    assert measure("x", part, options(tmp_path / "x.json", runs=3)) == 1
    record = record_of(tmp_path / "x.json")
    assert (record["parts"]["one"]["figures"], record["parts"]["one"]["runs"]) == ({"cost": 3.0}, 2)
    assert record["failed"]["one"].startswith("StopIteration")


def test_an_interrupted_bench_leaves_the_parts_before(tmp_path: Path) -> None:
    def interrupted() -> Figures:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure("x", {"one": lambda: {"cost": 1.0}, "two": interrupted}, options(tmp_path / "x.json"))
    assert record_of(tmp_path / "x.json")["parts"]["one"]["figures"] == {"cost": 1.0}


BENCH = """import argparse, sys
from bench.record import add_record_options, measure

def part():
    {body}

parser = argparse.ArgumentParser()
add_record_options(parser)
sys.exit(measure("made-up", {{"one": part}}, parser.parse_args()))
"""


def test_benches_go_on_after_one_that_failed_and_the_exit_code_tells(tmp_path: Path) -> None:
    bodies = {
        "bad": "raise OSError('gone')",
        "good": "return {'cost': 1.0}",
        "worse": "import os; os._exit(3)",
    }
    (tmp_path / "bench").mkdir()
    for name, body in bodies.items():
        (tmp_path / f"bench/bench_{name}.py").write_text(BENCH.format(body=body))
    run = [str(CHECKOUT / "bench/run"), sys.executable]
    where: dict[str, Any] = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(CHECKOUT)}}
    done = subprocess.run(
        [*run, "bad", "worse", "good"], capture_output=True, text=True, check=False, **where
    )
    assert done.returncode == 1
    assert "failed, wholly or in part: bad worse;" in done.stderr
    assert record_of(tmp_path / "build/bench/good.json")["parts"]["one"]["figures"] == {"cost": 1.0}
    assert record_of(tmp_path / "build/bench/bad.json")["failed"] == {"one": "OSError: gone"}
    assert subprocess.run([*run, "good --runs 2"], capture_output=True, check=False, **where).returncode == 0
    assert record_of(tmp_path / "build/bench/good.json")["parts"]["one"]["runs"] == 2


def test_the_table_of_policies_keeps_the_scenarios_that_ran(tmp_path: Path) -> None:
    table = Table(tmp_path / "policy.json")
    row = {"host": "h", "mix": "m", "policy": "none", "source": "full", "run_time_s": 1.0}
    with table.part("h m"):
        table.rows.append(row)
    with table.part("h n"):
        raise ValueError("not a trace")
    found = record_of(tmp_path / "policy.json")
    assert (found["rows"], found["failed"]) == ([row], {"h n": "ValueError: not a trace"})
    assert found["record"]["machine"]["kernel"] == os.uname().release
