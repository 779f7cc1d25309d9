"""A guest's policy, and where each key comes from: for ``vmplace policy explain`` and the control socket."""

from collections.abc import Mapping
from typing import Any

from vmplace.agent.decided import Decided
from vmplace.agent.guest_policy import KEYS
from vmplace.agent.policy_text import shown
from vmplace.interfaces.guest_views import KeyView, PolicyView


def policy_view(name: str, what: Decided, waits_for: str | None = None) -> PolicyView:
    """Return what holds for the guest of that name; ``waits_for``: what it waits for before it is placed."""
    keys = {
        key: KeyView(getattr(what.policy, key), what.origins.get(key, f"nobody: {shown(key, None)}"))
        for key in KEYS
    }
    nids = what.settings.allowed_nids
    return PolicyView(name, what.settings.mode.value, nids, keys, what.problem, what.notes, waits_for)


def print_policy(reported: Mapping[str, Any]) -> None:
    """Print it as a table."""
    from rich.markup import escape
    from rich.table import Table

    from vmplace.interfaces.tables import console

    out = console()
    if reported["problem"]:
        out.print(
            f"{escape(reported['name'])} is left alone (mode manual)\n"
            f"[red]problem:[/] {escape(reported['problem'])}"
        )
    else:
        table = Table("key", "value", "said by", box=None, pad_edge=False)
        for key, one in reported["keys"].items():
            table.add_row(key, escape(shown(key, one["value"])), escape(one["from"]))
        out.print(table)
        if reported["allowed_nids"]:
            out.print(f"its memory may be on nodes {', '.join(map(str, reported['allowed_nids']))}")
    for note in (*([reported["waits_for"]] if reported["waits_for"] else []), *reported["notes"]):
        out.print(f"[yellow]note:[/] {escape(note)}")
