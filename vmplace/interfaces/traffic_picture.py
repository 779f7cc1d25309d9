"""Who accesses whose memory, as a picture: the nodes of a host and what goes between them.

As in Carrefour's figure 3: nodes stand on a circle, so that four of them make a square; a circle is as large
as the share of all accesses that the node's memory serves, an arrow as wide as the share that goes from the
CPUs of one node to the memory of another.  Colour tells local (green) from remote (orange).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vmplace.interfaces.report_page import new_figure, svg_of
from vmplace.model.metrics import Matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOCAL, REMOTE, INK, FAINT = "#2a9d8f", "#e76f51", "#264653", "#d9d9d9"
LEGEND = (
    "circle: the share of all accesses that the node's memory serves; green: for its own CPUs,\n"
    "orange: for other nodes'.  arrow: from the CPUs of a node to the memory of another"
)
LABEL_PT = 9
"""The smallest text, in points: 12 pixels where a picture is shown in its own size."""
SEEN = 0.002
"""A smaller share of all accesses gets no arrow."""


@dataclass(frozen=True)
class TrafficPicture:
    """One picture: accesses (of any unit) by (cpu node, memory node), and the imbalance to be shown."""

    title: str
    nids: tuple[int, ...]
    accesses: Matrix
    imbalance: float | None

    @property
    def shares(self) -> Matrix:
        """Return the accesses as shares of all of them."""
        shares: Matrix = self.accesses / (self.accesses.sum() or 1.0)
        return shares

    @property
    def largest(self) -> float:
        """Return the largest share between two different nodes."""
        return float((self.shares - np.diag(np.diag(self.shares))).max(initial=0.0))


def svg_of_traffic(pictures: Sequence[TrafficPicture], columns: int = 5) -> str:
    """Return traffic pictures side by side, all to one scale."""
    rows = -(-len(pictures) // columns)
    columns = min(columns, len(pictures))
    figure = new_figure(2.8 * columns, 3.1 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    largest = max(picture.largest for picture in pictures)
    for axes, picture in zip(grid, pictures, strict=False):
        draw_traffic(axes, picture, largest)
    for axes in grid[len(pictures) :]:
        axes.axis("off")
    return svg_of(figure)


def draw_traffic(axes: "Axes", picture: TrafficPicture, largest: float) -> None:
    """Draw one picture; ``largest`` is the share that gets the widest arrow, the same in all pictures."""
    places, shares = _positions(len(picture.nids)), picture.shares
    served = shares.sum(axis=0)
    # The smallest has room for its label.
    radii = 0.42 + 0.12 * np.sqrt(served)
    for i, j in np.argwhere(shares > SEEN):
        if i != j:
            ends = _shortened(places[i], places[j], radii[[i, j]])
            _draw_arrow(axes, ends, float(shares[i, j] / (largest or 1.0)))
    for i, nid in enumerate(picture.nids):
        own = float(shares[i, i] / served[i]) if served[i] else None
        _draw_node(axes, places[i], f"node {nid}\n{served[i]:.0%}", float(radii[i]), own)
    local = f"{np.trace(shares):.0%} local" if shares.any() else "no accesses"
    reported = "unknown" if picture.imbalance is None else f"{picture.imbalance:.2f}"
    axes.set_title(f"{picture.title}\n{local}, MC imbalance {reported}", fontsize=10, color=INK)
    reach = float(np.abs(places).max() + radii.max() + 0.03)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axes.axis("off")


def _positions(count: int) -> Matrix:
    angles = np.pi * (0.75 - 2 * np.arange(count) / count)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _shortened(start: Matrix, end: Matrix, radii: Matrix) -> Matrix:
    """Return the ends of an arrow between two rings, so that its head is not hidden."""
    along = (end - start) / np.linalg.norm(end - start)
    return np.stack([start + along * (radii[0] + 0.03), end - along * (radii[1] + 0.03)])


def _draw_arrow(axes: "Axes", ends: Matrix, share: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    width = 0.8 + 7 * share
    arrow = FancyArrowPatch(
        (float(ends[0, 0]), float(ends[0, 1])),
        (float(ends[1, 0]), float(ends[1, 1])),
        connectionstyle="arc3,rad=0.16",
        arrowstyle=f"simple,tail_width={width},head_width={width + 6},head_length={7 + 4 * share}",
        mutation_scale=1,
        linewidth=0,
        shrinkA=0,
        shrinkB=0,
        color=REMOTE,
        alpha=0.7,
        zorder=1,
    )
    axes.add_patch(arrow)


def _draw_node(axes: "Axes", place: Matrix, label: str, radius: float, local: float | None) -> None:
    """Draw a node as a ring of what its memory serves: to its own CPUs, and to others'; grey if nothing."""
    from matplotlib.patches import Circle, Wedge

    centre = (float(place[0]), float(place[1]))
    turn = 90 - 360 * (local or 0.0)
    parts = ((90.0, 450.0, FAINT),) if local is None else ((turn, 90.0, LOCAL), (90.0, turn + 360, REMOTE))
    for start, end, colour in parts:
        axes.add_patch(Wedge(centre, radius, start, end, facecolor=colour, linewidth=0, zorder=2))
    axes.add_patch(Circle(centre, radius * 0.75, facecolor="white", edgecolor="white", zorder=3))
    axes.text(*centre, label, ha="center", va="center", fontsize=LABEL_PT, color=INK, zorder=4)
