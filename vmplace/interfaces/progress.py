"""A progress line for commands that take a known time."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def window_progress(duration_s: float) -> Iterator[Callable[[Mapping[str, int]], None]]:
    """Show a bar on stderr; the function that is given takes the counts after each window."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    started = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("recording", total=duration_s)

        def report(counts: Mapping[str, int]) -> None:
            told = f"{counts['windows']} windows, {counts['guests']} guests"
            progress.update(task, completed=time.monotonic() - started, description=told)

        yield report
