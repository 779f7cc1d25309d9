"""The figures of a scenario as one table for a terminal."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from lab.scenario_result import GuestResult, ManagerResult, ScenarioResult

MIB = 1 << 20


def print_result(result: ScenarioResult, console: Console) -> None:
    """Print two tables, guests and managers, then each expectation that failed."""
    console.print(guest_table(result))
    console.print(manager_table(result))
    for name, manager in result.managers.items():
        for figure, reason in manager.unknown.items():
            console.print(f"[dim]{name}: no {figure}: {reason}[/dim]", highlight=False)
        for note in manager.notes:
            console.print(f"[dim]{name}: {note}[/dim]", highlight=False)
    if result.too_slow:
        console.print(f"[yellow]{result.too_slow}[/yellow]", highlight=False)
    for sentence in result.failed_expectations:
        console.print(f"[red]not as expected:[/red] {sentence}", highlight=False)
    if result.skipped:
        rivals = ", ".join(f"{name} ({count})" for name, count in sorted(result.skipped.items()))
        console.print(f"[dim]claims not judged, as these did not run: {rivals}[/dim]")
    if not result.failed_expectations and not result.too_slow:
        console.print("[green]all claims that were judged hold[/green]")


def guest_table(result: ScenarioResult) -> Table:
    """Return a row per guest and manager: metered LAR and MC imbalance before and after, memory intact.

    "emulated s" is the modelled run time of 100 million touches, "forecast" the simulator's.
    """
    table = Table(title=f"{result.scenario} on {result.topology}: guests, by the meter", title_justify="left")
    for heading in ("guest", "vCPU nodes", "manager"):
        table.add_column(heading)
    for heading in (
        "LAR before",
        "after",
        "MC imbalance before",
        "after",
        "emulated s",
        "forecast",
        "touches",
    ):
        table.add_column(heading, justify="right")
    table.add_column("memory")
    for guest_name in next(iter(result.managers.values())).guests:
        for row in _guest_rows(result, guest_name):
            table.add_row(*row)
        table.add_section()
    return table


def _guest_rows(result: ScenarioResult, guest_name: str) -> Iterator[tuple[str, ...]]:
    for i, (name, manager) in enumerate(result.managers.items()):
        guest = manager.guests[guest_name]
        nids = " ".join(map(str, sorted(set(guest.vcpu_nids))))
        yield (
            "" if i else guest_name,
            "" if i else nids,
            name,
            _ratio(guest.lar_before),
            _ratio(guest.lar_after),
            _ratio(guest.mc_imbalance_before),
            _ratio(guest.mc_imbalance_after),
            _number(guest.emulated_run_time_s, 2),
            _number(guest.forecast_run_time_s, 2),
            "?" if guest.touches is None else f"{guest.touches:,}",
            _intact(guest),
        )


def manager_table(result: ScenarioResult) -> Table:
    """Return a row per manager: imbalances of all guests together, bytes moved and copied, what it cost.

    "costs" is the share of the guests' work that the running manager costs when all is placed, "most" that of
    the guest that loses most, "speed" the share of their declared touches that guests made, "machine" the
    least that others left of it in a step, "retakes" windows that were taken again.
    """
    table = Table(title="managers: all guests together, and the cost", title_justify="left")
    table.add_column("manager")
    headings = ("emulated s", "forecast", "MC imbalance before", "after", "link imbalance before", "after")
    for heading in (
        *headings,
        "moved MiB",
        "copies MiB",
        "CPU s",
        "costs",
        "most",
        "longest call ms",
        "moving for s",
        "speed",
        "retakes",
        "machine",
    ):
        table.add_column(heading, justify="right")
    for name, manager in result.managers.items():
        table.add_row(name, *_manager_cells(manager))
    return table


def _manager_cells(manager: ManagerResult) -> tuple[str, ...]:
    return (
        _number(manager.emulated_run_time_s, 2),
        _number(manager.forecast_run_time_s, 2),
        _ratio(manager.mc_imbalance_before),
        _ratio(manager.mc_imbalance_after),
        _ratio(manager.link_imbalance_before),
        _ratio(manager.link_imbalance_after),
        "?" if manager.moved_bytes is None else f"{manager.moved_bytes / MIB:.0f}",
        f"{manager.replica_bytes / MIB:.0f}",
        _number(manager.manager_cpu_seconds, 2),
        _share(manager.cost_share),
        _share(manager.worst_guest_cost_share),
        _number(manager.longest_move_call_ms, 1),
        _number(manager.active_s, 1),
        _share(manager.speed),
        str(manager.retakes),
        _share(min(manager.machine_share.values(), default=None)),
    )


def _ratio(value: float | None) -> str:
    return _number(value, 2)


def _number(value: float | None, digits: int) -> str:
    return "?" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "?" if value is None else f"{value:.0%}"


def _intact(guest: GuestResult) -> str:
    if guest.intact is None:
        return "[red]not verified[/red]"
    verified = f"{(guest.verified_bytes or 0) / MIB:.0f} MiB"
    return (
        f"[green]intact[/green] ({verified})" if guest.intact else f"[red]{guest.bad_pages} pages bad[/red]"
    )
