"""Which parts that this package does not have are installed beside it?  Entry points of other distributions.

``vmplace.commands``: NAME = a click command, run as ``vmplace NAME``.
``vmplace.guest_cost``: NAME = a ``sampling.guest_cost.GuestCost``, made from ``[trial] meter_guests``.
``vmplace.reports``: KEY = what ``vmplace report`` does with JSON that has this key: a function of the
content and the path that returns a title and the page's sections.
"""

from typing import Any


def extension_names(group: str) -> tuple[str, ...]:
    """Return the names that are registered in a group, sorted."""
    # Imported when wanted: it takes longer than all else that `vmplace status` imports.
    from importlib.metadata import entry_points

    return tuple(sorted({entry.name for entry in entry_points(group=group)}))


def extension(group: str, name: str) -> Any | None:
    """Return what is registered under a name, imported now; None if nothing is."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=group, name=name):
        return entry.load()
    return None
