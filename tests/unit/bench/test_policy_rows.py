"""Rows that are run anew take the places of the old ones, and the record says so."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bench.policy_page import rendered
from bench.policy_rows import KEPT, row_anew, with_rows
from vmplace.simulate.result import SimulationResult

MIX = "streamcluster+redis-ycsba"


def kept() -> Any:
    return json.loads(KEPT.read_text())


def test_a_result_beside_the_kept_controls_gives_the_row_that_the_bench_wrote() -> None:
    rows: list[dict[str, Any]] = kept()["rows"]
    specs = [
        SimpleNamespace(name="g0", slowdown_bound=None),
        SimpleNamespace(name="g1", slowdown_bound=0.005),
    ]
    one: Any = SimpleNamespace(specs=specs)
    mine = [row for row in rows if row["mix"] == MIX and row["policy"] in ("numad-model", "vmplace", "kmaf")]
    assert len(mine) == 5
    for row in mine:
        names = {key: row[key] for key in ("host", "mix", "policy", "source")}
        made = row_anew(rows, names, msgspec.convert(row, SimulationResult), one)
        assert made.keys() == row.keys()
        assert made | {"online_share": None} == row | {"online_share": None}
        assert made["online_share"] == pytest.approx(row["online_share"])


def test_a_new_row_takes_the_place_of_the_old_one_and_the_record_and_page_tell_its_commit() -> None:
    table = kept()
    old = next(row for row in table["rows"] if row["mix"] == MIX and row["policy"] == "numad-model")
    new = old | {"run_time_s": 9.0}
    changed = with_rows(table, [new], {"date": "2026-12-01T00:00:00", "commit": "c" * 40})
    assert len(changed["rows"]) == len(table["rows"])
    assert [row for row in changed["rows"] if row not in table["rows"]] == [new]
    assert changed["record"]["commit"] == table["record"]["commit"]
    page = " ".join("\n".join(rendered(changed)).split())
    assert "1 rows of `numad-model` were run anew on 2026-12-01, commit cccccccccccc" in page
