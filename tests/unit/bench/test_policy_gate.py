"""The table of policies can fail: what ships is held against doing nothing in each row."""

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import bench_agent, bench_policy, policy_cache, policy_gate
from bench.bench_hostile import drawn
from bench.policy_cache import ResultCache
from bench.policy_page import rendered
from vmplace.simulate.result import GuestResult, SimulationResult, worst_slowdown


def row(policy: str, slowdown: float, mix: str = "lulesh", guests: int = 1) -> dict[str, Any]:
    return {
        "host": "carrefour-a",
        "mix": mix,
        "policy": policy,
        "source": "ad",
        "worst_guest_slowdown": slowdown,
        "oracle_share": 0.5,
        "run_time_s": 0.9,
        "none_run_time_s": 1.0,
        "oracle_run_time_s": 0.8,
        "guests": dict.fromkeys("abc"[:guests]),
    }


def ran(times: dict[str, float]) -> SimulationResult:
    return SimulationResult(
        1.0, None, None, None, {name: GuestResult(time_s, 0, 0, 0, 0) for name, time_s in times.items()}
    )


def test_a_guest_that_got_slower_by_more_than_a_hundredth_fails_the_gate() -> None:
    rows = [row("agent:auto", 0.0101), row("agent:auto", 0.0099), row("kmaf", 0.5), row("agent:auto", 0.2)]
    assert [one["worst_guest_slowdown"] for one in policy_gate.harmed(rows)] == [0.2, 0.0101]
    assert "20.0% slower" in policy_gate.lines(rows)[0]


