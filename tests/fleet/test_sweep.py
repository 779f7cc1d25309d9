"""A sweep has the simulator's figures, one row each, survives dead workers, and goes on where it was."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.unit.interfaces.test_json_schemas import errors
from tests.unit.simulate.small_trace import private_pages, shared_pages
from vmplace.errors import VmplaceError
from vmplace.interfaces.cli import cli
from vmplace.interfaces.error_lines import error_line

pytest.importorskip("duckdb", reason="make test-cloud sets up what sweeps need")
from vmplace.fleet import sweep_results
from vmplace.fleet.executors import local_workers
from vmplace.fleet.sweep_report import sweep_report
from vmplace.fleet.sweep_results import SweepResults, read_rows
from vmplace.fleet.sweep_rows import SweepRow
from vmplace.fleet.sweep_run import ExecutorLostError, Sweeper
from vmplace.fleet.sweep_task import SweepTask, empty_row, found_recordings, run_task

ROOT = Path(__file__).parents[2]
HOST = ROOT / "vmplace/simulate/hosts/square-diagonal.toml"
DEMO = ROOT / "vmplace/interfaces/demo.vmptrace"


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    np.savez(folder / "own.npz", **private_pages())
    np.savez(folder / "shared.npz", **shared_pages())
    return folder


def run(*words: object, fails: bool = False) -> str:
    answer = CliRunner().invoke(cli, [str(word) for word in words])
    assert (answer.exit_code != 0) == fails, answer.output + str(answer.exception)
    return answer.output


def sweep(traces: Path, out: object, *words: object, policies: str = "none,vmplace") -> dict[str, int]:
    reported = run("sweep", traces, "--hosts", HOST, "--policies", policies, "--out", out, "--json", *words)
    answer: dict[str, int] = json.loads(reported)
    return answer


def task(name: str = "a", url: str = "file:///none/a.npz") -> SweepTask:
    return SweepTask(url, 1, "trace", name, HOST.read_text(), "none", "ad", None)


def test_rows_are_what_simulate_says(traces: Path, tmp_path: Path) -> None:
    sweep(traces, tmp_path / "out.parquet")
    said = tmp_path / "said.json"
    guest = f"own={traces}/own.npz"
    run("simulate", "--host", HOST, "--guest", guest, "--policy", "vmplace", "--source", "ad", "--json", said)
    truth = json.loads(said.read_text())
    rows = {(Path(row.recording).name, row.policy): row for row in read_rows(str(tmp_path / "out.parquet"))}
    assert len(rows) == 4
    assert rows["own.npz", "vmplace"].run_time_s == truth["run_time_s"]
    assert rows["own.npz", "none"].run_time_s == truth["none_run_time_s"]
    assert rows["own.npz", "vmplace"].lar == truth["lar"]


def test_a_recording_is_rehearsed_as_replay_does(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    run("sweep", DEMO, "--policies", "none,agent:auto", "--out", out)
    truth = json.loads(run("replay", DEMO, "--policy", "auto", "--json"))
    [row] = [row for row in read_rows(str(out)) if row.policy == "agent:auto"]
    assert row.moved_bytes == truth["moved_bytes"] > 0
    reported = {guest.name: (guest.lar_before, guest.lar) for guest in row.guests}
    assert reported == {name: (one["lar_before"], one["lar_after"]) for name, one in truth["guests"].items()}


def test_what_is_there_is_not_done_again(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    assert sweep(traces, out, policies="none")["skipped"] == 0
    again = sweep(traces, out)
    assert errors("sweep", again) == []
    assert again | {"seconds": 0} == {
        "out": str(out), "rows": 4, "skipped": 2, "failed": 0, "seconds": 0,
    }  # fmt: skip
    assert len(read_rows(str(out))) == 4


def test_another_host_file_of_the_same_name_has_rows_and_gains_of_its_own(
    traces: Path, tmp_path: Path
) -> None:
    out, host = tmp_path / "out.parquet", tmp_path / "square-diagonal.toml"
    sweep(traces, out)
    [before] = sweep_report(str(out))["policies"]
    host.write_text(HOST.read_text().replace("memory_mib = 8192", "memory_mib = 4096"))
    again = run("sweep", traces, "--hosts", host, "--policies", "none,vmplace", "--out", out, "--json")
    assert json.loads(again)["skipped"] == 0
    [both] = sweep_report(str(out))["policies"]
    assert both["rows"] == 2 * before["rows"]


def test_a_sweep_that_was_killed_while_it_wrote_keeps_the_rows_that_are_whole(tmp_path: Path) -> None:
    url = str(tmp_path / "out.parquet")
    with SweepResults(url) as results:
        for name in ("a", "b"):
            results.add(empty_row(task(name)))
    [part] = Path(f"{url}.parts").iterdir()
    part.write_bytes(part.read_bytes()[:-20])
    with SweepResults(url) as again:
        assert set(again.rows) == {task("a").id}
        again.finish()
    assert [row.task for row in read_rows(url)] == [task("a").id]


def test_a_sweep_that_is_stopped_says_what_is_kept_and_its_report_how_to_go_on(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(tasks: list[SweepTask], results: SweepResults, *_: object, **__: object) -> None:
        results.add(run_task(tasks[0]))
        raise KeyboardInterrupt

    out = tmp_path / "out.parquet"
    words = ["sweep", traces, "--hosts", HOST, "--policies", "none", "--out", out]
    with monkeypatch.context() as patch:
        patch.setattr("vmplace.fleet.commands._sweep", stopped)
        answer = CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)
    assert "stopped: 1 of 2 rows are kept" in str(answer.exception)
    answer = CliRunner().invoke(cli, ["sweep-report", str(out)], standalone_mode=False)
    assert "was stopped before its end" in str(answer.exception)
    assert sweep(traces, out, policies="none")["skipped"] == 1


def test_rows_are_kept_while_another_sweep_holds_the_lock(tmp_path: Path) -> None:
    """Whoever is stopped has no time to wait."""
    url = str(tmp_path / "out.parquet")
    first, second = SweepResults(url), SweepResults(url)
    second.add(empty_row(task("a")))
    with first._alone():
        flush = threading.Thread(target=second.flush, daemon=True)
        flush.start()
        flush.join(10)
        assert not flush.is_alive()
    assert SweepResults(url).rows.keys() == {task("a").id}


def test_a_merge_that_is_stopped_leaves_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    results = SweepResults(str(tmp_path / "out.parquet"))
    results.add(empty_row(task("a")))
    with monkeypatch.context() as patch:
        patch.setattr(results._filesystem, "mv", stopped)
        with pytest.raises(KeyboardInterrupt):
            results.finish()
    assert [one.name for one in tmp_path.iterdir()] == ["out.parquet.parts"]
    results.finish()
    assert [one.name for one in tmp_path.iterdir()] == ["out.parquet"]


def test_a_folder_that_is_not_there_is_not_made(traces: Path, tmp_path: Path) -> None:
    with pytest.raises(VmplaceError, match="there is no folder"):
        SweepResults(f"{tmp_path}/none/out.parquet")
    assert not (tmp_path / "none").exists()


def test_a_sweep_that_was_killed_keeps_its_rows(tmp_path: Path) -> None:
    url, now = str(tmp_path / "out.parquet"), iter(range(0, 1000, 11))
    results = SweepResults(url, lambda: float(next(now)))
    results.add(empty_row(task("a")))
    results.add(empty_row(task("b")))
    # Nothing is closed: the process is gone.
    taken_up = SweepResults(url)
    assert taken_up.done == {task("a").id, task("b").id}
    taken_up.finish()
    assert {row.host for row in read_rows(url)} == {"a", "b"}
    assert not Path(f"{url}.parts").exists()


def test_of_two_sweeps_beside_each_other_neither_loses_the_others_rows(tmp_path: Path) -> None:
    url = str(tmp_path / "out.parquet")
    one, other = SweepResults(url), SweepResults(url)
    one.add(empty_row(task("a")))
    other.add(empty_row(task("b")))
    other.flush()
    one.finish()
    other.add(empty_row(task("c")))
    other.finish()
    assert {row.host for row in read_rows(url)} == {"a", "b", "c"}
    assert not Path(f"{url}.parts").exists()


@pytest.mark.parametrize("where", ["disk", "memory://two-sweeps"])
def test_a_sweep_that_ends_while_another_writes_loses_no_row(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk one waits for the other; object storage knows no locks."""
    url = f"{tmp_path if where == 'disk' else where}/out.parquet"
    first, second = SweepResults(url), SweepResults(url)
    for results, names in ((first, "ab"), (second, "cd")):
        for name in names:
            results.add(empty_row(task(name)))
    write, ends = sweep_results._write_parquet, threading.Thread(target=second.finish)

    def slowly(lines: Path, made: Path) -> None:
        monkeypatch.setattr(sweep_results, "_write_parquet", write)
        ends.start()
        ends.join(None if "memory" in url else 0.5)
        assert ends.is_alive() == (where == "disk")
        write(lines, made)

    monkeypatch.setattr(sweep_results, "_write_parquet", slowly)
    first.finish()
    ends.join()
    assert {row.task for row in read_rows(url)} == {task(name).id for name in "abcd"}
    assert SweepResults(url).rows.keys() == {task(name).id for name in "abcd"}


