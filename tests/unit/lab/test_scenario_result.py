"""What is written about a scenario: the promised JSON shape, a picture, and tables."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import msgspec
import numpy as np
import pytest
from rich.console import Console

from lab.scenario import ManagerName
from lab.scenario_agents import figures_of_status
from lab.scenario_commands import FULL
from lab.scenario_meter import MeteredWindow, elapsed_s
from lab.scenario_result import ScenarioResult, write_result
from lab.scenario_table import print_result
from tests.unit.lab.scenario_figures import manager
from vmplace.model.metrics import TrafficMatrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[3]
PROMISED_OF_GUEST = {"vcpu_nids", "lar_before", "lar_after", "intact"}
PROMISED_OF_MANAGER = {
    "guests",
    "mc_imbalance_before",
    "mc_imbalance_after",
    "moved_bytes",
    "manager_cpu_seconds",
    "longest_move_call_ms",
}


@pytest.fixture
def result() -> ScenarioResult:
    managers = {"none": manager(lar_after=0.1), "vmplace": manager()}
    return ScenarioResult(scenario="try", topology="n2", nids=(0, 1), managers=managers, seed=1)  # type: ignore[arg-type]


def test_the_json_has_the_promised_keys(result: ScenarioResult, tmp_path: Path) -> None:
    write_result(result, tmp_path / "new/result.json")
    read = json.loads((tmp_path / "new/result.json").read_text())["managers"]["vmplace"]
    assert set(read) >= PROMISED_OF_MANAGER
    assert set(read["guests"]["web"]) >= PROMISED_OF_GUEST


@pytest.mark.slow
def test_both_pictures_are_drawn(result: ScenarioResult, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from lab.scenario_picture import draw_result

    svg, png = draw_result(result, tmp_path / "picture")
    assert "after: vmplace" in svg.read_text()
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.fixture(params=["as kept", "all rivals"], scope="module")
def figure(request: pytest.FixtureRequest) -> Iterator["Figure"]:
    """Return the picture of the demo that is kept, or of ``make demo-full`` with the same figures for all."""
    pytest.importorskip("matplotlib")
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    from lab.scenario_picture import drawn

    kept = json.loads((ROOT / "bench/results/demo.json").read_text())
    result = msgspec.convert(kept["demo"], ScenarioResult)
    if request.param == "all rivals":
        same = result.managers["vmplace"]
        result = msgspec.structs.replace(result, managers=dict.fromkeys(FULL["restart"], same))
    figure = drawn(result)
    figure.canvas.draw()
    yield figure
    plt.close(figure)


@pytest.mark.slow
def test_no_figures_and_names_of_bars_overlap(figure: "Figure") -> None:
    boxes = [
        (text.get_text(), text.get_window_extent())
        for sub in figure.subfigs[1:]
        for axes in sub.axes
        for text in (*axes.texts, *axes.get_xticklabels(), axes.title)
    ]
    assert len(boxes) > 40
    assert [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.overlaps(other)] == []


def test_the_picture_is_read_at_the_width_at_which_forges_show_it(figure: "Figure") -> None:
    from matplotlib.text import Text

    shown_px = 830
    scale = min(1.0, shown_px / (figure.get_figwidth() * 96))
    texts = [one for one in figure.findobj(Text) if isinstance(one, Text) and one.get_text()]
    assert len(texts) > 60
    # Body text of a page has 14 to 16 pixels; labels of pictures are read from 11 on.
    assert [one.get_text() for one in texts if float(one.get_fontsize()) * 96 / 72 * scale < 11] == []


def test_a_nodes_label_stands_within_its_ring(figure: "Figure") -> None:
    from matplotlib.patches import Circle

    rooms = [
        (text.get_window_extent(), next(one for one in circles if one.center == text.get_position()))
        for axes in figure.subfigs[0].axes
        for circles in [[one for one in axes.patches if isinstance(one, Circle)]]
        for text in axes.texts
    ]
    assert len(rooms) >= 12
    wide = [(label.width, room.get_window_extent().width) for label, room in rooms]
    assert [one for one in wide if one[0] > one[1]] == []


def test_each_manager_has_a_colour() -> None:
    pytest.importorskip("matplotlib")
    from lab.scenario_picture import COLOURS

    assert set(get_args(ManagerName)) | {"start"} == set(COLOURS)
    assert len(set(COLOURS.values())) == len(COLOURS)


@pytest.mark.slow
def test_the_same_result_gives_the_same_picture(result: ScenarioResult, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from lab.scenario_picture import draw_result

    first, again = (draw_result(result, tmp_path / name)[0].read_bytes() for name in ("a", "b"))
    assert first == again


def test_the_tables_tell_before_and_after(result: ScenarioResult) -> None:
    console = Console(width=160, file=io.StringIO(), record=True)
    print_result(result, console)
    (row,) = [line for line in console.export_text().splitlines() if "vmplace" in line and "intact" in line]
    assert row.split("│")[4:6] == ["       0.10 ", "  0.99 "]


def test_the_agents_own_figures_come_from_its_status() -> None:
    guests = {
        "web": {"estimated_lar": 0.9, "replica_bytes": 3 * 4096},
        "new": {"estimated_lar": None, "replica_bytes": 0},
    }
    status = {
        "guests": guests,
        "longest_move_call_ms": 3.0,
        "longest_move_call_cpu_ms": 2.0,
        "moved_bytes": 8192,
        "rss_bytes": 50 << 20,
    }
    figures = figures_of_status(status, 2.0, 1.0)
    assert figures.guest_lar == {"web": 0.9}
    assert (figures.longest_move_call_ms, figures.longest_move_call_cpu_ms) == (3.0, 2.0)
    assert figures.replica_bytes == 3 * 4096
    assert (figures.moved_bytes_own, figures.cpu_seconds, figures.start_cpu_seconds) == (8192, 2.0, 1.0)


def test_emulated_run_time_follows_from_the_work_in_the_window() -> None:
    traffic = TrafficMatrix((0,), np.ones((1, 1)))
    times = {1: 0.015, 2: 0.015}
    window = MeteredWindow(
        3.0, {1: traffic, 2: traffic}, (0,), {1: 50_000, 2: 0}, fetches={}, elapsed_s=times
    )
    # 50,000 touches took 15 ms: 100 million take 30 s.  A guest that did nothing has no rate.
    assert window.emulated_run_time_s(1) == pytest.approx(30.0)
    assert window.emulated_run_time_s(2) is None
    assert replace(window, elapsed_s=None).emulated_run_time_s(1) is None


def test_emulated_time_passes_for_whoever_waits_on_the_guests_cpus() -> None:
    stall_ns = np.zeros((64, 3), np.int64)
    # Guest 1 shares CPU 0 with guest 2, and is three times as often there as on CPU 1; it is never on CPU 2.
    stall_ns[1], stall_ns[2] = (3_000_000, 1_000_000, 0), (1_000_000, 0, 9_000_000)
    assert elapsed_s(stall_ns, 1) == pytest.approx(0.75 * 0.004 + 0.25 * 0.001)
    assert elapsed_s(stall_ns, 3) == 0.0
