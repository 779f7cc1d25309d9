"""How does the summary of a sweep look to a person?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from vmplace.interfaces.tables import console, mib

Rows = list[Mapping[str, Any]]


def print_sweep(reported: Mapping[str, Any], top: int) -> None:
    """Print the tables of sweep_report."""
    out = console()
    out.print(_policies(reported["policies"]), _hosts(reported["hosts"]), _guests(reported["guests"][:top]))
    if len(reported["guests"]) > top:
        out.print(f"… and {len(reported['guests']) - top} more: --top")
    for row in reported["failed"]:
        out.print(f"[red]failed:[/] {escape(_short(row))} under {row['policy']}: {escape(row['error'])}")


def percent(value: float | None) -> str:
    """Return a share as percent with its sign."""
    return "?" if value is None else f"{value:+.1%}"


def _policies(rows: Rows) -> Table:
    table = Table(
        "of", "policy", "rows", "mean gain", "median", "worst", "gain", "lose", title="Which policy?"
    )
    for row in rows:
        gains = (percent(row[name]) for name in ("mean_gain", "median_gain", "worst_gain"))
        shares = (f"{row[name]:.0%}" for name in ("share_gaining", "share_losing"))
        table.add_row(row["kind"], row["policy"], str(row["rows"]), *gains, *shares)
    return table


def _hosts(rows: Rows) -> Table:
    table = Table(
        "of", "host", "best policy", "mean gain", "run time, s", title="What does a host type gain?"
    )
    for row in rows:
        none_s, run_s = row["none_run_time_s"], row["run_time_s"]
        times = "" if run_s is None else f"{none_s:.3f} -> {run_s:.3f}"
        table.add_row(row["kind"], escape(row["host"]), row["best_policy"], percent(row["mean_gain"]), times)
    return table


def _guests(rows: Rows) -> Table:
    table = Table("guest", "recording", "best policy", "gain", "moved, MiB", title="Which guests gain?")
    for row in rows:
        moved = mib(row["moved_bytes"] or 0)
        table.add_row(
            escape(row["guest"]), escape(_short(row)), row["best_policy"], percent(row["gain"]), moved
        )
    return table


def _short(row: Mapping[str, Any]) -> str:
    return f"{Path(row['recording']).name} on {row['host']}"
