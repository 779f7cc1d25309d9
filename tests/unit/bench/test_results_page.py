"""The page of results names the command of each file; no control in it is zero."""

import argparse
import json
from pathlib import Path

import pytest

from bench.bench_pages import cpu_ms
from bench.bench_policy import chosen, sampled
from bench.results_page import BENCHES, RESULTS, page

KEPT = [path for path in sorted(RESULTS.glob("*.json")) if path.stem in BENCHES]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_command_is_the_one_that_was_run(path: Path):
    bench, *arguments = json.loads(path.read_text())["record"]["command"]
    assert f"`python -m bench.{' '.join((Path(bench).stem, *arguments[:1]))}" in page()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_control_is_not_zero(path: Path):
    def controls(figures: object, name: str = "") -> list[tuple[str, object]]:
        if not isinstance(figures, dict):
            return [(name, figures)] if "control" in name else []
        if figures.get("ratio", 0.0) is None:
            # Nobody waited: it says so, and no ratio is made of it.
            return []
        return [one for key, below in figures.items() for one in controls(below, f"{name} {key}")]

    parts = json.loads(path.read_text())["parts"]
    assert [name for part in parts.values() for name, value in controls(part["figures"]) if value == 0] == []


def test_what_takes_next_to_no_time_still_has_a_figure():
    nothing, little = cpu_ms(lambda: None), cpu_ms(lambda: sum(range(1000)))
    assert 0 < nothing < little < 1


def test_a_table_of_whole_traces_has_a_section_with_each_of_its_rows_and_the_gate(tmp_path: Path):
    table = json.loads((RESULTS / "policy.json").read_text())
    rows = [row for row in table["rows"] if row["mix"] in ("gups", "metis-pca")]
    assert len({row["policy"] for row in rows}) > 2
    whole = table | {"rows": rows, "sampled": "all windows of each trace; no mixes"}
    (tmp_path / "policy_whole.json").write_text(json.dumps(whole))
    _, section = page(tmp_path).split("\n## The agent on whole traces\n")
    assert "All windows of each trace; no mixes." in section
    assert section.count("| agent:auto |") == 2 * 4
    assert "agent:auto` a guest is more than 1%" in " ".join(section.split())


def test_which_scenarios_are_run_and_how_far_is_the_commands_to_say(tmp_path: Path):
    for name in ("streamcluster", "npb-mg-A"):
        (tmp_path / f"{name}.npz").touch()
    every = argparse.Namespace(traces=tmp_path, only="", windows=0, alone=False, hostile=0)
    alone = argparse.Namespace(**vars(every) | {"alone": True, "windows": 3})
    mix = ("streamcluster,vcpus=8,nodes=0+1", "npb-mg-A,vcpus=8,nodes=2+3")
    assert set(chosen(every)) - set(chosen(alone)) == {("carrefour-a", mix)}
    assert ("carrefour-a", ("streamcluster,pages=2M",)) in chosen(alone)
    assert sampled(every, [], 1) == "all windows of each trace"
    assert sampled(alone, [], 1) == "the first 3 windows of each trace; no mixes"
