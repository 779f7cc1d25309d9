"""The figures of a scenario as one picture.

Above, for each manager, who accesses which node's memory: a square of nodes as in Carrefour's figure 3, the
arrows as wide as the traffic between two nodes, the circles as large as what the node's memory serves.  The
first square is the start, which is the same for all.  Below, each guest's local access ratio, and how
unevenly the memory controllers are used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vmplace.lab.scenario_result import ManagerResult, ScenarioResult
from vmplace.model.metrics import Matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOCAL, REMOTE, INK, FAINT = "#2a9d8f", "#e76f51", "#264653", "#d9d9d9"
COLOURS = {
    "start": "#e76f51",
    "none": "#9aa5b1",
    "numad": "#e9c46a",
    "kernel": "#8ab4d8",
    "vmplace": "#2a9d8f",
}
LEGEND = (
    "circle: the share of all accesses that the node's memory serves; green: for its own CPUs, "
    "orange: for other nodes'.  arrow: from the CPUs of a node to the memory of another"
)
Series = tuple[str, Sequence[float | None]]


@dataclass(frozen=True)
class _Square:
    """One traffic picture: accesses per second by (cpu node, memory node) of all guests."""

    title: str
    nids: tuple[int, ...]
    accesses: Matrix
    imbalance: float | None

    @property
    def served(self) -> Matrix:
        """Return what each node's memory serves."""
        served: Matrix = self.accesses.sum(axis=0)
        return served


def draw_result(result: ScenarioResult, stem: Path) -> tuple[Path, ...]:
    """Write ``stem``.svg and ``stem``.png and return both paths."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    squares = _squares(result)
    figure = plt.figure(figsize=(3.2 * len(squares), 8.4), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.1, 1), squeeze=False)[:, 0]
    for axes, square in zip(upper.subplots(1, len(squares), squeeze=False)[0], squares, strict=True):
        _draw_square(axes, square, max(float(one.accesses.max()) for one in squares))
    upper.suptitle(
        f"{result.scenario} on {result.topology}: who accesses whose memory", fontsize=14, color=INK
    )
    upper.supxlabel(LEGEND, fontsize=9, color=INK)
    ratios, imbalances = lower.subplots(1, 2, width_ratios=(len(_guest_names(result)), 2.4))
    _draw_ratios(ratios, result)
    _draw_imbalances(imbalances, result)
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = (stem.with_suffix(".svg"), stem.with_suffix(".png"))
    for path in paths:
        figure.savefig(path, dpi=110)
    plt.close(figure)
    return paths


def _first(result: ScenarioResult) -> ManagerResult:
    return next(iter(result.managers.values()))


def _guest_names(result: ScenarioResult) -> list[str]:
    return list(_first(result).guests)


def _squares(result: ScenarioResult) -> list[_Square]:
    first = _first(result)
    squares = [_Square("start", result.nids, _total(first, after=False), first.mc_imbalance_before)]
    for name, manager in result.managers.items():
        total = _total(manager, after=True)
        squares.append(_Square(f"after: {name}", result.nids, total, manager.mc_imbalance_after))
    return squares


def _total(manager: ManagerResult, *, after: bool) -> Matrix:
    matrices = [guest.traffic_after if after else guest.traffic_before for guest in manager.guests.values()]
    total: Matrix = np.sum([np.array(matrix, np.float64) for matrix in matrices], axis=0)
    return total


def _positions(count: int) -> Matrix:
    """Return where nodes stand: on a circle, so that four of them make a square."""
    angles = np.pi * (0.75 - 2 * np.arange(count) / count)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _draw_square(axes: "Axes", square: _Square, largest: float) -> None:
    """Draw one picture; ``largest`` is the traffic that gets the widest arrow, the same in all pictures."""
    places, accesses, served = _positions(len(square.nids)), square.accesses, square.served
    shares = served / (served.sum() or 1.0)
    radii = 0.2 + 0.3 * np.sqrt(shares)
    for i, j in np.argwhere(accesses > 0.005 * largest):
        if i != j:
            _draw_arrow(
                axes, _shortened(places[i], places[j], radii[[i, j]]), float(accesses[i, j] / largest)
            )
    for i, nid in enumerate(square.nids):
        label, own = f"node {nid}\n{shares[i]:.0%}", accesses[i, i] / (served[i] or 1.0)
        _draw_node(axes, places[i], label, float(radii[i]), float(own))
    local = float(np.trace(accesses) / accesses.sum()) if accesses.sum() else 0.0
    told = "unknown" if square.imbalance is None else f"{square.imbalance:.2f}"
    axes.set_title(f"{square.title}\n{local:.0%} local, MC imbalance {told}", fontsize=11, color=INK)
    axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
    axes.axis("off")


def _shortened(start: Matrix, end: Matrix, radii: Matrix) -> Matrix:
    """Return the ends of an arrow between two rings, so that its head is not hidden."""
    along = (end - start) / np.linalg.norm(end - start)
    return np.stack([start + along * (radii[0] + 0.03), end - along * (radii[1] + 0.03)])


def _draw_arrow(axes: "Axes", ends: Matrix, share: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    arrow = FancyArrowPatch(
        (float(ends[0, 0]), float(ends[0, 1])),
        (float(ends[1, 0]), float(ends[1, 1])),
        connectionstyle="arc3,rad=0.16",
        arrowstyle="-|>",
        mutation_scale=9 + 8 * share,
        linewidth=0.6 + 7 * share,
        shrinkA=0,
        shrinkB=0,
        color=REMOTE,
        alpha=0.7,
        zorder=1,
    )
    axes.add_patch(arrow)


def _draw_node(axes: "Axes", place: Matrix, label: str, radius: float, local: float) -> None:
    """Draw a node as a ring of what its memory serves: to its own CPUs, and to others'."""
    from matplotlib.patches import Circle, Wedge

    centre = (float(place[0]), float(place[1]))
    for start, end, colour in ((90 - 360 * local, 90, LOCAL), (90, 450 - 360 * local, REMOTE)):
        axes.add_patch(Wedge(centre, radius, start, end, facecolor=colour, linewidth=0, zorder=2))
    axes.add_patch(Circle(centre, radius * 0.72, facecolor="white", edgecolor="white", zorder=3))
    axes.text(*centre, label, ha="center", va="center", fontsize=8, color=INK, zorder=4)


