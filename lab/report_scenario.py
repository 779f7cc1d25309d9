"""What did managers do with the same guests?  From the result of ``vmplace lab demo`` or ``lab run``.

``vmplace report`` finds ``scenario_report`` by its entry point (pyproject.toml).
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from vmplace.errors import OutsideError, VmplaceError
from vmplace.interfaces.report_page import Section, Table, number
from vmplace.interfaces.traffic_picture import LEGEND, TrafficPicture, svg_of_traffic
from vmplace.model.metrics import Matrix
from vmplace.outside import finite, parse_json, printable

MIB = 1 << 20
MOST_NODES, MOST_MANAGERS = 64, 64
Traffic = tuple[tuple[float, ...], ...]


class GuestFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the page needs of a guest's result; the file holds more."""

    lar_before: float | None
    lar_after: float | None
    intact: bool | None
    traffic_before: Traffic
    traffic_after: Traffic
    emulated_run_time_s: float | None = None


class ManagerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The same of a manager's."""

    guests: dict[str, GuestFigures]
    mc_imbalance_before: float | None
    mc_imbalance_after: float | None
    moved_bytes: int | None
    replica_bytes: int = 0
    manager_cpu_seconds: float | None
    longest_move_call_ms: float | None
    emulated_run_time_s: float | None = None


class ScenarioFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The same of a scenario's."""

    scenario: str
    topology: str
    nids: tuple[int, ...]
    managers: dict[str, ManagerFigures]
    failed_expectations: tuple[str, ...] = ()
    truth: dict[str, str] = {}


def scenario_report(content: bytes, path: Path) -> tuple[str, list[Section]]:
    """Return the title and the parts of the page; raises VmplaceError for JSON of another kind."""
    figures = parse_scenario_result(content, path)
    return f"{figures.scenario} on {figures.topology}", scenario_sections(figures)


def parse_scenario_result(content: bytes, path: Path) -> ScenarioFigures:
    """Return the figures; raises VmplaceError for JSON that is no result of a scenario."""
    try:
        figures = parse_json(content, ScenarioFigures)
        _check(figures)
    except OutsideError as err:
        raise VmplaceError(f"{path} is no result of a scenario: {err}", hint="vmplace lab demo") from err
    return figures


def _check(figures: ScenarioFigures) -> None:
    """Raise OutsideError unless all managers ran the same guests, on nodes that are named."""
    first = next(iter(figures.managers.values()), None)
    if first is None or not first.guests:
        raise OutsideError("it holds no manager's run of a guest")
    nodes = len(figures.nids)
    if not 0 < nodes <= MOST_NODES or len(figures.managers) > MOST_MANAGERS:
        raise OutsideError(f"it has {nodes} nodes and {len(figures.managers)} managers")
    for manager in figures.managers.values():
        if set(manager.guests) != set(first.guests):
            raise OutsideError("its managers did not run the same guests")
        for guest in manager.guests.values():
            for traffic in (guest.traffic_before, guest.traffic_after):
                if [len(row) for row in traffic] != [nodes] * nodes or min(map(min, traffic)) < 0:
                    raise OutsideError(f"a guest's traffic is no table of {nodes} by {nodes} counts")
                finite(max(map(max, traffic)), least=0, most=1e18, what="traffic")


def scenario_sections(result: ScenarioFigures) -> list[Section]:
    """Return the parts of the page: who accesses whose memory, then the tables."""
    pictures = _pictures(result)
    truth = "  ".join(f"{what}: {how}." for what, how in result.truth.items())
    return [
        Section("Who accesses whose memory", LEGEND, svg_of_traffic(pictures)),
        Section(
            "Guests and managers",
            truth,
            tables=(_guest_table(result).of_known(), _manager_table(result).of_known()),
            warnings=tuple(f"not as expected: {sentence}" for sentence in result.failed_expectations),
        ),
    ]


def _pictures(result: ScenarioFigures) -> list[TrafficPicture]:
    first = next(iter(result.managers.values()))
    start = _sum([guest.traffic_before for guest in first.guests.values()])
    pictures = [TrafficPicture("start", result.nids, start, first.mc_imbalance_before)]
    for name, manager in result.managers.items():
        total = _sum([guest.traffic_after for guest in manager.guests.values()])
        pictures.append(
            TrafficPicture(f"after: {printable(name)}", result.nids, total, manager.mc_imbalance_after)
        )
    return pictures


def _sum(matrices: Sequence[Traffic]) -> Matrix:
    total: Matrix = np.sum([np.array(matrix, np.float64) for matrix in matrices], axis=0)
    return total


def _guest_table(result: ScenarioFigures) -> Table:
    names = list(result.managers)
    first = result.managers[names[0]]
    rows = []
    for guest_name, start in first.guests.items():
        each = [result.managers[name].guests[guest_name] for name in names]
        ratios = (number(start.lar_before), *(number(guest.lar_after) for guest in each))
        times = tuple(number(guest.emulated_run_time_s) for guest in each)
        intact = "yes" if all(guest.intact for guest in each) else "not known of all"
        bad = [name for name, guest in zip(names, each, strict=True) if guest.intact is False]
        rows.append((guest_name, *ratios, *times, f"no: {', '.join(bad)}" if bad else intact))
    headings = ("guest", "LAR at start", *(f"LAR, {name}" for name in names))
    caption = "local access ratio (1 is best) and emulated run time; memory verified by the guest"
    return Table(
        (*headings, *(f"run time s, {name}" for name in names), "memory intact"), tuple(rows), caption
    )


def _manager_table(result: ScenarioFigures) -> Table:
    rows = [
        (
            name,
            number(manager.emulated_run_time_s),
            number(manager.mc_imbalance_after),
            number(None if manager.moved_bytes is None else manager.moved_bytes / MIB, 0),
            number(manager.replica_bytes / MIB, 0),
            number(manager.manager_cpu_seconds),
            number(manager.longest_move_call_ms, 1),
        )
        for name, manager in result.managers.items()
    ]
    headings = (
        "manager",
        "run time s",
        "MC imbalance",
        "moved MiB",
        "copies MiB",
        "CPU s",
        "longest call ms",
    )
    return Table(headings, tuple(rows), "all guests together, and what it cost; ? is no answer")
