"""`vmplace report` tells the result of a scenario where the lab is installed."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.interfaces.test_report import FOREIGN, reported, written
from vmplace.errors import VmplaceError

pytest.importorskip("matplotlib")


def scenario_guest(**content: Any) -> dict[str, Any]:
    traffic = {"traffic_before": [[1.0, 90.0], [0.0, 9.0]], "traffic_after": [[99.0, 1.0], [0.0, 0.0]]}
    return {
        "lar_before": 0.1,
        "lar_after": 0.98,
        "intact": True,
        "emulated_run_time_s": 4.07,
        **traffic,
        **content,
    }


def scenario(**content: Any) -> dict[str, Any]:
    manager = {
        **{"guests": {"web <0>": scenario_guest()}, "mc_imbalance_before": 1.4, "mc_imbalance_after": 0.1},
        **{"moved_bytes": 1 << 20, "manager_cpu_seconds": 1.5, "longest_move_call_ms": None},
    }
    return {"scenario": "try", "topology": "n2", "nids": [0, 1], "managers": {"vmplace": manager}, **content}


def test_a_scenario_shows_traffic_and_figures_and_needs_no_other_file(tmp_path: Path):
    result, page = reported(tmp_path, written(tmp_path, "r.json", scenario()))
    assert result.exit_code == 0, result.output
    assert page.count("<svg") == 1 and "after: vmplace" in page and "99% local" in page
    assert "4.07" in page and "0.98" in page
    assert not FOREIGN.search(page)
    assert "web &lt;0&gt;" in page and "web <0>" not in page


def test_a_column_in_which_nobody_has_an_answer_is_left_out(tmp_path: Path):
    _, page = reported(tmp_path, written(tmp_path, "r.json", scenario()))
    assert "CPU s" in page and "run time s, vmplace" in page
    assert "longest call ms" not in page


def test_what_did_not_come_out_is_reported(tmp_path: Path):
    _, page = reported(tmp_path, written(tmp_path, "r.json", scenario(failed_expectations=["too slow"])))
    assert "not as expected: too slow" in page


def test_a_lost_guest_is_reported_beside_its_figures(tmp_path: Path):
    content = scenario()
    content["managers"]["vmplace"]["guests"]["web <0>"]["intact"] = False
    _, page = reported(tmp_path, written(tmp_path, "r.json", content))
    assert "no: vmplace" in page


@pytest.mark.parametrize("name", ["$\\frac{$", "$x^$", "a$b$"])
def test_a_name_is_drawn_as_it_is_and_not_as_mathematics(tmp_path: Path, name: str):
    content = scenario()
    content["managers"] = {name: content["managers"]["vmplace"]}
    result, page = reported(tmp_path, written(tmp_path, "r.json", content))
    assert result.exit_code == 0, result.output
    assert name in page


def test_a_manager_without_guests_is_reported(tmp_path: Path):
    content = scenario()
    content["managers"]["none"] = {**content["managers"]["vmplace"], "guests": {}}
    result, page = reported(tmp_path, written(tmp_path, "r.json", content))
    assert isinstance(result.exception, VmplaceError) and "the same guests" in str(result.exception)
    assert not page


def test_a_bad_byte_is_reported(tmp_path: Path):
    (tmp_path / "x.json").write_bytes(b'{"scenario": "\xff", "managers": {}}')
    result, page = reported(tmp_path, tmp_path / "x.json")
    assert isinstance(result.exception, VmplaceError)
    assert not page


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"managers": {}, "scenario": "x", "topology": "y", "nids": []}', "holds no manager"),
        ('{"managers": 7}', "no result of a scenario"),
    ],
)
def test_a_result_of_another_kind_is_reported(tmp_path: Path, content: str, said: str):
    (tmp_path / "x.json").write_text(content)
    result, page = reported(tmp_path, tmp_path / "x.json")
    assert isinstance(result.exception, VmplaceError) and said in str(result.exception)
    assert not page
