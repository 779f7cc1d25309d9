"""What does ``vmplace top`` show of a status?  Pure: lines about the host, and a row for each guest."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vmplace.interfaces.tables import MIB, ratio

Status = Mapping[str, Any]
GIB = 1 << 30
PAGE_BYTES = 4096
MOST_COLUMNS = 4
"""Nodes that have a column each in 80 columns; of more, each guest's fullest are named."""
NAMED = 3


@dataclass(frozen=True)
class SortOrder:
    """An order of guests: its key, what it is called, and what of a guest it goes by."""

    key: str
    name: str
    of: Callable[[tuple[str, Mapping[str, Any]]], Any]


ORDERS = (
    SortOrder("n", "name", lambda item: item[0]),
    SortOrder("l", "lar", lambda item: (item[1]["estimated_lar"] is None, item[1]["estimated_lar"] or 0)),
    SortOrder("m", "memory", lambda item: -item[1]["memory_bytes"]),
    SortOrder("v", "moved", lambda item: -item[1]["moved_bytes"]),
    SortOrder("r", "refused", lambda item: -refused(item[1])),
)
"""The worst-placed first, or the largest."""


@dataclass(frozen=True)
class Frame:
    """One picture: lines about the agent, a table of nodes, and a table of guests, ready to print."""

    head: tuple[str, ...]
    node_columns: tuple[str, ...]
    nodes: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def frame(status: Status, before: Status | None = None, seconds: float = 0.0, order: str = "name") -> Frame:
    """Return the picture of ``status``; rates are those since ``before``, ``seconds`` ago."""
    nids = [str(nid) for nid in status["nids"]]
    of = next(one.of for one in ORDERS if one.name == order)
    guests = sorted(status["guests"].items(), key=of)
    columns = tuple(f"node {nid}" for nid in nids) if len(nids) <= MOST_COLUMNS else ("most on, GiB",)
    return Frame(
        (_agent_line(status), _moves_line(status, before, seconds), *_notes_line(status)),
        ("GiB", *(f"node {nid}" for nid in nids)),
        tuple(_node_rows(status)),
        ("guest", "state", "LAR", *columns, "moved", "refused"),
        tuple(_row(name, guest, nids) for name, guest in guests),
    )


def refused(guest: Mapping[str, Any]) -> int:
    """Return how many bytes of the guest were to be moved or copied, and were not."""
    return sum(guest["refused_bytes"].values())


def _agent_line(status: Status) -> str:
    guests = len(status["guests"])
    paused = ", paused" if status["paused"] else ""
    return (
        f"vmplace {status['version']}, policy {status['policy']}, source {status['source']}: "
        f"{guests} guest{'s' if guests != 1 else ''}, window {status['windows']}{paused}"
    )


def _moves_line(status: Status, before: Status | None, seconds: float) -> str:
    lars = [guest["estimated_lar"] for guest in status["guests"].values()]
    known = [lar for lar in lars if lar is not None]
    mean = ratio(sum(known) / len(known) if known else None)
    budget = status["budget_bytes_per_s"] / 1e6
    if before is None or seconds <= 0:
        moved = f"moved {status['moved_bytes'] / MIB:,.0f} MiB in all, budget {budget:,.0f} MB/s"
    else:
        moved = f"moving {_rate(status, before, seconds):,.1f} of {budget:,.0f} MB/s"
    return f"mean LAR {mean}, MC imbalance {ratio(status['mc_imbalance_estimate'])}, {moved}"


def _notes_line(status: Status) -> Iterable[str]:
    count = len(status["notes"])
    if count:
        yield f"{count} note{'s' if count != 1 else ''}, shown by vmplace status"


def _rate(status: Status, before: Status, seconds: float) -> float:
    done: int = sum(status[key] - before[key] for key in ("moved_bytes", "replicated_bytes"))
    return max(0.0, done / seconds / 1e6)


def _node_rows(status: Status) -> Iterable[tuple[str, ...]]:
    guests = status["guests"].values()
    held = [
        sum((guest["pages_by_node"] or {}).get(str(nid), 0) for guest in guests) * PAGE_BYTES
        for nid in status["nids"]
    ]
    yield "size", *(_gib(node["memory_bytes"]) for node in status["nodes"])
    yield "free", *(_gib(node["free_bytes"]) for node in status["nodes"])
    yield "guests", *(_gib(size) for size in held)


def _row(name: str, guest: Mapping[str, Any], nids: Sequence[str]) -> tuple[str, ...]:
    pages = guest["pages_by_node"]
    where: tuple[str, ...]
    if len(nids) <= MOST_COLUMNS:
        where = tuple("?" if pages is None else _gib(pages.get(nid, 0) * PAGE_BYTES) for nid in nids)
    else:
        where = (_fullest(pages),)
    moved, left = (f"{size / MIB:,.0f}" for size in (guest["moved_bytes"], refused(guest)))
    return (name, guest["state"], ratio(guest["estimated_lar"]), *where, moved, left)


def _fullest(pages: Mapping[str, int] | None) -> str:
    if pages is None:
        return "?"
    there = sorted(((size, nid) for nid, size in pages.items() if size), reverse=True)
    named = " ".join(f"{nid}:{_gib(size * PAGE_BYTES)}" for size, nid in there[:NAMED])
    more = f" +{len(there) - NAMED}" if len(there) > NAMED else ""
    return f"{named}{more}" or "none"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f}"
