"""A progress line for commands that take their time."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from vmplace.outside import printable
from vmplace.topology.guest import PAGE_BYTES


@contextmanager
def window_progress(duration_s: float) -> Iterator[Callable[[Mapping[str, int]], None]]:
    """Show a bar on stderr; the function that is given takes the counts after each window."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    started = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("recording", total=duration_s)

        def report(counts: Mapping[str, int]) -> None:
            reported = f"{counts['windows']} windows, {counts['guests']} guests"
            progress.update(task, completed=time.monotonic() - started, description=reported)

        yield report


@contextmanager
def undo_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show on stderr, if that is a terminal, how much of which guest is undone; counts are of pages."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("undo", total=None)

        def report(guest: str, done: int, total: int) -> None:
            reported = escape(printable(guest))
            progress.update(task, description=reported, completed=done * PAGE_BYTES, total=total * PAGE_BYTES)

        yield report