@pytest.mark.parametrize(("slowdown", "code"), [(0.02, 1), (0.0, 0)])
def test_the_bench_ends_with_the_gates_word(
    slowdown: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harm = row("agent:auto", slowdown) | {
        "worst_protected_slowdown": None,
        "static_share": None,
        "online_share": None,
    }
    monkeypatch.setattr(bench_policy, "scenario_names", lambda _: [("carrefour-a", ("lulesh",))])
    monkeypatch.setattr(bench_policy, "scenario", lambda *_: None)
    monkeypatch.setattr(bench_policy, "table_rows", lambda *_: [harm])
    monkeypatch.setattr(bench_policy, "missing_of", lambda *_: [])
    where = ["--traces", str(tmp_path), "--out", str(tmp_path / "policy.json"), "--cache", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["bench", *where, "--hostile", "0", "--no-leave-one-out"])
    assert bench_policy.main() == code


def test_a_protected_guest_has_a_closer_bound() -> None:
    rows = [row("agent:auto", 0.006) | {"worst_protected_slowdown": slower} for slower in (0.004, 0.0051)]
    (said,) = policy_gate.lines(rows)
    assert "a protected guest is 0.5% slower" in said
    assert "In 1 of 2 rows with a protected guest" in "\n".join(rendered({"rows": rows, "sampled": "two"}))


@pytest.mark.parametrize(
    "rows",
    [[], [row("kmaf", 0.0)], [row("agent:auto", 0.0, "hostile-7")]],
    ids=["none", "of others", "made up"],
)
def test_without_a_row_of_what_ships_nothing_is_shown(rows: list[dict[str, Any]]) -> None:
    assert "was run on no recorded trace" in policy_gate.lines(rows)[0]
    page = "\n".join(rendered({"rows": rows, "sampled": "nothing"}))
    assert "**The gate judged nothing**" in page and "The gate holds" not in page


def test_made_up_programs_alone_do_not_stand_for_the_traces_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harmless = row("agent:auto", 0.0, "hostile-1") | {
        "worst_protected_slowdown": None,
        "static_share": None,
        "online_share": None,
    }
    monkeypatch.setattr(bench_policy, "hostile_rows", lambda *_: [harmless])
    where = ["--traces", str(tmp_path), "--out", str(tmp_path / "policy.json"), "--cache", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["bench", *where, "--hostile", "1", "--no-leave-one-out"])
    assert bench_policy.main() == 1
    assert "there is no trace of freqmine, gap-cc-urand20" in capsys.readouterr().err


def test_what_time_is_left_for_goes_to_bwaps_ground_and_then_to_each_host_in_turn() -> None:
    hosts = [host for host, _ in bench_policy.MIXES]
    assert hosts[:2] == ["narrow-controllers"] * 2
    turns = [hosts[2:][:index].count(host) for index, host in enumerate(hosts[2:])]
    assert turns == sorted(turns)


def test_a_time_that_is_no_number_is_harm_and_the_worst() -> None:
    rows = [row("agent:auto", slower) for slower in (0.02, float("nan"), 0.5, 0.0)]
    assert [str(one["worst_guest_slowdown"]) for one in policy_gate.harmed(rows)] == ["nan", "0.5", "0.02"]
    for some in (rows, rows[::-1]):
        assert "| +nan% |" in "\n".join(rendered({"rows": some, "sampled": "four"}))


def test_a_judging_trace_for_which_there_was_no_time_is_not_passed_over() -> None:
    late = bench_policy.unjudged([], ["carrefour-a metis-pca", "two-node metis-pca+gups"])
    assert late == ["there was no time for metis-pca (see --minutes)"]
    assert policy_gate.lines([row("agent:auto", 0.0)], late)
    page = "\n".join(rendered({"rows": [row("agent:auto", 0.0)], "sampled": "one", "unjudged": late}))
    assert "**Not all was judged**" in page and "The gate holds" not in page


def test_mixes_for_which_there_was_no_time_are_not_passed_over_if_a_host_has_no_other() -> None:
    mixes = [f"{host} {bench_policy.mix_of(guests)}" for host, guests in bench_policy.MIXES]
    assert bench_policy.unjudged([], mixes[-5:]) == []
    (late,) = bench_policy.unjudged([], mixes[2:])
    assert "a mix on two-node" in late and "narrow-controllers" not in late


@pytest.mark.parametrize("slow", ["a", "b"])
def test_a_guest_whose_time_is_no_number_hides_behind_no_other_guest(slow: str) -> None:
    still, other = (ran({"a": 1.0, "b": 1.0}), ran({"a": 1.0, "b": 1.0} | {slow: float("nan")}))
    assert math.isnan(worst_slowdown(other, still))
    specs = [SimpleNamespace(name=name, slowdown_bound=0.005) for name in "ab"]
    assert math.isnan(bench_policy.worst_protected({"guests": other.guests}, still, specs) or 0.0)  # type: ignore[arg-type]


def test_a_folder_without_traces_ends_with_an_error_and_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--traces", str(tmp_path), "--out", str(tmp_path / "policy.json"), "--cache", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["bench", *where, "--hostile", "0", "--no-leave-one-out"])
    assert bench_policy.main() == 1
    sampled = (tmp_path / "policy.json").read_text()
    assert "for want of lulesh: carrefour-a lulesh" in sampled
    assert "for want of metis-pca, redis-ycsba: memory-expander metis-pca+redis-ycsba" in sampled
    monkeypatch.setattr("sys.argv", ["bench", "--traces", str(tmp_path)])
    assert bench_agent.main() == 1
    assert "has no trace of metis-pca" in capsys.readouterr().err


@pytest.mark.slow
def test_a_made_up_program_tells_how_its_protected_guest_fared(tmp_path: Path) -> None:
    number = next(n for n in range(100) if drawn(n)[1][0].slowdown_bound is not None)
    rows = bench_policy.hostile_rows(bench_policy.Bench(ResultCache(tmp_path), 1.0), number)
    assert rows and all(isinstance(one["worst_protected_slowdown"], float) for one in rows)
    assert bench_policy.STOCK in {(one["policy"], one["source"]) for one in rows}


def test_a_run_that_has_no_more_time_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_policy, "scenario_names", lambda _: [("carrefour-a", ("lulesh",))])
    where = ["--traces", str(tmp_path), "--out", str(tmp_path / "policy.json"), "--cache", str(tmp_path)]
    monkeypatch.setattr(
        "sys.argv", ["bench", *where, "--minutes", "0", "--hostile", "0", "--no-leave-one-out"]
    )
    bench_policy.main()
    assert "left out after 0 minutes of CPU: carrefour-a lulesh" in (tmp_path / "policy.json").read_text()


