"""What surrounds the table of ``make bench-policy``: kept results, and the notes on rows."""

import ast
import shutil
from pathlib import Path
from typing import Any

import pytest

import vmplace
from bench import policy_cache
from bench.bench_policy import HUGE, mix_of, options_of, runs_of
from bench.policy_cache import AGENTS, CODE, PLANNERS, ResultCache, code_digest
from bench.policy_notes import beaten, rivals_ahead
from bench.policy_page import SPLIT, _rivals, kind_of
from bench.policy_summary import mean_share, median_share, share_of_mean_gain, summary
from tests.unit.simulate.small_trace import private_pages
from tests.unit.simulate.test_run import run


def test_a_result_is_kept_whole_and_only_under_its_own_key(tmp_path: Path):
    cache, result = ResultCache(tmp_path), run(private_pages(), "none")
    other = run(private_pages(), "interleave-all")
    assert cache.result("none", ("a",), lambda: result) == result
    assert cache.result("none", ("a",), lambda: other) == result
    assert cache.result("none", ("b",), lambda: other) == other
    assert cache.result("vmplace", ("a",), lambda: other) == other


def test_only_vmplace_depends_on_its_own_code():
    assert len({code_digest(CODE, apart) for apart in ((), AGENTS, (*PLANNERS, *AGENTS))}) == 3
    assert all((Path(vmplace.__file__).parent / "policy" / name).is_file() for name in (*PLANNERS, *AGENTS))


def imported(path: Path) -> set[str]:
    """Return the names of the policy's modules that a module imports."""
    tree = ast.parse(path.read_text())
    imports = [one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)]
    names = [one.module or "" for one in imports]
    names += [f"{one.module}.{alias.name}" for one in imports for alias in one.names]
    return {f"{name.rpartition('.')[2]}.py" for name in names if name.startswith("vmplace.policy.")}


def test_no_baseline_runs_code_that_is_no_part_of_its_key():
    """Who imports vmplace's own code is vmplace's own, or names all policies, or is of the agent alone."""
    root = Path(vmplace.__file__).parent
    for path in (path for part in CODE for path in (root / part).rglob("*.py")):
        of_agent = path.name in {*AGENTS, "registry.py", "fit.py", "make_room.py", "interleave.py"}
        if of_agent or path.name.startswith("agent_"):
            continue
        assert not imported(path) & {*AGENTS}, path
        # registry.py names the planner for the simulator.
        if path.name not in PLANNERS:
            assert not imported(path) & {*PLANNERS}, path


def parts_imported(path: Path) -> set[str]:
    """Return the parts of the product that a module imports anywhere, and modules that are in none."""
    names = []
    for one in ast.walk(ast.parse(path.read_text())):
        if isinstance(one, ast.ImportFrom):
            names += [f"{one.module}.{alias.name}" for alias in one.names]
        elif isinstance(one, ast.Import):
            names += [alias.name for alias in one.names]
    return {name.split(".")[1] for name in names if name.startswith("vmplace.")}


def test_what_a_baseline_runs_imports_no_code_beyond_its_key():
    root = Path(vmplace.__file__).parent
    for path in (path for part in CODE for path in (root / part).rglob("*.py")):
        if not path.name.startswith(("agent_", "commands.")):
            beyond = parts_imported(path) - set(CODE)
            assert all((root / f"{name}.py").is_file() for name in beyond), (path, beyond)


