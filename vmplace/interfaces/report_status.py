"""Where is the memory of the guests now?  From what the running agent answers to ``vmplace status``."""

from typing import Any

import numpy as np

from vmplace.interfaces.report_page import Section, Table, new_figure, node_colour, number, svg_of
from vmplace.interfaces.traffic_picture import FAINT, INK

GIB = 1 << 30
PAGES_PER_GIB = GIB // 4096


def status_sections(status: dict[str, Any]) -> list[Section]:
    """Return the parts of the page; the agent's notes come with the table."""
    guests: dict[str, dict[str, Any]] = status["guests"]
    svg = _memory_by_node(guests) if guests else ""
    note = (
        f"{status['windows']} windows, source {status['source']}, policy {status['policy']}; "
        "dark: touched in the last window"
    )
    headings = ("guest", "state", "memory GiB", "moved GiB", "LAR by pages", "by counters", "vCPU nodes")
    rows = tuple(_row(name, guest) for name, guest in guests.items())
    warnings = tuple(f"{name}: {guest['problem']}" for name, guest in guests.items() if guest.get("problem"))
    table = Table(headings, rows, "as of the last window; ? is no answer")
    return [Section("Guest memory by node", note, svg, (table,), warnings)]


def _row(name: str, guest: dict[str, Any]) -> tuple[str, ...]:
    return (
        name,
        str(guest["state"]),
        number(guest["memory_bytes"] / GIB),
        number(guest["moved_bytes"] / GIB),
        number(guest["estimated_lar"]),
        number(guest.get("counted_lar")),
        " ".join(map(str, guest["vcpu_nids"])),
    )


def _memory_by_node(guests: dict[str, dict[str, Any]]) -> str:
    """Draw a bar per guest, a stretch per node; what was touched lately is dark."""
    nids = sorted({int(nid) for guest in guests.values() for nid in guest["pages_by_node"] or {}})
    figure = new_figure(10, 1.4 + 0.45 * len(guests))
    axes = figure.subplots()
    left = np.zeros(len(guests))
    for index, nid in enumerate(nids):
        hot = np.array([_gib(guest["hot_pages_by_node"], nid) for guest in guests.values()])
        cold = np.array([_gib(guest["pages_by_node"], nid) for guest in guests.values()]) - hot
        colour = node_colour(index)
        axes.barh(range(len(guests)), hot, left=left, color=colour, label=f"node {nid}")
        axes.barh(range(len(guests)), cold, left=left + hot, color=colour, alpha=0.35)
        left += hot + cold
    axes.set_yticks(range(len(guests)), list(guests), color=INK)
    axes.invert_yaxis()
    axes.set_xlabel("GiB", color=INK)
    axes.tick_params(colors=INK, length=0)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if nids:
        axes.legend(ncols=min(len(nids), 8), loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    return svg_of(figure)


def _gib(pages_by_node: dict[Any, int] | None, nid: int) -> float:
    pages = pages_by_node or {}
    return pages.get(str(nid), pages.get(nid, 0)) / PAGES_PER_GIB