def test_a_file_of_an_earlier_release_is_read_and_taken_up(traces: Path, tmp_path: Path) -> None:
    import duckdb

    out = tmp_path / "out.parquet"
    sweep(traces, out)
    old = tmp_path / "old.parquet"
    duckdb.sql(f"COPY (SELECT * EXCLUDE baseline FROM '{out}') TO '{old}'")  # noqa: S608 - names of our own
    assert sweep(traces, old)["skipped"] == 4
    assert sweep_report(str(old))["policies"] == []
    sweep(traces, old, policies="interleave-all")
    assert {row.baseline == "" for row in read_rows(str(old))} == {True, False}


def test_what_is_wrong_with_a_recording_is_its_row(traces: Path, tmp_path: Path) -> None:
    (traces / "bad.npz").write_bytes(b"no trace")
    out = tmp_path / "out.parquet"
    reported = run("sweep", traces, "--hosts", HOST, "--policies", "none", "--out", out, fails=True)
    assert "3 rows, 0 were there, 1 failed" in reported
    [failed] = sweep_report(str(out))["failed"]
    assert "not a readable .npz file" in failed["error"]
    # A failure is tried again, the others are not.
    (traces / "bad.npz").unlink()
    np.savez(traces / "bad.npz", **private_pages())
    assert sweep(traces, out, policies="none")["skipped"] == 2


