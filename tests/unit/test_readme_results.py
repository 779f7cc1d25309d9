"""The README tells the figures of the run that is kept, and no other."""

import json
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bench import readme_results
from bench.readme_results import (
    DEFAULTS,
    KEPT,
    LAB_WORST,
    LOG,
    PICTURE,
    POLICIES,
    README,
    STATUS,
    judged,
    keep,
    losses,
    rendered,
    rendered_run,
    status_table,
    with_losses,
    with_results,
    with_status,
)
from lab.scenario import claims_of, read_scenario
from lab.scenario_agents import of_emulation
from vmplace.agent.config_sections import Config

UNPLACED = ("shared-table-written", "shared-table-written-n2")
GOLDEN = Path(__file__).parents[1] / "data/golden"


def log() -> Any:
    return json.loads(LOG.read_text())


def test_the_readme_has_the_figures_of_the_log() -> None:
    readme = README.read_text()
    assert with_results(readme, log()) == readme, "run make results"


def test_other_runs_give_other_figures() -> None:
    changed = log()
    for run in changed["runs"]:
        for manager in run.get("managers", {}).values():
            manager["guests"]["table"]["lar_after"] = 0.125
    assert "| 0.12 |" in rendered(changed) and "| 0.12 |" not in rendered(log())


def test_a_run_that_failed_counts_as_the_others_do() -> None:
    changed = log()
    one: Any = judged(changed["runs"])[0]
    one["exit_code"] = 1
    one["managers"]["vmplace"]["emulated_run_time_s"] = 9.87
    assert "9.9" in rendered(changed)
    assert "1 with 1" in rendered(changed)


def test_a_run_in_which_a_manager_broke_counts_without_it() -> None:
    changed = log()
    one: Any = judged(changed["runs"])[0]
    one["exit_code"] = 1
    del one["managers"]["vmplace"]
    text = " ".join(rendered(changed).split())
    assert "1 with 1" in text and "1 of them lack the figures" in text


def test_runs_under_other_rules_or_of_a_changed_tree_are_not_pooled() -> None:
    changed = log()
    for other in ({"rules": 1}, {"commit": "c" * 40 + "-dirty"}):
        one = json.loads(json.dumps(judged(changed["runs"])[0])) | other
        one["managers"]["vmplace"]["emulated_run_time_s"] = 9.87
        changed["runs"].append(one)
    assert rendered(changed) == rendered(log())


def test_runs_without_a_verdict_give_no_figures() -> None:
    changed = log()
    for run in changed["runs"]:
        if run["beside"] != "idle" or run["exit_code"] == 5:
            run["managers"] = {}
    rendered(changed)


def test_the_kept_run_held_and_has_its_picture() -> None:
    assert json.loads(KEPT.read_text())["demo"]["failed_expectations"] == []
    assert PICTURE.read_text().lstrip().startswith("<?xml")


def test_a_run_that_did_not_hold_is_not_kept(tmp_path: Path) -> None:
    demo = json.loads(KEPT.read_text())["demo"] | {"failed_expectations": ["vmplace: slower"]}
    (tmp_path / "result.json").write_text(json.dumps(demo))
    with pytest.raises(ValueError, match="did not hold"):
        keep(tmp_path)


def test_a_run_whose_second_story_did_not_hold_is_not_kept(tmp_path: Path) -> None:
    demo = json.loads(KEPT.read_text())["demo"]
    (tmp_path / "result.json").write_text(json.dumps(demo))
    (tmp_path / "consolidated.json").write_text(json.dumps(demo | {"too_slow": "others used 40% of it"}))
    with pytest.raises(ValueError, match=r"consolidated\.json did not hold"):
        keep(tmp_path)


def test_a_run_whose_second_story_came_to_no_figures_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(json.loads(KEPT.read_text())["demo"]))
    with pytest.raises(ValueError, match="no figures of consolidated"):
        keep(tmp_path)


def test_a_run_is_kept_with_the_commit_that_it_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readme_results, "KEPT", tmp_path / "kept.json")
    for name in ("result.json", "consolidated.json"):
        (tmp_path / name).write_text(json.dumps(json.loads(KEPT.read_text())["demo"]))
    with pytest.raises(ValueError, match="of which commit"):
        keep(tmp_path)
    (tmp_path / "record.json").write_text(json.dumps({"date": "2026-01-02T03:04:05", "commit": "c" * 40}))
    keep(tmp_path)
    assert "2026-01-02, commit cccccccccccc" in rendered_run(json.loads((tmp_path / "kept.json").read_text()))


def test_what_a_command_prints_in_the_readme_is_what_it_prints() -> None:
    shown = re.findall(r"<!-- golden: (\S+) -->\n((?:    .*\n)+)", README.read_text())
    assert shown
    for file, block in shown:
        lines = textwrap.dedent(block).splitlines()
        printed = (GOLDEN / file).read_text().splitlines()
        assert 3 < len(lines) <= 12 and lines == printed[: len(lines)]


def test_the_status_in_the_readme_is_that_of_the_kept_run() -> None:
    readme, kept = README.read_text(), json.loads(STATUS.read_text())
    assert with_status(readme, kept) == readme, "run make results"
    assert 1 < len(status_table(kept).splitlines()) <= 8
    other = {"printed": {"status": kept["printed"]["status"].replace("web ", "dns ")}}
    assert "    dns " in with_status(readme, other)
    with pytest.raises(ValueError, match="lacks the mark"):
        with_status(readme.replace("kept: status.json", ""), kept)