@pytest.mark.parametrize(
    "name", ["native/place.c", "sampling/page_arrays.py", "topology/bandwidth.py", "outside.py"]
)
def test_a_change_of_code_that_a_baseline_runs_gives_it_a_new_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    copy = tmp_path / "vmplace"
    shutil.copytree(Path(vmplace.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    monkeypatch.setattr(vmplace, "__file__", str(copy / "__init__.py"))
    digest = code_digest.__wrapped__
    before = digest(*policy_cache.code_of("kmaf"))
    (copy / name).write_text((copy / name).read_text() + "\n")
    assert digest(*policy_cache.code_of("kmaf")) != before


def test_another_version_of_a_library_gives_a_new_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cache, result = ResultCache(tmp_path), run(private_pages(), "none")
    other = run(private_pages(), "interleave-all")
    assert cache.result("none", ("a",), lambda: result) == result
    monkeypatch.setattr(policy_cache, "version", lambda name: "0.0.1")
    assert cache.result("none", ("a",), lambda: other) == other


def row(policy: str, run_time_s: float, *, source: str = "full"):
    names = {"host": "h", "mix": "m", "policy": policy, "source": source}
    return {**names, "run_time_s": run_time_s, "oracle_run_time_s": 0.8}


def test_only_rows_that_are_faster_by_more_than_noise_are_noted():
    rows = [row("vmplace", 1.0), row("bwap", 0.991), row("oracle", 0.8), row("static-oracle", 0.9)]
    rows += [row("carrefour-2013", 0.98)]
    assert [(one["policy"], one["reason"]) for one in beaten(rows)] == [("carrefour-2013", "unexplained")]


def test_a_note_tells_what_the_faster_one_may_do_that_vmplace_does_not():
    (first, second) = beaten([row("vmplace", 1.0), row("interleave-all", 0.9), row("kmaf", 0.9)])
    assert "first touched" in first["reason"]
    assert "vCPUs" in second["reason"]


def gained(oracle: float, own: float):
    return {"none_run_time_s": 2.0, "oracle_run_time_s": 2 * (1 - oracle), "run_time_s": 2 * (1 - own)}


def test_the_share_of_the_mean_gain_is_counted_as_kmaf_counts_its_own():
    """13.8 of 15.3 % on average (PACT'14, section 5.1)."""
    assert share_of_mean_gain([gained(0.306, 0.276), gained(0.0, 0.0)]) == pytest.approx(13.8 / 15.3)


def test_in_the_mean_gain_each_row_counts_whole_gain_or_loss():
    assert share_of_mean_gain([gained(0.2, 0.3), gained(0.2, -0.1)]) == pytest.approx(0.5)


def test_shares_are_clipped_on_both_sides():
    rows: list[dict[str, Any]] = [{"share": 1.7}, {"share": -40.0}, {"share": 0.6}, {"share": None}]
    assert mean_share(rows, "share") == pytest.approx(0.2)
    assert median_share(rows, "share") == pytest.approx(0.6)


def test_where_the_oracle_gains_nothing_there_is_no_share():
    assert share_of_mean_gain([gained(0.0, 0.0)]) is None
    assert share_of_mean_gain([]) is None


def test_a_trace_with_huge_pages_has_a_name_and_a_table_of_its_own():
    guests = ("streamcluster,pages=2M", "npb-ep-A,vcpus=8")
    assert mix_of(guests) == "streamcluster (2M pages)+npb-ep-A"
    alone = {"host": "carrefour-a", "guests": {"g0": {}}}
    names = [mix_of(("npb-ep-A",)), mix_of(("npb-ep-A,pages=64K",)), mix_of(("streamcluster",))]
    kinds = [kind_of({**alone, "mix": mix}) for mix in names]
    assert kinds == ["judging", "huge-judging", "tuning"]


@pytest.mark.parametrize("half", ["tuning", "judging"])
def test_both_halves_of_the_traces_run_with_pages_of_each_size(half: str):
    sizes = {
        options_of(rest)["pages"] for name, _, rest in (t.partition(",") for t in HUGE) if name in SPLIT[half]
    }
    assert sizes == {"2M", "64K"}


def test_the_agent_runs_with_no_pages_that_it_does_not_know():
    agents = [
        {policy for policy, _ in runs_of(mix_of((f"gups,pages={size}",)), {"kmaf", "agent:auto"})}
        for size in ("2M", "64K")
    ]
    assert agents[0] - agents[1] == {"agent:auto"}


def test_rows_with_huge_pages_are_in_no_printed_mean():
    rest = {"none_run_time_s": 2.0, "worst_guest_slowdown": 0.0, "worst_protected_slowdown": None}
    shares = dict.fromkeys(("oracle_share", "online_share", "static_share"))
    small = {**row("bwap", 1.0), **rest, **shares, "oracle_share": 0.25}
    huge = {**small, "mix": "m (2M pages)", "oracle_share": 0.75}
    line = summary([small, huge], [("bwap", "full")], None).splitlines()[1]
    assert "0.250" in line
    assert line.endswith(" 1")


def test_baselines_alone_are_ahead_and_only_by_more_than_noise():
    rows = [row("agent:auto", 1.0, source="ad"), row("oracle", 0.5), row("vmplace", 0.5)]
    rows += [row("bwap", 0.98), row("kmaf", 0.995), row("interleave-all", 1.2)]
    found = list(rivals_ahead(rows, "agent:auto", "ad"))
    assert [one["policy"] for one in found] == ["bwap"]
    assert found[0]["lead"] == pytest.approx(0.02)


def test_rivals_are_listed_of_each_source_of_the_plan_and_of_what_ships():
    rows = [row("vmplace", 1.0), row("vmplace", 1.2, source="ibs"), row("agent:auto", 1.1, source="full")]
    rows += [row("agent:auto", 0.9, source="idle"), row("none", 0.5), row("bwap", 1.05)]
    heads = [line for line in _rivals(rows) if line.startswith("Than")]
    assert heads == [
        "Than `vmplace`, `full`, in 0 rows.\n",
        "Than `vmplace`, `ibs`, in 1 rows:\n",
        "Than `agent:auto`, `full`, in 1 rows:\n",
        "Than `agent:auto`, `idle`, in 0 rows.\n",
    ]
