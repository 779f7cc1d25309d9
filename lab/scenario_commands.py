"""``vmplace lab run`` and ``vmplace lab demo``: a scenario under several managers, as tables and files."""

import sys
from pathlib import Path

import click

from lab.progress import Progress
from lab.scenario import read_scenario
from lab.scenario_result import ScenarioResult, write_result

DEMO = "wrong-node-table"
MANAGER = ("-m", "--manager", "managers")


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

    The exit code is 1 if an expectation of the scenario fails.
    """
    wanted = managers + (("vmplace", *against) if against else ())
    result = _run(scenario, wanted)
    if json_path:
        write_result(result, json_path)
    if picture:
        _draw(result, picture)
    _show(result)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/demo"), show_default=True)
@click.option(*MANAGER, multiple=True, help="only this manager (again for more)")
def demo(out: Path, managers: tuple[str, ...]) -> None:
    """Show what vmplace does, beside numad and the kernel's own balancing: tables, a picture, a JSON file."""
    result = _run(DEMO, managers)
    write_result(result, out / "result.json")
    pictures = _draw(result, out / "before-after")
    _show(result, files=(out / "result.json", *pictures))


def _run(name: str, managers: tuple[str, ...]) -> ScenarioResult:
    from lab.scenario_run import check_managers, run_scenario

    scenario = read_scenario(name)
    return run_scenario(scenario, check_managers(managers or scenario.managers), Progress())


def _draw(result: ScenarioResult, stem: Path) -> tuple[Path, ...]:
    from lab.scenario_picture import draw_result

    return draw_result(result, stem)


def _show(result: ScenarioResult, files: tuple[Path, ...] = ()) -> None:
    from rich.console import Console

    from lab.scenario_table import print_result

    # A log file has no width of its own, and a table cut at 80 columns says nothing.
    console = Console(width=None if sys.stdout.isatty() else 140)
    print_result(result, console)
    for path in files:
        console.print(f"written: {path}", highlight=False)
    if result.failed_expectations:
        sys.exit(1)
