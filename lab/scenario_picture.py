"""The figures of a scenario as one picture.

Above, for each manager, who accesses which node's memory (traffic_picture.py); the first square is the
start, which is the same for all.  The control, under which nothing is moved, has bars only.  Below, each
guest's local access ratio, how unevenly the memory controllers are used, what was moved and copied for it,
and the run times if the scenario measures them.  The text is read where the picture is 830 pixels wide.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lab.scenario_result import ManagerResult, ScenarioResult
from vmplace.interfaces.traffic_picture import FAINT, INK, LABEL_PT, LEGEND, TrafficPicture, draw_traffic
from vmplace.model.metrics import Matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

COLOURS = {
    "start": "#e76f51",
    "none": "#9aa5b1",
    "numad": "#e9c46a",
    "numad-advice": "#c9a227",
    "kernel": "#8ab4d8",
    "interleave": "#b48ead",
    "vmplace-stock": "#8ccfc5",
    "vmplace": "#2a9d8f",
}
SHOWN = {"none": "nobody", "kernel": "kernel balancing"}
"""What managers are called in README's table, where that is not their name."""
GIB = 1 << 30
WIDTH, COLUMNS = 8.6, 3
"""Of the picture, in inches: 826 pixels, as wide as forges show one; squares in a row."""
CONTROL = "none"
LABEL_ROOM = 0.3
"""Above the highest bar, as a share of it: for its figure, which stands upright."""
DIGITS = 6
"""Of a position in the picture, as shares of its width and height."""
Series = tuple[str, Sequence[float | None]]


def draw_result(result: ScenarioResult, stem: Path) -> tuple[Path, ...]:
    """Write ``stem``.svg and ``stem``.png and return both paths."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure = drawn(result)
    _settle(figure)
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = (stem.with_suffix(".svg"), stem.with_suffix(".png"))
    # The same result gives the same file: no date, no random names.
    with mpl.rc_context({"svg.hashsalt": result.scenario}):
        figure.savefig(paths[0], dpi=110, metadata={"Date": None})
    figure.savefig(paths[1], dpi=110)
    plt.close(figure)
    return paths


def _settle(figure: "Figure") -> None:
    """Fix where the axes are: the layout's solver differs by a last bit from run to run; so would names."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(np.round(axes.get_position().bounds, DIGITS))


