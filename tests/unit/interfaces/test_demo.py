"""`vmplace demo` works on any machine, tells of the guests that were recorded, and opens its report."""

import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.interfaces.test_json_schemas import errors
from tests.unit.interfaces.test_report import FOREIGN
from tests.unit.nobody import NOBODY, holds_for_nobody, needs_nobody
from vmplace.errors import VmplaceError
from vmplace.interfaces import demo_command
from vmplace.interfaces.demo_command import demo

pytest.importorskip("matplotlib")

EFFECT = re.compile(r"expected to (save|add) ([0-9.]+) ms of latency")
ONE_NODE = ("web0", "web1", "web2", "web3")
"""Guests of lab/scenarios/wrong-node.toml: two vCPUs on a node, all memory on another one."""


def shown(out: Path, *options: str) -> str:
    done = CliRunner().invoke(demo, ["--out", str(out), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def shown_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Return what one run tells, and its report."""
    out = tmp_path_factory.mktemp("demo") / "demo.html"
    return json.loads(shown(out, "--no-open", "--json")), out


@pytest.mark.slow
def test_the_guests_that_were_recorded_would_come_home(shown_once: tuple[dict[str, Any], Path]):
    reported, out = shown_once
    assert reported["windows"] >= 5
    for name in (*ONE_NODE, "cells"):
        guest = reported["guests"][name]
        assert guest["lar_before"] < 0.1 and guest["lar_after"] > 0.9, name
        assert guest["moved_bytes"] > 200 << 20, name
    assert reported["report"] == str(out)


def test_what_is_printed_is_of_its_schema(shown_once: tuple[dict[str, Any], Path]):
    reported, _ = shown_once
    assert errors("demo", reported) == []
    assert errors("demo", {key: value for key, value in reported.items() if key != "report"})


def test_what_moves_would_come_to_is_the_sum_of_their_reasons(shown_once: tuple[dict[str, Any], Path]):
    for guest in shown_once[0]["guests"].values():
        assert sum(guest["moved_bytes_by_nid"].values()) == guest["moved_bytes"]
        reported = [EFFECT.search(reason) for reason in guest["reasons"]]
        sizes = [float(one[2]) * (1 if one[1] == "save" else -1) for one in reported if one]
        assert guest["saved_ns"] / 1e6 == pytest.approx(sum(sizes), abs=0.01 * len(sizes))
        assert len(guest["other_reasons"]) == reported.count(None)


def test_the_guest_that_spans_is_spread_out_and_the_host_is_better_off(
    shown_once: tuple[dict[str, Any], Path],
):
    """By the nodes of touches and the rates that were recorded; its accesses come from all nodes alike."""
    reported, _ = shown_once
    span = reported["guests"]["span"]
    assert span["moved_bytes"] > 100 << 20
    assert span["lar_before"] == pytest.approx(0.25, abs=0.01) == span["lar_after"]
    assert reported["mc_imbalance_after"] < reported["mc_imbalance_before"]


def test_the_report_holds_all_that_it_shows(shown_once: tuple[dict[str, Any], Path]):
    page = shown_once[1].read_text()
    for name in (*ONE_NODE, "span", "cells"):
        assert f"Page heat by node: guest {name}" in page
        assert f'<td class="words">{name}</td>' in page
    assert "as recorded" in page and "with vmplace" in page
    assert "Policy: auto" in page
    assert not FOREIGN.search(page)


@pytest.mark.slow
def test_it_is_opened_where_there_is_a_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    # The browser, which no machine of the tests has.
    monkeypatch.setattr("webbrowser.open", asked.append)
    monkeypatch.setenv("DISPLAY", ":0")
    out = tmp_path / "demo.html"
    assert out.as_uri() in shown(out)
    assert asked == [out.as_uri()]


def test_a_server_has_no_screen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not demo_command.has_screen()
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert demo_command.has_screen()


@pytest.mark.slow
@needs_nobody
def test_it_needs_no_rights_and_no_host():
    if not holds_for_nobody(lambda: os.access(demo_command.__file__, os.R_OK)):
        pytest.skip("others may not read this checkout")
    folder = Path(tempfile.mkdtemp(prefix="vmplace-demo-"))
    os.chown(folder, NOBODY, NOBODY)
    assert holds_for_nobody(lambda: bool(shown(folder / "demo.html", "--no-open")))
    assert (folder / "demo.html").stat().st_uid == NOBODY
    shutil.rmtree(folder)


@pytest.mark.slow
def test_where_it_cannot_be_written_is_reported(tmp_path: Path):
    (tmp_path / "file").touch()
    done = CliRunner().invoke(demo, ["--no-open", "--out", str(tmp_path / "file/demo.html")])
    assert isinstance(done.exception, VmplaceError) and "cannot be written" in str(done.exception)
