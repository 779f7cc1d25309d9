"""The log of demo runs keeps how each ended, and shows exactly that."""

import json
from pathlib import Path
from typing import Any

from bench.demo_runs import busy_machine, figures_of, next_kind, run_once
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


def test_the_machine_is_busy_only_within_the_block():
    with busy_machine("busy"):
        assert list(Path("/proc/self/task").glob("*/children"))
        assert any(path.read_text() for path in Path("/proc/self/task").glob("*/children"))
    assert not any(path.read_text() for path in Path("/proc/self/task").glob("*/children"))


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


def test_spreads_are_of_runs_that_were_judged():
    runs = [entry("busy", 0), entry("busy", 0), entry("busy", 5)]
    for run, lar in zip(runs, (0.9, 0.8, 0.1), strict=True):
        run["managers"]["vmplace"]["guests"]["table"]["lar_after"] = lar
    assert "| LAR of table under vmplace | busy | 2 | 0.85 | 0.80 to 0.90 |" in "\n".join(
        rendered({"runs": runs})
    )
