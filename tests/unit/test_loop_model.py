"""A fleet by the agent's own loop: the figures are the loop's, and nothing runs twice."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.unit.simulate.small_trace import private_pages
from vmplace.fleet.arrivals import Arrival
from vmplace.fleet.fleet_host import Host
from vmplace.fleet.kept_runs import KeptRuns, StateRun
from vmplace.fleet.loop_host import LoopGuest, loop_pressures
from vmplace.fleet.loop_model import HOSTS, LoopModel, inputs_digest
from vmplace.fleet.model_command import _progress
from vmplace.interfaces.cli import cli
from vmplace.simulate.host_file import read_host
from vmplace.simulate.trace import read_trace

SPAN_NS = 0.1e9
PROGRAMS = {"gups": 1e3, "npb-ep-A": 1e9}
"""Small traces under names that arrivals may have: what each thread of a window has to compute."""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for name, work in PROGRAMS.items():
        arrays = private_pages(heat=60_000) | {"totals_raw_loads": np.full((6, 4), work, np.uint64)}
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def model(traces: Path, tmp_path: Path, pool: Executor) -> Iterator[LoopModel]:
    with KeptRuns(tmp_path / "runs", SPAN_NS, inputs_digest(traces)) as kept:
        yield LoopModel(traces, kept, pool)


def host(name: str, *nodes: tuple[str, ...]) -> Host:
    """Return a host with guests of two vCPUs, by the programs on each node."""
    made = Host(name, 24, 32, 2)
    for node, there in enumerate(nodes):
        for number, program in enumerate(there):
            uuid = f"{program}-{node}-{number}"
            made.guests[uuid], made.node_of[uuid] = Arrival(uuid, 0.0, 1.0, 2, 2, program), node
    return made


def by_loop(traces: Path, *nodes: tuple[str, ...]) -> dict[int, float]:
    """Return what the loop itself has for these guests, in this order."""
    two = read_host(HOSTS / "two-node.toml")
    guests = [LoopGuest(read_trace(traces / f"{name}.npz"), 2) for there in nodes for name in there]
    places = [(node,) for node, there in enumerate(nodes) for _ in there]
    return dict(enumerate(loop_pressures(two, guests, SPAN_NS, places)))


RUN = StateRun((((), (("gups", 2),))), (0.0, 0.5), ((), (0.5,)))


def test_pressures_are_those_of_the_loop_on_the_same_nodes(model: LoopModel, traces: Path) -> None:
    nodes = ("npb-ep-A", "gups", "gups"), ("gups",)
    found = model.loads([host("a", *nodes), host("b", *nodes[::-1])])
    assert found["a"] == pytest.approx(by_loop(traces, *nodes), rel=0.02)
    assert found["a"][0] > 1.5 * found["a"][1] > 0
    assert found["b"] == {0: found["a"][1], 1: found["a"][0]}


def test_each_set_of_guests_runs_once(model: LoopModel) -> None:
    seen = list[tuple[int, int]]()
    model.tell = lambda *counts: seen.append(counts)
    twice = [host("a", ("gups",), ()), host("b", (), ("gups",)), host("c", ("gups",), ())]
    model.loads(twice)
    model.loads(twice)
    model.takes(twice[0])
    assert model.alone(Arrival("x", 0.0, 1.0, 2, 2, "gups")) == model.loads(twice)["a"][0]
    assert seen == [(1, 1)]


def test_what_guests_take_of_a_node_is_its_pressure_and_the_busy_ones_take_most(model: LoopModel) -> None:
    there = host("a", ("npb-ep-A", "gups"), ("gups", "gups"))
    takes, [loads] = model.takes(there), model.loads([there]).values()
    for node in (0, 1):
        mine = sum(share for uuid, share in takes.items() if there.node_of[uuid] == node)
        assert mine == pytest.approx(loads[node], rel=0.02)
    assert takes["gups-0-1"] > 3 * takes["npb-ep-A-0-0"]
    assert takes["gups-1-0"] == pytest.approx(takes["gups-1-1"])


def test_runs_of_former_calls_are_not_counted(model: LoopModel) -> None:
    model.kept.keep(RUN)
    seen = list[tuple[int, int]]()
    model.tell = lambda *counts: seen.append(counts)
    model.loads([host("a", ("gups",), ()), host("b", ("gups", "gups"), ()), host("c", (), ())])
    model.loads([host("a", ("npb-ep-A",), ())])
    assert seen == [(1, 2), (2, 2), (3, 3)]


def fleet_model(*words: object) -> Result:
    return CliRunner().invoke(cli, ["fleet-model", "--hosts", "2", "--days", "0.1", *map(str, words)])


def arrivals(folder: Path, *programs: str) -> Path:
    rows = ["uuid,from_s,to_s,vcpus,memory_gib,program"]
    rows += [f"{number},0,1e6,2,2,{name}" for number, name in enumerate(programs)]
    (path := folder / "arrivals.csv").write_text("\n".join(rows))
    return path


def test_the_command_has_the_figures_of_the_loop(traces: Path, tmp_path: Path) -> None:
    """One guest: half of the hosts are pressed by what it takes alone, which the file of runs has."""
    words = ("--arrivals", arrivals(tmp_path, "gups"), "--loop", traces, "--loop-runs", tmp_path / "runs")
    first = fleet_model(*words, "--json")
    [alone] = [
        max(run["nodes"])
        for run in map(json.loads, (tmp_path / "runs").read_text().splitlines()[1:])
        if any(run["state"])
    ]
    nobody = json.loads(first.output)["nobody"]
    assert nobody["pressure_mean"] == pytest.approx(alone / 2)
    written = (tmp_path / "runs").read_text()
    assert fleet_model(*words, "--json").output == first.output
    assert (tmp_path / "runs").read_text() == written


def test_what_the_loop_cannot_run_is_reported_before_any_work(traces: Path, tmp_path: Path) -> None:
    words = ("--loop", traces, "--loop-runs", tmp_path / "runs")
    done = fleet_model("--arrivals", arrivals(tmp_path, "gups", "streamcluster"), *words)
    assert "no trace of streamcluster" in str(done.exception) and not (tmp_path / "runs").exists()
    for wrong in (words[:2], words[2:], (*words, "--fit", "1:1024")):
        assert fleet_model(*wrong).exit_code == 2


def test_runs_of_other_traces_under_the_same_names_are_refused(traces: Path, tmp_path: Path) -> None:
    (other := tmp_path / "traces").mkdir()
    for source, name in (("npb-ep-A", "gups"), ("npb-ep-A", "npb-ep-A")):
        (other / f"{name}.npz").write_bytes((traces / f"{source}.npz").read_bytes())
    words = ("--arrivals", arrivals(tmp_path, "gups"), "--loop-runs", tmp_path / "runs", "--loop")
    assert fleet_model(*words, traces).exit_code == 0
    done = fleet_model(*words, other)
    assert done.exit_code == 1 and "other traces" in str(done.exception)
    assert fleet_model(*words, traces).exit_code == 0


def test_each_trace_and_the_host_count_in_the_digest(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {inputs_digest(traces), inputs_digest(tmp_path)}
    (tmp_path / "gups.npz").write_bytes((traces / "gups.npz").read_bytes())
    found.add(inputs_digest(tmp_path))
    (hosts := tmp_path / "hosts").mkdir()
    (hosts / "two-node.toml").write_text((HOSTS / "two-node.toml").read_text() + "\n")
    monkeypatch.setattr("vmplace.fleet.loop_model.HOSTS", hosts)
    assert len({*found, inputs_digest(traces), inputs_digest(tmp_path)}) == 5


def test_a_file_that_cannot_be_used_is_reported_before_any_process_starts(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vmplace.fleet.executors.ProcessPoolExecutor", None)
    words = ("--arrivals", arrivals(tmp_path, "gups"), "--loop", traces)
    done = fleet_model(*words, "--loop-runs", tmp_path / "nowhere/runs")
    assert "No such file" in str(done.exception)


@pytest.mark.parametrize(
    ("is_terminal", "shown"), [(True, "\r3 of 4 runs of the loop so far\n"), (False, "")]
)
def test_the_result_begins_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool, shown: str
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with _progress() as tell:
        tell(3, 4)
    with _progress():
        pass
    assert capsys.readouterr().err == shown
