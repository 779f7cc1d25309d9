"""The log of demo runs keeps how each ended, and shows exactly that."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import demo_runs
from bench.demo_runs import RULES, busy_machine, figures_of, next_kind, run_once, worst
from bench.demo_runs_page import rendered
from bench.readme_results import KEPT

DEMO = json.loads(KEPT.read_text())["demo"]


def entry(beside: str, code: int, **result: Any) -> dict[str, Any]:
    known = {"date": "2026-11-25T12:00:00+00:00", "commit": "a" * 40, "load": 2.0, "took_s": 170.0}
    return known | {"beside": beside, "exit_code": code} | figures_of(DEMO | result)


def test_kinds_take_turns_also_after_a_break():
    assert next_kind([]) == "idle"
    assert next_kind([{"beside": "idle"}]) == "busy"
    assert next_kind([{"beside": "busy"}, {"beside": "busy"}, {"beside": "idle"}]) == "idle"
    runs: list[Mapping[str, Any]] = []
    for _ in range(20):
        runs.append({"beside": next_kind(runs)})
    kinds = [run["beside"] for run in runs]
    assert [kinds.count(kind) for kind in ("idle", "busy", "late")] == [10, 5, 5]


def test_a_run_is_kept_with_its_exit_code_and_its_figures(tmp_path: Path):
    (tmp_path / "made.json").write_text(json.dumps(DEMO))
    script = f'cp {tmp_path}/made.json "$1/result.json"; echo seen; exit 5'
    kept = run_once("busy", tmp_path / "out", ("sh", "-c", script))
    assert (kept["exit_code"], kept["beside"], kept["speed"]) == (5, "busy", DEMO["pace"])
    guest = kept["managers"]["vmplace"]["guests"]["table"]
    assert guest["lar_after"] == DEMO["managers"]["vmplace"]["guests"]["table"]["lar_after"]
    assert [path.read_text() for path in (tmp_path / "out").glob("*/log")] == ["seen\n"]


def test_a_run_without_figures_is_kept_too(tmp_path: Path):
    kept = run_once("idle", tmp_path, ("false",))
    assert kept["exit_code"] == 1 and "managers" not in kept
    assert "| idle |" in "\n".join(rendered({"runs": [kept]}))


def children(of: int | str = "self") -> set[str]:
    """Return the pids of a process' children."""
    return {pid for path in Path(f"/proc/{of}/task").glob("*/children") for pid in path.read_text().split()}


def test_the_machine_is_busy_only_within_the_block():
    before = children()
    with busy_machine("busy"):
        busy = children() - before
        assert busy
    assert not busy & children()


def test_the_page_counts_exit_codes_by_kind_and_tells_what_failed():
    runs = [
        entry("idle", 0),
        entry("busy", 5, too_slow="guests made 10%"),
        entry("busy", 0),
        entry("idle", 1),
    ]
    runs[3]["failed"] = ["vmplace: slower"]
    text = "\n".join(rendered({"runs": runs}))
    assert "Beside nothing of its own: 2 runs, 1 with 0, 1 with 1." in text
    assert "Beside a busy loop on each CPU: 2 runs, 1 with 0, 1 with 5." in text
    assert "guests made 10%" in text and "vmplace: slower" in text


def test_the_page_says_which_runs_readme_counts():
    now = {"rules": RULES}
    runs = [entry("idle", 0), entry("idle", 0) | now, entry("late", 5) | now, entry("busy", 5) | now]
    runs.append(entry("idle", 0) | now | {"commit": "a" * 40 + "-dirty"})
    text = " ".join("\n".join(rendered({"runs": runs})).split())
    assert "of commits without changes: 1 idle, and 2 busy or late" in text
    rows = [f"| 2026-11-25T12:00, {'a' * 12} | {rules} | idle | 2.0 |" for rules in (1, RULES)]
    assert all(row in text for row in rows)


def test_spreads_are_of_all_runs_that_have_figures():
    runs = [entry("busy", 0), entry("busy", 1), entry("busy", 5)]
    for run, lar in zip(runs, (0.9, 0.8, 0.1), strict=True):
        run["managers"]["vmplace"]["guests"]["table"]["lar_after"] = lar
    # In one the control came to no end, in another nobody did.
    del runs[2]["managers"]["none"]
    runs.append({key: value for key, value in entry("busy", 5).items() if key != "managers"})
    text = "\n".join(rendered({"runs": runs}))
    assert "| LAR of table under vmplace | busy | 3 | 0.80 | 0.10 to 0.90 |" in text
    assert "| emulated s under nobody | busy | 2 |" in text


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        ([("idle", 0), ("busy", 5)], 0),
        ([("idle", 5), ("busy", 5)], 5),
        ([("idle", 0), ("busy", 0)], 1),
        ([("idle", 0), ("late", 0)], 1),
        ([("idle", 5), ("idle", 1)], 1),
        ([("busy", 124)], 1),
    ],
)
def test_a_verdict_beside_a_busy_loop_is_as_bad_as_a_failure(runs: list[tuple[str, int]], code: int):
    assert worst([{"beside": beside, "exit_code": ended} for beside, ended in runs]) == code


