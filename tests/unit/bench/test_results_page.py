"""The page of results names the command of each file; no control in it is zero."""

import json
from pathlib import Path

import pytest

from bench.bench_pages import cpu_ms
from bench.results_page import BENCHES, RESULTS, page

KEPT = [path for path in sorted(RESULTS.glob("*.json")) if path.stem in BENCHES]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_command_is_the_one_that_was_run(path: Path):
    bench, *arguments = json.loads(path.read_text())["record"]["command"]
    assert f"`python -m bench.{' '.join((bench.removesuffix('.py'), *arguments[:1]))}" in page()


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