def _dies_once(asked: SweepTask) -> SweepRow:
    """Die as a worker that the kernel kills for its memory, the first time."""
    marker = Path(asked.url)
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return empty_row(asked)


def _dies_if_bad(asked: SweepTask) -> SweepRow:
    if asked.host == "bad":
        os.kill(os.getpid(), signal.SIGKILL)
    return empty_row(asked)


def test_tasks_of_a_worker_that_died_are_done_again(tmp_path: Path) -> None:
    workers = local_workers(2)
    tasks = [task(str(number), str(tmp_path / f"{number % 2}.marker")) for number in range(12)]
    rows = list(Sweeper(tasks, workers.open, workers.width, _dies_once).iter_rows())
    assert sorted(row.task for row in rows) == sorted(one.id for one in tasks)
    assert {row.error for row in rows} == {None}


def test_a_task_that_kills_each_worker_fails_alone() -> None:
    workers = local_workers(2)
    tasks = [task(name) for name in ("a", "bad", *"bcdefgh")]
    rows = list(Sweeper(tasks, workers.open, workers.width, _dies_if_bad).iter_rows())
    assert len(rows) == len(tasks)
    assert {row.host: row.error for row in rows if row.error} == {"bad": "its worker died, 3 times of 3"}


def test_results_live_in_object_storage_too(traces: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    url = "memory://bucket/results.parquet"
    store = fsspec.filesystem("memory")
    for path in traces.iterdir():
        store.pipe_file(f"/bucket/traces/{path.name}", path.read_bytes())

    @contextmanager
    def threads() -> Iterator[Executor]:
        with ThreadPoolExecutor(2) as pool:
            yield pool

    found = found_recordings(["memory://bucket/traces/*.npz"])
    tasks = [SweepTask(name, size, "trace", "h", HOST.read_text(), "none", "ad", 2) for name, size in found]
    with SweepResults(url) as results:
        for row in Sweeper(tasks, threads, 2, run_task).iter_rows():
            results.add(row)
        results.finish()
    assert {row.error for row in read_rows(url)} == {None}
    assert [path.rpartition("/")[2] for path in store.ls("/bucket", detail=False)] == [
        "results.parquet",
        "traces",
    ]


def test_the_report_answers_by_the_rows(traces: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out.parquet")
    run(
        "sweep",
        traces,
        "--hosts",
        f"{HOST},two-node",
        "--policies",
        "none,vmplace,interleave-all",
        "--out",
        out,
    )
    took = {(Path(r.recording).stem, r.host, r.policy): r.run_time_s or 0 for r in read_rows(out)}
    gain = {key: 1 - took[key] / took[(*key[:2], "none")] for key in took if key[2] != "none"}
    reported = sweep_report(out)
    means = {row["policy"]: row["mean_gain"] for row in reported["policies"]}
    for policy in ("vmplace", "interleave-all"):
        assert means[policy] == pytest.approx(np.mean([gain[key] for key in gain if key[2] == policy]))
    best = {(row["guest"], row["host"]): row["gain"] for row in reported["guests"]}
    assert best["own", HOST.stem] == pytest.approx(
        max(v for k, v in gain.items() if k[:2] == ("own", HOST.stem))
    )
    assert {row["host"] for row in reported["hosts"]} == {HOST.stem, "two-node"}
    assert "Which guests gain?" in run("sweep-report", out)


def test_the_report_is_of_its_schema(traces: Path, tmp_path: Path) -> None:
    (traces / "bad.npz").write_bytes(b"no trace")
    out = tmp_path / "out.parquet"
    run("sweep", traces, DEMO, "--hosts", HOST, "--policies", "none,agent:auto", "--out", out, fails=True)
    reported = json.loads(run("sweep-report", out, "--json"))
    assert errors("sweep-report", reported) == []
    assert {kind for row in reported["hosts"] for kind in [row["kind"]]} == {"trace", "recording"}
    assert all(reported[table] for table in ("guests", "policies", "hosts", "failed"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.npz"], "cannot be looked at"),
        (["TRACES", "--policies", "nonsense", "--hosts", "two-node"], "no policy 'nonsense' for a trace"),
        (["TRACES", "--hosts", "moon"], "no host 'moon'"),
        (["TRACES"], "needs a host"),
        ([DEMO, "--policies", "oracle"], "no policy 'oracle' for a recording"),
        (["TRACES", "--hosts", "two-node", "--scheduler", "tcp://127.0.0.1:1"], "no Dask scheduler"),
    ],
)
def test_a_mistake_is_reported_before_any_work(
    traces: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    out = tmp_path / "out.parquet"
    asked = [str(traces if word == "TRACES" else word) for word in words]
    answer = CliRunner().invoke(cli, ["sweep", *asked, "--out", str(out)])
    assert isinstance(answer.exception, VmplaceError)
    assert said in str(answer.exception)
    # What is named there may come: no mistake of the command line.
    is_wrong_usage = said not in ("cannot be looked at", "no Dask scheduler")
    assert (error_line(answer.exception).exit_code == 2) is is_wrong_usage
    assert not out.exists()


def test_a_parquet_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(VmplaceError, match="no result of a sweep"):
        SweepResults(str(tmp_path / "x.parquet"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """Start a Dask scheduler with two workers, processes of their own."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as found:
        yield found


def test_dask_has_the_same_figures(cluster: object, traces: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    sweep(traces, here)
    assert sweep(traces, there, "--scheduler", cluster.scheduler_address)["failed"] == 0  # type: ignore[attr-defined]
    figures = [
        [(r.task, r.run_time_s, r.lar, r.guests) for r in read_rows(str(path))] for path in (here, there)
    ]
    assert figures[0] == figures[1]


def _slow(asked: SweepTask) -> SweepRow:
    threading.Event().wait(0.3)
    return empty_row(asked)


def test_dask_goes_on_when_a_worker_is_killed(cluster: object) -> None:
    from vmplace.fleet.executors import dask_workers

    tasks = [task(str(number)) for number in range(12)]
    with dask_workers(cluster.scheduler_address) as workers:  # type: ignore[attr-defined]
        rows = Sweeper(tasks, workers.open, workers.width, _slow).iter_rows()
        first = next(rows)
        victim = next(iter(cluster.workers.values()))  # type: ignore[attr-defined]
        os.kill(victim.process.pid, signal.SIGKILL)
        assert {row.task for row in (first, *rows)} == {one.id for one in tasks}


def test_a_lost_scheduler_ends_the_sweep_with_the_cure() -> None:
    distributed = pytest.importorskip("distributed")
    from vmplace.fleet.executors import dask_workers

    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, host="127.0.0.1",
        protocol="tcp",
    )  # fmt: skip
    with dask_workers(cluster.scheduler_address) as workers:
        rows = Sweeper([task(str(n)) for n in range(50)], workers.open, workers.width, _slow).iter_rows()
        next(rows)
        cluster.close()
        with pytest.raises(ExecutorLostError, match="does not answer any more") as caught:
            list(rows)
    assert "run the same command" in (caught.value.hint or "")