def test_claims_without_a_verdict_are_counted_beside_those_that_failed():
    runs = [
        entry("busy", 5, too_slow="others used 55%", undecided=["vmplace: slower", "vmplace: uneven"]),
        entry("busy", 1, too_slow="others used 40%", failed_expectations=["vmplace: memory"]),
        entry("idle", 0),
    ]
    text = "\n".join(rendered({"runs": runs}))
    assert "Claims that failed: 1; that did not come out and got no verdict: 2,\n  in 1 runs." in text
    assert text.count("Claims that failed") == 1
    assert "vmplace: memory; others used 40%" in text


def run_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, *words: str) -> tuple[int, Any]:
    """Return the exit code of a series of demos that are this script, and its log."""
    kept = tmp_path / "log.json"
    out, seconds = tmp_path / "out", itertools.count()
    monkeypatch.setattr(
        demo_runs, "run_once", lambda kind, _: run_once(kind, out / str(next(seconds)), ("sh", "-c", script))
    )
    monkeypatch.setattr(sys, "argv", ["demo_runs", "--log", str(kept), *words])
    return demo_runs.main(), json.loads(kept.read_text())["runs"]


@pytest.mark.slow
def test_a_demo_that_hangs_is_kept_as_such_and_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(demo_runs, "LONGEST_S", 2)
    script = f"sleep 60 & echo $! >>{tmp_path}/children; wait"
    code, runs = run_log(tmp_path, monkeypatch, script, "--runs", "2", "--beside", "idle")
    assert code == 1 and [run["exit_code"] for run in runs] == [124, 124]
    children = (tmp_path / "children").read_text().split()
    # A signal is sent at once, but a process ends when it next gets a CPU.
    deadline = time.monotonic() + 60
    while any(map(is_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(children) == 2 and not any(map(is_alive, children))


def is_alive(pid: str) -> bool:
    """Tell whether the process is there, and not merely not yet waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("beside", "script", "code"),
    [("idle", "exit 5", 5), ("busy", "exit 5", 0), ("idle", "exit 0", 0), ("busy", "exit 3", 1)],
)
def test_a_series_that_is_undecided_with_nothing_beside_it_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: str, script: str, code: int
):
    assert run_log(tmp_path, monkeypatch, script, "--runs", "2", "--beside", beside)[0] == code


@pytest.mark.parametrize("last", [1, 1 + len(os.sched_getaffinity(0))], ids=["a loop", "the demo"])
def test_who_ends_the_log_while_it_starts_something_leaves_nothing_behind(tmp_path: Path, last: int):
    script = f"""
import os, signal, subprocess, sys
from pathlib import Path
from bench import demo_runs
real, pids = subprocess.Popen, Path("{tmp_path}/pids")
record = {{"date": "now", "commit": "one", "load": [0]}}
def start(*words, **options):
    process = real(*words, **options)
    with pids.open("a") as file:
        print(process.pid, file=file)
    if len(pids.read_text().split()) == {last}:
        os.kill(os.getpid(), signal.SIGTERM)
    return process
demo_runs.subprocess.Popen, demo_runs.provenance = start, lambda: record
run = demo_runs.run_once
demo_runs.run_once = lambda kind, out: run(kind, out, ("sh", "-c", "exec sleep 60", "demo"))
where = "--log {tmp_path}/log --out {tmp_path}/out"
sys.argv = ["demo_runs", "--runs", "1", "--beside", "busy", *where.split()]
demo_runs.main()
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=120)
    started = (tmp_path / "pids").read_text().split()
    left = [pid for pid in started if is_alive(pid)]
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    assert done.returncode == 128 + signal.SIGTERM and len(started) >= last and left == []


def test_who_ends_the_log_leaves_no_demo_and_no_loop_behind(tmp_path: Path):
    script = f"""
import sys
from bench import demo_runs
run = demo_runs.run_once
demo = ("sh", "-c", "touch {tmp_path}/begun; exec sleep 60", "demo")
demo_runs.run_once = lambda kind, out: run(kind, out, demo)
where = "--log {tmp_path}/log --out {tmp_path}/out"
sys.argv = ["demo_runs", "--runs", "1", "--beside", "busy", *where.split()]
demo_runs.main()
"""
    with subprocess.Popen([sys.executable, "-c", script]) as logging:
        while not (tmp_path / "begun").exists() and logging.poll() is None:
            time.sleep(0.05)
        beside = children(logging.pid)
        logging.terminate()
    assert len(beside) == 1 + len(os.sched_getaffinity(0))
    assert not [pid for pid in beside if Path(f"/proc/{pid}").exists()]
