"""Tables of ``vmplace why``, by rich."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vmplace.agent.policy_text import text_of
from vmplace.interfaces.tables import console
from vmplace.interfaces.why_lines import NOT_WEIGHED, decided_lines, effect_lines, effect_of, price_of, way_of


def print_decisions(why: Mapping[str, Any]) -> None:
    """Print what was decided for a guest, what was expected of it and of other ways, and what came of it."""
    out = console()
    if mode := why.get("mode"):
        out.print(f"mode {text_of(mode['value'])}, said by {escape(mode['from'])}")
    table = _table("when", "window", "what, and why")
    for one in why["decisions"]:
        when = datetime.fromtimestamp(one["unix_s"]).astimezone().strftime("%H:%M:%S")
        table.add_row(when, str(one["window"]), Text("\n".join(decided_lines(one))))
    out.print(table if why["decisions"] else "nothing was decided yet")
    weighings = why.get("plan", {}).get("weighings", {})
    for weighing in weighings.values():
        _print_weighing(out, weighing)
    if not weighings:
        out.print(f"the last plan\n  {NOT_WEIGHED}")
    if effect := why.get("effect"):
        out.print("so far")
        for line in effect_lines(effect):
            out.print(f"  {line}")
    if why["trial"]:
        out.print(f"  {escape(why['trial'])}")
    if why["problem"]:
        out.print(f"[red]problem:[/] {escape(why['problem'])}")
    for note in why["notes"]:
        out.print(f"[yellow]note:[/] {escape(note)}")


def _print_weighing(out: Console, weighing: Mapping[str, Any]) -> None:
    """Print the ways of the last plan, the chosen one first."""
    ahead = weighing["ahead_s"]
    out.print("the last plan" + (f": what it expects of the guest's next {ahead:,.1f} s" if ahead else ""))
    if weighing["chosen"]:
        table = _table("  way", "effect on its time", "price", "why not")
        for option in (weighing["chosen"], *weighing["others"]):
            chosen = option["why_not"] or "chosen"
            table.add_row(f"  {way_of(option)}", effect_of(option), price_of(option), chosen)
        out.print(table)
    if weighing["unknown"]:
        out.print(Text(f"  not known: {weighing['unknown']}"))


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False, header_style="bold")
