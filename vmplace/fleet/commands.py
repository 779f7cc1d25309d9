"""``vmplace sweep`` and ``sweep-report``: policies over thousands of recordings, and what came of it."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from vmplace.errors import VmplaceError
from vmplace.interfaces.options import NothingError, examples, json_option, print_json
from vmplace.outside import read_text

if TYPE_CHECKING:
    from vmplace.fleet.executors import Workers
    from vmplace.fleet.sweep_results import SweepResults
    from vmplace.fleet.sweep_task import SweepTask

DEFAULT_POLICIES = "none,agent:auto"
SWEEP_EXAMPLES = """\
vmplace sweep recordings/*.npz --hosts two-node,carrefour-a --policies none,agent:auto --out results.parquet
vmplace sweep s3://bucket/recordings --scheduler tcp://10.0.0.1:8786 --out s3://bucket/results.parquet
vmplace sweep-report results.parquet"""


@click.command(epilog=examples(SWEEP_EXAMPLES))
@click.argument("recordings", nargs=-1, required=True)
@click.option("--policies", default=DEFAULT_POLICIES, show_default=True, help="Names, separated by commas.")
@click.option("--hosts", default="", help="For traces: presets or host files, separated by commas.")
@click.option("--source", default="ad", show_default=True, help="For traces: what the policy sees.")
@click.option("--windows", type=click.IntRange(min=1), help="For traces: replay only the first windows.")
@click.option("--out", required=True, help="Parquet file.  If it exists, rows that it has are not run again.")
@click.option("--scheduler", help="Address of a Dask scheduler, as tcp://HOST:8786.  [default: this machine]")
@click.option("--workers", type=click.IntRange(min=1), help="Local processes.  [default: one for each CPU]")
@json_option
def sweep(  # noqa: PLR0913 - an option each
    recordings: tuple[str, ...],
    policies: str,
    hosts: str,
    source: str,
    windows: int | None,
    out: str,
    scheduler: str | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Run policies over RECORDINGS (.npz traces, .vmptrace): files, folders, patterns, URLs of fsspec.

    The result has one row for each recording, host and policy.  A sweep that was stopped goes on when the
    same command runs again.  The exit code is 1 if a row has no figures (sweep-report says why), or if the
    sweep was stopped.
    """
    from vmplace.fleet.sweep_results import SweepResults
    from vmplace.fleet.sweep_task import found_recordings, planned_tasks
    from vmplace.fleet.views import Swept

    begun = time.monotonic()
    settings = _settings(policies, hosts, source, windows)
    tasks = planned_tasks(found_recordings(recordings), settings)
    with stopped_by_signals(), SweepResults(out) as results:
        wanted = [task for task in tasks if task.id not in results.done]
        try:
            if wanted:
                _sweep(wanted, results, scheduler, workers, show=not as_json)
                results.finish()
        except KeyboardInterrupt:
            kept = sum(task.id in results.done for task in tasks)
            hint = "run the same command again: it goes on from there"
            raise VmplaceError(f"stopped: {kept} of {len(tasks)} rows are kept", hint=hint) from None
        rows = [results.rows[task.id] for task in tasks]
    failed = sum(row.error is not None for row in rows)
    reported = Swept(out, len(rows), len(tasks) - len(wanted), failed, time.monotonic() - begun)
    if as_json:
        print_json(reported)
    else:
        click.echo(f"{out}: {reported.rows} rows, {reported.skipped} were there, {failed} failed")
    if failed:
        raise VmplaceError(f"{failed} rows have no figures", hint=f"vmplace sweep-report {out}")


def _settings(policies: str, hosts: str, source: str, windows: int | None) -> Any:
    from vmplace.fleet.sweep_task import SweepSettings
    from vmplace.simulate.source_views import source_named

    source_named(source)
    named = tuple(_host(name) for name in dict.fromkeys(filter(None, hosts.split(","))))
    return SweepSettings(named, tuple(dict.fromkeys(filter(None, policies.split(",")))), source, windows)


def _host(name: str) -> tuple[str, str]:
    """Return the name and the text of a host file, checked here and not in each worker."""
    from vmplace.simulate.host_file import read_host
    from vmplace.simulate.host_names import host_path

    path = host_path(name)
    return read_host(path).name, read_text(path)


def _sweep(
    tasks: "list[SweepTask]",
    results: "SweepResults",
    scheduler: str | None,
    workers: int | None,
    *,
    show: bool,
) -> None:
    from vmplace.fleet.executors import dask_workers, local_workers
    from vmplace.fleet.sweep_run import Sweeper

    given = dask_workers(scheduler) if scheduler else nullcontext(local_workers(workers))
    with given as found, _progress(len(tasks), found, show=show) as report:
        for row in Sweeper(tasks, found.open, found.width).iter_rows():
            results.add(row)
            report(row.error)


@contextmanager
def _progress(count: int, workers: "Workers", *, show: bool) -> Iterator[Any]:
    """Show a bar on stderr where there is a screen; the function that is given takes each row's error."""
    if not show or not sys.stderr.isatty():
        yield lambda _error: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{workers.count} workers", total=count)
        failed = 0

        def report(error: str | None) -> None:
            nonlocal failed
            failed += error is not None
            reported = f"{workers.count} workers" + (f", {failed} failed" if failed else "")
            progress.update(task, advance=1, description=reported)

        yield report


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does: what was done is kept."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.command("sweep-report", epilog=examples("vmplace sweep-report results.parquet --top 10"))
@click.argument("results")
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Guests to show.")
@json_option
def sweep_report_command(results: str, top: int, as_json: bool) -> None:
    """Show which guests gain, which policy is best, and what each host type would gain.

    For traces, the gain is the share of the run time that is saved (modelled).  For recordings, it is the
    growth of the local access ratio (estimated).  Both are against policy "none".
    """
    from vmplace.fleet.sweep_report import sweep_report

    reported = sweep_report(results)
    if as_json:
        print_json(reported)
    else:
        from vmplace.fleet.sweep_tables import print_sweep

        print_sweep(reported, top)
    if not reported["policies"]:
        raise NothingError(
            "no gain can be computed: a sweep needs policy none beside others",
            hint=f"sweep again, with --policies {DEFAULT_POLICIES}",
        )
