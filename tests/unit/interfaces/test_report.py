"""`vmplace report` writes one file that holds everything, or says what is wrong with what it was given."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.unit.agent.agent_world import HOST, batch, guest
from vmplace.errors import VmplaceError
from vmplace.interfaces.report_command import report
from vmplace.interfaces.report_page import Section, Table, html_page
from vmplace.interfaces.report_status import status_sections
from vmplace.sampling.recording import Recorder

pytest.importorskip("matplotlib")

FOREIGN = re.compile(r"""(?:src|href)\s*=\s*["'](?!#|data:)|<script|@import|url\((?!#|"?data:)""")


def policy_row(**content: Any) -> dict[str, Any]:
    row = {"host": "n4", "mix": "gups", "policy": "vmplace", "source": "full", "run_time_s": 1.0}
    return {**row, "oracle_share": 0.97, "worst_guest_slowdown": -0.1, **content}


def reported(tmp_path: Path, *arguments: object) -> tuple[Result, str]:
    out = tmp_path / "report.html"
    result = CliRunner().invoke(report, [*map(str, arguments), "--out", str(out)])
    return result, out.read_text() if out.exists() else ""


def written(tmp_path: Path, name: str, data: object) -> Path:
    (tmp_path / name).write_text(json.dumps(data))
    return tmp_path / name


def test_the_oracles_shares_are_a_map_and_a_table(tmp_path: Path):
    rows = [policy_row(), policy_row(mix="lulesh", oracle_share=0.5), policy_row(policy="numad-model")]
    _, page = reported(tmp_path, written(tmp_path, "p.json", {"rows": rows}))
    assert "lulesh on n4" in page and "numad-model" in page
    assert "0.735" in page and "0.500" in page
    assert not FOREIGN.search(page)


@pytest.mark.filterwarnings("error")
def test_a_map_has_room_for_the_names_of_many_guests(tmp_path: Path):
    rows = [policy_row(mix="+".join(["streamcluster"] * 7), oracle_share=-0.001)]
    result, page = reported(tmp_path, written(tmp_path, "p.json", {"rows": rows}))
    assert result.exit_code == 0, result.output
    assert ">0.00<" in page


def test_where_nothing_can_be_gained_there_is_no_share(tmp_path: Path):
    _, page = reported(tmp_path, written(tmp_path, "p.json", {"rows": [policy_row(oracle_share=None)]}))
    assert "<svg" not in page and "<td>?</td>" in page


def test_a_recording_shows_where_guests_were_hot(tmp_path: Path):
    with Recorder(tmp_path / "host.vmptrace", HOST) as recorder:
        for _ in range(3):
            recorder.add(guest("db1"), batch(guest("db1")))
    result, page = reported(tmp_path, tmp_path / "host.vmptrace")
    assert result.exit_code == 0, result.output
    assert "Page heat by node: guest db1" in page and page.count("<svg") == 2
    assert not FOREIGN.search(page)


def test_guests_without_a_window_have_a_row_and_no_bar():
    content = {
        "state": "new",
        "memory_bytes": 1 << 30,
        "moved_bytes": 0,
        "estimated_lar": None,
        "vcpu_nids": [0],
    }
    guests = {"new": {**content, "pages_by_node": None, "hot_pages_by_node": None}}
    (section,) = status_sections({"guests": guests, "windows": 0, "source": "idle", "policy": "home"})
    assert section.tables[0].rows[0][:5] == ("new", "new", "1.00", "0.00", "?")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "neither JSON nor a recording"),
        ("{}", "JSON of another kind"),
        ('{"rows": []}', "holds no run"),
        ('{"rows": [{"host": 1}]}', "no table of policies"),
    ],
)
def test_a_file_of_another_kind_is_reported(tmp_path: Path, content: str, said: str):
    (tmp_path / "x.json").write_text(content)
    result, page = reported(tmp_path, tmp_path / "x.json")
    assert isinstance(result.exception, VmplaceError) and said in str(result.exception)
    assert not page


def test_nothing_to_report_is_wrong_usage(tmp_path: Path):
    assert reported(tmp_path)[0].exit_code == 2


def test_text_from_elsewhere_is_escaped():
    hostile = "<script>alert(1)</script>"
    section = Section(
        hostile, hostile, tables=(Table((hostile,), ((hostile,),), hostile),), warnings=(hostile,)
    )
    assert "<script>" not in html_page(hostile, hostile, [section])


def test_a_name_that_looks_like_a_formula_is_drawn_as_a_name():
    from vmplace.interfaces.report_policy import PolicyFile, PolicyRow, policy_sections

    rows = PolicyRow(
        host="h", mix="$\\frac{$", policy="$\\frac{$\x1b", source="s", run_time_s=1.0, oracle_share=0.5
    )
    assert "$\\frac{$ on h" in policy_sections(PolicyFile((rows,)))[0].svg