def _draw_ratios(axes: "Axes", result: ScenarioResult) -> None:
    names, first = _guest_names(result), _first(result)
    series: list[Series] = [("start", [first.guests[name].lar_before for name in names])]
    for manager_name, manager in result.managers.items():
        series.append((manager_name, [manager.guests[name].lar_after for name in names]))
    ticks = [f"{name}\nvCPUs on {_told_nids(first.guests[name].vcpu_nids)}" for name in names]
    _draw_bars(axes, series, ticks)
    axes.set(ylim=(0, 1.1))
    axes.set_title("local access ratio of each guest, by the meter (1 is best)", fontsize=11, color=INK)
    axes.legend(ncols=len(series), loc="upper left", bbox_to_anchor=(0.0, -0.13), frameon=False)


def _draw_imbalances(axes: "Axes", result: ScenarioResult) -> None:
    """Draw the imbalance of all guests together, and of each guest whose vCPUs span nodes."""
    first = _first(result)
    spanning = [name for name, guest in first.guests.items() if len(set(guest.vcpu_nids)) > 1]
    starts = [first.mc_imbalance_before, *(first.guests[name].mc_imbalance_before for name in spanning)]
    series: list[Series] = [("start", starts)]
    for manager_name, manager in result.managers.items():
        ends = [manager.guests[name].mc_imbalance_after for name in spanning]
        series.append((manager_name, [manager.mc_imbalance_after, *ends]))
    _draw_bars(axes, series, ["all\nguests", *spanning])
    axes.set_title("MC imbalance (0 is best)", fontsize=11, color=INK)


def _draw_bars(axes: "Axes", series: Sequence[Series], ticks: Sequence[str]) -> None:
    width, x = 0.86 / len(series), np.arange(len(ticks))
    for i, (label, values) in enumerate(series):
        heights = [value if value is not None else 0.0 for value in values]
        bars = axes.bar(x - 0.43 + width * (i + 0.5), heights, width * 0.9, label=label, color=COLOURS[label])
        told = ["?" if value is None else f"{value:.2f}" for value in values]
        axes.bar_label(bars, told, fontsize=7, color=INK, padding=1)
    axes.set_xticks(x, ticks, color=INK, fontsize=9)
    axes.set(xlim=(-0.5, len(ticks) - 0.5))
    axes.tick_params(colors=INK, length=0)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _told_nids(vcpu_nids: tuple[int, ...]) -> str:
    nids = sorted(set(vcpu_nids))
    return f"node {nids[0]}" if len(nids) == 1 else "nodes " + ", ".join(map(str, nids))