def drawn(result: ScenarioResult) -> "Figure":
    """Return the figure; whoever asks for it closes it."""
    from matplotlib import pyplot as plt

    squares = _squares(result)
    heights = (3.1 * -(-len(squares) // COLUMNS) + 0.3, 2.7, 2.5)
    figure = plt.figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    upper, middle, lower = figure.subfigures(3, 1, height_ratios=heights, squeeze=False)[:, 0]
    _draw_squares(upper, squares)
    upper.suptitle(
        f"who accesses whose memory (scenario {result.scenario} on {result.topology})", fontsize=12, color=INK
    )
    _draw_ratios(middle.subplots(), result)
    timed = _first(result).emulated_run_time_s is not None
    widths = (1 + len(_spanning(result)), 2, *((2,) if timed else ()))
    imbalances, sizes, *times = lower.subplots(1, len(widths), width_ratios=widths)
    _draw_imbalances(imbalances, result)
    _draw_sizes(sizes, result)
    for axes in times:
        _draw_run_times(axes, result)
    return figure


def _draw_squares(figure: "SubFigure", squares: Sequence[TrafficPicture]) -> None:
    rows = -(-len(squares) // COLUMNS)
    grid = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axes, square in zip(grid, squares, strict=False):
        draw_traffic(axes, square, max(one.largest for one in squares))
    for axes in grid[len(squares) :]:
        axes.axis("off")
    figure.supxlabel(LEGEND, fontsize=LABEL_PT, color=INK)


def _first(result: ScenarioResult) -> ManagerResult:
    return next(iter(result.managers.values()))


def _guest_names(result: ScenarioResult) -> list[str]:
    return list(_first(result).guests)


def _spanning(result: ScenarioResult) -> list[str]:
    return [name for name, guest in _first(result).guests.items() if len(set(guest.vcpu_nids)) > 1]


def _squares(result: ScenarioResult) -> list[TrafficPicture]:
    first = _first(result)
    squares = [TrafficPicture("start", result.nids, _total(first, after=False), first.mc_imbalance_before)]
    for name, manager in result.managers.items():
        if name == CONTROL and len(result.managers) > 1:
            continue
        total = _total(manager, after=True)
        squares.append(
            TrafficPicture(f"after: {SHOWN.get(name, name)}", result.nids, total, manager.mc_imbalance_after)
        )
    return squares


def _total(manager: ManagerResult, *, after: bool) -> Matrix:
    matrices = [guest.traffic_after if after else guest.traffic_before for guest in manager.guests.values()]
    total: Matrix = np.sum([np.array(matrix, np.float64) for matrix in matrices], axis=0)
    return total


def _draw_ratios(axes: "Axes", result: ScenarioResult) -> None:
    names, first = _guest_names(result), _first(result)
    series: list[Series] = [("start", [first.guests[name].lar_before for name in names])]
    for manager_name, manager in result.managers.items():
        series.append((manager_name, [manager.guests[name].lar_after for name in names]))
    ticks = [f"{name}\n{_nids_text(first.guests[name].vcpu_nids)}" for name in names]
    _draw_bars(axes, series, ticks)
    axes.set(ylim=(0, 1 + LABEL_ROOM), yticks=np.arange(0, 1.1, 0.2))
    axes.set_title("local access ratio (1 is best), by guest and its nodes", fontsize=10, color=INK)
    axes.legend(
        ncols=len(series), loc="upper left", bbox_to_anchor=(0.0, -0.2), frameon=False, fontsize=LABEL_PT
    )


def _draw_imbalances(axes: "Axes", result: ScenarioResult) -> None:
    """Draw the imbalance of all guests together, and of each guest whose vCPUs span nodes."""
    first, spanning = _first(result), _spanning(result)
    starts = [first.mc_imbalance_before, *(first.guests[name].mc_imbalance_before for name in spanning)]
    series: list[Series] = [("start", starts)]
    for manager_name, manager in result.managers.items():
        ends = [manager.guests[name].mc_imbalance_after for name in spanning]
        series.append((manager_name, [manager.mc_imbalance_after, *ends]))
    _draw_bars(axes, series, ["all\nguests", *spanning])
    axes.set_title("MC imbalance (0 is best)", fontsize=10, color=INK)


def _draw_sizes(axes: "Axes", result: ScenarioResult) -> None:
    """Draw what was moved, and what copies of pages take at the end."""
    series: list[Series] = []
    for name, manager in result.managers.items():
        moved = None if manager.moved_bytes is None else manager.moved_bytes / GIB
        series.append((name, [moved, manager.replica_bytes / GIB]))
    _draw_bars(axes, series, ["moved", "copies\nat the end"])
    axes.set_title("memory, GiB", fontsize=10, color=INK)


def _draw_run_times(axes: "Axes", result: ScenarioResult) -> None:
    """Draw the mean of the guests and the slowest one: emulated time, a model."""
    series: list[Series] = []
    for name, manager in result.managers.items():
        times = [guest.emulated_run_time_s for guest in manager.guests.values()]
        slowest = max((time for time in times if time is not None), default=None)
        series.append((name, [manager.emulated_run_time_s, slowest]))
    _draw_bars(axes, series, ["mean of\nguests", "slowest\nguest"])
    axes.set_title("modelled run time, s", fontsize=10, color=INK)


def _draw_bars(axes: "Axes", series: Sequence[Series], ticks: Sequence[str]) -> None:
    width, x = 0.86 / len(series), np.arange(len(ticks))
    for i, (label, values) in enumerate(series):
        heights = [value if value is not None else 0.0 for value in values]
        name, left = SHOWN.get(label, label), x - 0.43 + width * (i + 0.5)
        bars = axes.bar(left, heights, width * 0.9, label=name, color=COLOURS[label])
        reported = ["?" if value is None else f"{value:.2f}" for value in values]
        # Bars of four managers are narrower than a figure of three digits is long.
        axes.bar_label(bars, reported, fontsize=LABEL_PT, color=INK, padding=2, rotation=90)
    axes.margins(y=LABEL_ROOM)
    axes.set_xticks(x, ticks, color=INK, fontsize=LABEL_PT)
    axes.set(xlim=(-0.5, len(ticks) - 0.5))
    axes.tick_params(colors=INK, length=0, labelsize=LABEL_PT)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _nids_text(vcpu_nids: tuple[int, ...]) -> str:
    nids = sorted(set(vcpu_nids))
    if len(nids) == 1:
        return f"node {nids[0]}"
    if len(nids) > 2 and nids == list(range(nids[0], nids[-1] + 1)):
        return f"nodes {nids[0]} to {nids[-1]}"
    return "nodes " + ", ".join(map(str, nids))
