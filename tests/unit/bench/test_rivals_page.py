"""The page of all rivals shows each of them, and a claim that did not hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.rivals_page import STORIES, keep, rendered


def manager(seconds: float, lar: float) -> dict[str, Any]:
    guests = {"web": {"lar_after": lar, "vcpu_nids": [0], "vcpu_nids_after": [0]}}
    figures = {"mc_imbalance_after": 0.5, "moved_bytes": 3 << 20, "replica_bytes": 0, "cost_share": None}
    return {"guests": guests, "emulated_run_time_s": seconds, "notes": [], **figures}


def scenario(**result: Any) -> dict[str, Any]:
    managers = {"none": manager(4.0, 0.1), "numad": manager(3.0, 0.2), "vmplace": manager(2.0, 1.0)}
    return {"managers": managers, "failed_expectations": [], "undecided": [], **result}


def test_each_manager_has_a_row():
    lines = list(rendered({"scenarios": {"busy": scenario()}}))
    assert "| nobody | 4.0 | 0.50 | 0.10 | 3, 0 | - |" in lines
    assert "| numad | 3.0 | 0.50 | 0.20 | 3, 0 | - |" in lines
    assert "| **vmplace** | 2.0 | 0.50 | 1.00 | 3, 0 | - |" in lines
    assert "* All claims hold." in lines


def test_who_moved_vcpus_in_place_of_memory_is_shown():
    one = scenario()
    one["managers"]["numad"]["guests"]["web"]["vcpu_nids_after"] = [1]
    moved = [line for line in rendered({"scenarios": {"busy": one}}) if "other nodes" in line]
    assert moved == ["* numad: vCPUs of web run on other nodes than before."]


def test_what_did_not_hold_or_was_noted_is_shown():
    one = scenario(failed_expectations=["vmplace: web: slower"], undecided=["numad: web: intact"])
    one["managers"]["numad"]["notes"] = ["it did not act"]
    text = "\n".join(rendered({"scenarios": {"restart": one, "busy": scenario()}}))
    assert "* **Does not hold**: vmplace: web: slower." in text
    assert "* Undecided: numad: web: intact." in text and "* numad: it did not act." in text
    assert text.count("All claims hold") == 1


@pytest.mark.parametrize("missing, commit", [("busy.json", "abc"), ("", "abc-dirty"), ("", None)])
def test_part_of_a_run_or_one_of_a_changed_tree_is_not_kept(tmp_path: Path, missing: str, commit: str | None):
    (tmp_path / "record.json").write_text(json.dumps({"commit": commit}))
    for name in STORIES:
        (tmp_path / ("result.json" if name == "restart" else f"{name}.json")).write_text("{}")
    (tmp_path / missing).unlink() if missing else None
    with pytest.raises(ValueError, match="not a whole run"):
        keep(tmp_path, tmp_path / "rivals.json")
    assert not (tmp_path / "rivals.json").exists()


def test_a_run_without_a_verdict_is_not_kept(tmp_path: Path):
    (tmp_path / "record.json").write_text(json.dumps({"commit": "abc"}))
    for name in STORIES:
        file = tmp_path / ("result.json" if name == "restart" else f"{name}.json")
        file.write_text(json.dumps({"too_slow": "others use it" if name == "busy" else None}))
    with pytest.raises(ValueError, match="too slow for busy"):
        keep(tmp_path, tmp_path / "rivals.json")


def test_a_whole_run_is_kept_with_its_failures(tmp_path: Path):
    (tmp_path / "record.json").write_text(json.dumps({"commit": "abc", "command": ["bench/record.py"]}))
    for name in STORIES:
        file = tmp_path / ("result.json" if name == "restart" else f"{name}.json")
        file.write_text(json.dumps({"failed_expectations": [name], "too_slow": None}))
    keep(tmp_path, tmp_path / "rivals.json")
    kept = json.loads((tmp_path / "rivals.json").read_text())
    assert kept["record"]["command"] == ["make", "demo-full"]
    assert {name: one["failed_expectations"] for name, one in kept["scenarios"].items()} == {
        name: [name] for name in STORIES
    }