def test_the_readme_has_what_guests_lost_in_the_kept_table_of_policies() -> None:
    readme, kept = README.read_text(), json.loads(POLICIES.read_text())
    assert with_losses(readme, kept) == readme, "run make results"
    with pytest.raises(ValueError, match="lacks the item"):
        with_losses(readme.replace("can become slower", ""), kept)


def test_what_guests_lost_is_of_the_rows_that_are_given() -> None:
    def row(policy: str, mix: str, slower: float, protected: float | None = None) -> dict[str, Any]:
        one = {"policy": policy, "host": "h", "mix": mix, "source": "idle", "guests": ["a", "b"]}
        return one | {"worst_guest_slowdown": slower, "worst_protected_slowdown": protected}

    rows = [row("agent:auto", "a+b", 0.031, 0.007), row("agent:auto", "hostile-1", 0.02)]
    rows += [row("agent:auto", "c+d", 0.01, 0.005), row("kernel-balancing-model", "a+b", 0.03)]
    text = " ".join(losses(rows).split())
    assert "in 2 of 3 " in text and "3.1 % at worst (lab: 6.8 %). 1 of these are of ordinary programs" in text
    assert "in 1 kernel balancing alone" in text and "In 1 of 2 rows a protected guest" in text
    held = " ".join(losses(rows[2:]).split())
    assert "in 0 of 1 " in held and held.endswith(
        "the aim of 1 %. In 0 of 1 rows a protected guest lost more than 0.5 %."
    )


def test_the_limits_name_the_failures_that_the_note_has() -> None:
    note = (README.parent / "docs/design/demo-claims.md").read_text()
    limits = " ".join(README.read_text().partition("## Limits")[2].split())
    codes = [int(code) for code in re.findall(r"^\| \d+ \| (\d)[ |]", note, re.M)]
    assert f"failed in {codes.count(1)} of the demo's first {len(codes)} runs" in limits
    numbers = {"fails": 1, "two fail": 2, "three fail": 3}
    failing = re.findall(r"^\| ([\w-]+) \|.*\| (\w+ fail|fails), see below \|$", note, re.M)
    named = ", ".join(f"`{name}` {numbers[words]}" for name, words in failing)
    scenarios = len([*(README.parent / "lab/scenarios").glob("*.toml")])
    assert f"Claims fail in {len(failing)} of the lab's {scenarios} scenarios ({named})" in limits
    kept = json.loads((KEPT.parent / "rivals.json").read_text())["scenarios"]
    unnamed = {name for name, one in kept.items() if one["failed_expectations"]} - {
        name for name, _ in failing
    }
    assert [name for name in unnamed if f"in `{name}` against interleaving" not in limits] == []


def test_the_limits_name_scenarios_that_claim_no_placement() -> None:
    limits = " ".join(README.read_text().partition("## Limits")[2].split())
    assert "`shared-table-written` and `-n2` claim no placement" in limits
    for path in (README.parent / "lab/scenarios").glob("*.toml"):
        claims = {key for one in read_scenario(path.stem).expect for key in claims_of(one)}
        assert (claims == {"intact"}) == (path.stem in UNPLACED)


def test_the_readme_has_the_lab_s_worst_guest() -> None:
    note = " ".join((README.parent / "docs/design/demo-claims.md").read_text().split())
    pairs = re.findall(r"takes ([\d.]+) s,? (?:under vmplace, )?(?:and )?([\d.]+) untouched", note)
    worst = max(float(slower) / float(untouched) - 1 for slower, untouched in pairs)
    assert len(pairs) >= 2 and f"{worst:.1%}" == LAB_WORST


def test_the_settings_of_the_demo_are_those_of_the_scenario_and_the_agent() -> None:
    scenario, default = read_scenario("restart"), Config()
    settings = tomllib.loads(scenario.agent_config + of_emulation(scenario, 1.0))
    pairs = (
        (settings["budget"]["mb_per_s"], default.budget.mb_per_s),
        (settings["readings"]["first_ms"], default.readings.first_ms),
        (settings["window_ms"], default.window_ms),
    )
    shown = re.findall(r"(\d+) (?:MB/s|ms) \((\d+)\)", DEFAULTS)
    assert shown == [(str(there), str(usual)) for there, usual in pairs]
    assert (settings["decisions"]["share"], default.decisions.share) == (1.0, 0.25)
    assert "a whole CPU (a quarter)" in DEFAULTS


def test_a_readme_is_short_enough_to_be_read() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []


def test_a_readme_is_read_in_two_minutes() -> None:
    """About 270 words a minute: what stands beside code, tables, and the addresses of links."""
    plain = re.sub(r"<!--.*?-->|\]\([^)]*\)", "", README.read_text(), flags=re.S)
    sentences = [line for line in plain.splitlines() if not line.startswith(("    ", "|"))]
    assert 200 < len(" ".join(sentences).split()) <= 550
    tables = re.findall(r"(?:^\|.*\n)+", README.read_text(), re.M)
    # The links by reader are no results.
    assert max(len(one.splitlines()) - 2 for one in tables[:-1]) <= 6
