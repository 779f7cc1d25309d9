"""``vmplace lab run`` and ``vmplace lab demo``: a scenario under several managers, as tables and files."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from lab.errors import BrokenManagersError, LabError, TooSlowError
from lab.machine_share import await_free_machine
from lab.progress import Progress
from lab.scenario import ManagerName, read_scenario
from lab.scenario_result import ScenarioResult, write_result

Rivals = Mapping[str, tuple[ManagerName, ...]]
DEMO: Rivals = {"restart": ("none", "kernel", "vmplace"), "consolidated": ("none", "kernel", "vmplace")}
FULL: Rivals = {
    "restart": ("none", "kernel", "interleave", "vmplace-stock", "vmplace"),
    "consolidated": ("none", "kernel", "interleave", "vmplace"),
    "busy": ("none", "numad", "numad-advice", "kernel", "vmplace"),
}
"""Scenarios of the demo, and who is run in each."""
FIRST = "restart"
MANAGER = ("-m", "--manager", "managers")


def file_of(story: str) -> str:
    """Return the name of the file that a story's figures go to."""
    return "result.json" if story == FIRST else f"{story}.json"


@click.command()
@click.argument("scenario")
@click.option(
    *MANAGER, multiple=True, help="run under this manager (again for more); default: the scenario's"
)
@click.option("--against", multiple=True, help="run under vmplace and this manager (again for more)")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="write the figures to this file")
@click.option("--picture", type=click.Path(path_type=Path), help="draw before and after (.svg and .png)")
def run(
    scenario: str,
    managers: tuple[str, ...],
    against: tuple[str, ...],
    json_path: Path | None,
    picture: Path | None,
) -> None:
    """Run SCENARIO (a name or a TOML file), each manager from the same start.

    The exit code is 1 if an expectation of the scenario fails, 5 if this machine is too slow to judge, 6 if
    the lab cannot be built.
    """
    wanted = managers + (("vmplace", *against) if against else ())
    result = _run(scenario, wanted)
    if json_path:
        write_result(result, json_path)
    if picture:
        _draw(result, picture)
    _print(result)
    _exit([result])


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/demo"), show_default=True)
@click.option(*MANAGER, multiple=True, help="only this manager (again for more)")
@click.option(
    *("--story", "stories"),
    multiple=True,
    type=click.Choice(tuple(FULL)),
    help="only this story (again for more); busy is one of --full",
)
@click.option("--full", is_flag=True, help="both stories, all rivals, and a host on which numad acts")
def demo(out: Path, managers: tuple[str, ...], stories: tuple[str, ...], full: bool) -> None:
    """Show what vmplace does beside the kernel's own balancing: tables, a picture, a JSON file.

    Two stories: guests that were restarted far from their memory, and guests that queue for one node's
    memory.  The exit code is 0 if all claims hold, 1 if one does not, and 5 if this machine is too slow to
    judge, or others use more than 30 % of it for a minute before each story; 6 if the lab cannot be built.
    """
    scenarios = FULL if full else DEMO
    if missing := [name for name in stories if name not in scenarios]:
        raise click.UsageError(f"{missing[0]} is a story of --full only")
    results: list[ScenarioResult] = []
    codes: list[int] = []
    for name in stories or scenarios:
        try:
            await_free_machine(Progress())
            result = _run(name, managers or scenarios[name])
        except LabError as err:
            click.echo(f"{name}: {err}" + (f"\n  hint: {err.hint}" if err.hint else ""), err=True)
            codes.append(err.exit_code)
            if err.exit_code == LabError.exit_code:
                # What cannot be built for one story cannot be for the other.
                break
            continue
        json_path = out / file_of(name)
        write_result(result, json_path)
        pictures = _draw(result, json_path.with_name(f"{json_path.stem.replace('result', 'before-after')}"))
        _print(result, files=(json_path, *pictures))
        results.append(result)
    _exit(results, codes)


def _run(name: str, managers: Sequence[str]) -> ScenarioResult:
    from lab.scenario_run import check_managers, run_scenario

    scenario = read_scenario(name)
    return run_scenario(scenario, check_managers(managers or scenario.managers), Progress())


def _draw(result: ScenarioResult, stem: Path) -> tuple[Path, ...]:
    from lab.scenario_picture import draw_result

    return draw_result(result, stem)


def _print(result: ScenarioResult, files: tuple[Path, ...] = ()) -> None:
    from rich.console import Console

    from lab.scenario_table import print_result

    # A log file has no width of its own, and a table cut at 80 columns says nothing.
    console = Console(width=None if sys.stdout.isatty() else 170)
    print_result(result, console)
    for path in files:
        console.print(f"written: {path}", highlight=False)


def _exit(results: Sequence[ScenarioResult], codes: Sequence[int] = ()) -> None:
    """End with the worst verdict; ``codes``: those of stories that came to no figures.

    A claim that fails outweighs a lab that cannot be built, and that a machine that is too slow.
    """
    found = {1} if any(result.failed_expectations for result in results) else set()
    found |= {TooSlowError.exit_code} if any(result.too_slow for result in results) else set()
    for code in (BrokenManagersError.exit_code, LabError.exit_code, TooSlowError.exit_code):
        if code in found.union(codes):
            sys.exit(code)
