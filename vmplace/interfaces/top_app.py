"""The live view of ``vmplace top``, by Textual."""

import time
from collections.abc import Callable
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from vmplace.errors import VmplaceError
from vmplace.interfaces.top_frame import ORDERS, Status, frame


class TopApp(App[None]):
    """Looks every ``interval_s`` seconds; while the agent does not answer, the last picture stays."""

    CSS = "#head, #nodes { height: auto; } #nodes { margin: 1 0; } #guests { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        *(Binding(one.key, f"order('{one.name}')", one.name) for one in ORDERS),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, look: Callable[[], Status], first: Status, interval_s: float, order: str) -> None:
        super().__init__()
        self._look, self._interval_s, self._order = look, interval_s, order
        self._status, self._seconds = first, 0.0
        self._before: Status | None = None
        self._looked_s = time.monotonic()
        self._problem = ""
        self._is_looking = False

    def compose(self) -> ComposeResult:
        """Lay the view out."""
        yield Static(id="head", markup=False)
        yield DataTable(id="nodes", cursor_type="none", zebra_stripes=False)
        yield DataTable(id="guests", cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Show what is known, and begin to look."""
        self.query_one("#guests", DataTable).focus()
        self._show()
        self.set_interval(self._interval_s, self._begin_look)

    def action_order(self, name: str) -> None:
        """Sort the guests."""
        self._order = name
        self._show()

    def _begin_look(self) -> None:
        # While the agent has not answered, the next question is skipped.
        if not self._is_looking:
            self._is_looking = True
            self.run_worker(self._ask, thread=True)

    def _ask(self) -> None:
        try:
            status: Status | None = self._look()
            problem = ""
        except VmplaceError as err:
            status, problem = None, f"{err}: {err.hint}" if err.hint else str(err)
        self.call_from_thread(self._take, status, problem)

    def _take(self, status: Status | None, problem: str) -> None:
        now, self._is_looking, self._problem = time.monotonic(), False, problem
        if status is not None:
            self._before, self._status = self._status, status
            self._seconds, self._looked_s = now - self._looked_s, now
        self._show()

    def _show(self) -> None:
        if not self.query("#head"):
            # The answer came while the view was being closed.
            return
        picture = frame(self._status, self._before, self._seconds, self._order)
        self.query_one("#head", Static).update("\n".join(filter(None, (*picture.head, self._problem))))
        self._fill("#nodes", picture.node_columns, picture.nodes)
        self._fill("#guests", picture.columns, picture.rows)

    def _fill(self, name: str, columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> None:
        table = self.query_one(name, DataTable)
        row, scroll = table.cursor_row, table.scroll_y
        table.clear(columns=True)
        table.add_columns(*columns)
        table.add_rows(rows)
        table.move_cursor(row=min(row, max(len(rows) - 1, 0)), scroll=False)
        table.scroll_to(y=scroll, animate=False)
