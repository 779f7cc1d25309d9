"""Where was each guest's memory, and how hot, window by window?  From a recording (``vmplace record``)."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vmplace.errors import VmplaceError
from vmplace.interfaces.report_page import NODE_COLOURS, Section, new_figure, node_colour, svg_of
from vmplace.interfaces.traffic_picture import INK, LEGEND, TrafficPicture, svg_of_traffic
from vmplace.model.metrics import Matrix, TrafficMatrix, mc_imbalance
from vmplace.model.page_windows import absorbed
from vmplace.model.pages import HOT, GuestPages
from vmplace.model.traffic import estimated_traffic
from vmplace.sampling.recording import RECORD_LONGER, Event
from vmplace.sampling.sample import SampleBatch
from vmplace.topology.guest import GuestTopology
from vmplace.topology.host import HostTopology

BINS = 256
"""Columns of a guest's picture: each stands for that part of its memory."""

Image = npt.NDArray[np.float64]


@dataclass
class _Watched:
    """One guest while the recording is read."""

    topology: GuestTopology
    pages: GuestPages | None = None
    rows: list[Image] = field(default_factory=list)
    traffics: list[TrafficMatrix] = field(default_factory=list)


def recording_sections(events: Iterable[Event]) -> list[Section]:
    """Return the parts of the page; raises VmplaceError for a recording without a window."""
    host: HostTopology | None = None
    guests: dict[str, _Watched] = {}
    for event in events:
        if isinstance(event, HostTopology):
            host = event
        elif isinstance(event, GuestTopology):
            guests.setdefault(event.name, _Watched(event)).topology = event
        elif isinstance(event, SampleBatch) and host is not None and event.guest in guests:
            _take(host, guests[event.guest], event)
    watched = {name: guest for name, guest in sorted(guests.items()) if guest.rows}
    if host is None or not watched:
        raise VmplaceError("the recording holds no window", hint=RECORD_LONGER)
    return [
        _traffic_section(host, list(watched.values())),
        *(_heat_section(guest) for guest in watched.values()),
    ]


def _take(host: HostTopology, guest: _Watched, batch: SampleBatch) -> None:
    guest.pages = absorbed(guest.pages, batch)
    guest.rows.append(_strip(guest.pages))
    guest.traffics.append(estimated_traffic(host, guest.topology, guest.pages))


def _strip(pages: GuestPages) -> Image:
    """Return BINS colours: which nodes the hot pages of each part are on, paler where fewer are hot."""
    parts = [one.part(0, one.ram.npages) for one in pages.ranges]
    heat, node = (np.concatenate(of_ranges) for of_ranges in zip(*parts, strict=True))
    edges = np.linspace(0, len(node), min(BINS, len(node)) + 1).astype(np.int64)
    palette = np.array([_rgb(colour) for colour in NODE_COLOURS])
    colours = np.ones((len(edges) - 1, 3))
    for index in range(len(pages.nids)):
        hot = np.add.reduceat((node == index) & (heat >= HOT), edges[:-1], dtype=np.int64)
        cold = np.add.reduceat((node == index) & (heat < HOT), edges[:-1], dtype=np.int64)
        weight = (hot + 0.15 * cold) / np.diff(edges)
        colours += weight[:, None] * (palette[index % len(palette)] - 1)
    return np.clip(colours, 0, 1)


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def _traffic_section(host: HostTopology, guests: list[_Watched]) -> Section:
    first = _total([guest.traffics[0] for guest in guests])
    last = _total([guest.traffics[-1] for guest in guests])
    pictures = [
        TrafficPicture(title, first.nids, traffic.accesses, mc_imbalance(traffic, host.memory_nids))
        for title, traffic in (("first window", first), ("last window", last))
    ]
    note = "Estimated: each page touched in the window counts once for the nodes of the guest's vCPUs.  "
    note += "Copies do not count here.  "
    return Section("Who accesses whose memory", note + LEGEND, svg_of_traffic(pictures))


def _total(traffics: list[TrafficMatrix]) -> TrafficMatrix:
    total: Matrix = np.sum([traffic.accesses for traffic in traffics], axis=0)
    return TrafficMatrix(traffics[0].nids, total)


def _heat_section(guest: _Watched) -> Section:
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    nids = guest.traffics[0].nids
    rows = [row for row in guest.rows if len(row) == len(guest.rows[-1])]
    figure = new_figure(11, 1.5 + min(0.1 * len(rows), 5))
    axes = figure.subplots()
    axes.imshow(np.stack(rows), aspect="auto", interpolation="nearest")
    axes.set_xticks([])
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.set_xlabel("guest memory, from its lowest address to its highest", color=INK)
    axes.set_ylabel("window", color=INK)
    axes.tick_params(colors=INK)
    patches = [Patch(color=node_colour(i), label=f"node {nid}") for i, nid in enumerate(nids)]
    axes.legend(
        handles=patches, ncols=min(len(nids), 8), loc="lower left", bbox_to_anchor=(0, 1), frameon=False
    )
    note = "Colour: the node that the memory is on; full where all was touched, pale where nothing."
    return Section(f"Page heat by node: guest {guest.topology.name}", note, svg_of(figure))