def test_what_the_agent_runs_is_part_of_its_key_and_no_part_of_a_baselines() -> None:
    parts, apart = policy_cache.code_of("agent:auto")
    assert not apart and {"agent", "actuation", "sampling"} <= set(parts)
    of_planner, of_agent = policy_cache.PLANNERS, policy_cache.AGENTS
    assert policy_cache.code_of("vmplace") == (policy_cache.CODE, of_agent)
    assert policy_cache.code_of("kmaf") == (policy_cache.CODE, (*of_planner, *of_agent))


def test_the_page_tells_singles_from_mixes_and_names_who_was_harmed() -> None:
    rows = [row("agent:auto", 0.02), row("agent:auto", 0.0, "a+b", 2), row("agent:auto", 0.0, "hostile-7")]
    page = "\n".join(rendered({"rows": rows, "sampled": "the first 14 windows of each trace"}))
    assert (
        "Traces alone, on which constants were chosen" in page
        and "Mixes of guests" in page
        and "mislead on purpose" in page
    )
    assert "**The gate does not hold**" in page and "* carrefour-a, lulesh, `ad`: +2.0%" in page


def test_a_harmed_row_stands_beside_what_kernel_balancing_alone_does_there() -> None:
    rows = [
        row("agent:auto", 0.02),
        row("kernel-balancing-model", 0.019),
        row("kernel-balancing-model", 0.5, "a+b", 2),
    ]
    page = "\n".join(rendered({"rows": rows, "sampled": "two"}))
    assert "* carrefour-a, lulesh, `ad`: +2.0%; kernel balancing alone: +1.9%" in page


def test_no_item_of_the_page_is_wider_than_its_text_however_many_guests_a_row_has() -> None:
    guests = "+".join(f"guest-{number}" for number in range(12))
    rows = [row("agent:auto", 0.02, guests, 12), row("agent:auto", 0.0), row("bwap", 0.0, guests, 12)]
    rows[2]["run_time_s"] = 0.5
    page = "\n".join(rendered({"rows": rows, "sampled": "two"}))
    assert "bwap by" in page
    assert max(len(line) for line in page.splitlines() if line.startswith(("*", "  "))) <= 98


def test_no_scenario_begins_beside_others_after_the_time_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(bench_policy, "scenario", lambda *words: begun.append(words[1]))
    monkeypatch.setattr(bench_policy, "table_rows", lambda *_: [])
    options = SimpleNamespace(traces=tmp_path, windows=1, policies=[], no_leave_one_out=True)
    bench = bench_policy.Bench(policy_cache.ResultCache(None))
    now = time.monotonic()
    for until, has_begun in ((now - 1, False), (now + 600, True)):
        name = f"until {until}"
        assert bench_policy.fill_one(bench, options, until, name, ("lulesh",)) is has_begun  # type: ignore[arg-type]
    assert begun == [f"until {now + 600}"]


def test_what_others_filled_in_the_time_that_there_was_stands_in_the_table_and_the_rest_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much CPU time that took: it is in the cache."""
    names = [("carrefour-a", ("lulesh",)), ("carrefour-a", ("gups",))]
    monkeypatch.setattr(bench_policy, "scenario_names", lambda _: names)
    monkeypatch.setattr(bench_policy, "fill_cache", lambda *_: {names[0]})
    monkeypatch.setattr(bench_policy, "cpu_minutes", lambda: 1e9)
    monkeypatch.setattr(bench_policy, "scenario", lambda *_: None)
    monkeypatch.setattr(bench_policy, "table_rows", lambda *_: [])
    where = ["--traces", str(tmp_path), "--out", str(tmp_path / "policy.json"), "--cache", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["bench", *where, "--jobs", "2", "--hostile", "0", "--no-leave-one-out"])
    bench_policy.main()
    assert (
        "left out after 30 minutes by the clock, 2 scenarios at a time: carrefour-a gups"
        in (tmp_path / "policy.json").read_text()
    )
