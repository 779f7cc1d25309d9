"""Rows that are run anew take the places of the old ones, and the record says so."""

import json
from typing import Any

import pytest

from bench.policy_page import rendered
from bench.policy_rows import KEPT, check, name_of, with_rows

POLICY = "numad-model"
WHEN = {"date": "2026-12-01T00:00:00", "commit": "c" * 40}


def kept() -> Any:
    return json.loads(KEPT.read_text())


def later(change: dict[str, float]) -> Any:
    """Return a run that has the kept rows, but for what changes of the policy's."""
    table = kept()
    rows = [row | change if row["policy"] == POLICY else row for row in table["rows"]]
    return table | {"rows": rows, "record": table["record"] | WHEN, "failed": {}}


def test_new_rows_take_the_places_of_the_old_ones_and_record_and_page_tell_their_commit() -> None:
    table, new = kept(), later({"run_time_s": 9.0})
    check(table, new)
    changed = with_rows(table, new, [POLICY])
    assert list(map(name_of, changed["rows"])) == list(map(name_of, table["rows"]))
    differ = [row for row in changed["rows"] if row not in table["rows"]]
    assert differ == [row for row in new["rows"] if row["policy"] == POLICY]
    assert changed["record"]["commit"] == table["record"]["commit"]
    page = " ".join("\n".join(rendered(changed)).split())
    assert f"{len(differ)} rows of `numad-model` were run anew on 2026-12-01, commit cccccccccccc" in page


def test_rows_of_other_policies_stay_as_they_were_kept() -> None:
    changed = with_rows(kept(), later({"run_time_s": 9.0}), ["bwap"])
    assert changed["rows"] == kept()["rows"]


def test_a_policy_of_which_some_rows_were_not_run_is_refused() -> None:
    new = later({})
    new["rows"].remove(next(row for row in new["rows"] if row["policy"] == POLICY))
    with pytest.raises(ValueError, match="rows that only one table has"):
        with_rows(kept(), new, [POLICY])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"failed": {"a": "b"}}, "failed"),
        ({"sampled": "the first 3 windows of each trace"}, "the first 3 windows"),
        ({"record": WHEN | {"commit": "c" * 40 + "-dirty"}}, "not a commit"),
    ],
)
def test_a_run_that_failed_or_is_of_other_windows_or_of_no_commit_is_refused(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        check(kept(), later({}) | change)


def test_a_run_whose_controls_differ_is_refused() -> None:
    new = later({})
    none = next(row for row in new["rows"] if row["policy"] == "none")
    none["run_time_s"] *= 1.01
    with pytest.raises(ValueError, match="takes another time"):
        check(kept(), new)
