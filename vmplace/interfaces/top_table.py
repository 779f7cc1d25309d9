"""One picture of ``vmplace top`` as text of 80 columns; longer names are cut."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vmplace.interfaces.tables import LONGEST_NAME
from vmplace.interfaces.top_frame import Frame

WIDTH = 80


def print_frame(picture: Frame) -> None:
    """Print a picture."""
    out = Console(width=WIDTH, highlight=False)
    for line in picture.head:
        out.print(Text(line))
    out.print()
    out.print(_table(picture.node_columns, picture.nodes, left=1))
    out.print()
    out.print(_table(picture.columns, picture.rows, left=2) if picture.rows else "no guests")


def _table(columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...], *, left: int) -> Table:
    """Return a table whose first ``left`` columns are words, and the others numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for number, name in enumerate(columns):
        side = "left" if number < left else "right"
        table.add_column(name, justify=side, no_wrap=True, max_width=LONGEST_NAME if number == 0 else None)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(cell, overflow="ellipsis") for cell in row))
    return table
