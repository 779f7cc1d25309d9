"""The Debian package ships all schemas, dashboards and rules that vmplace has, for people and their tools."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

from tests.unit.test_prose import commands
from vmplace.interfaces.cli import cli

ROOT = Path(__file__).parents[2]
INSTALLED = re.compile(r"^install -D -m 0644 -t \$\(PACKAGE\)/usr/share/vmplace/(\S+)\s+(.+)$", re.M)
SHIPPED = {
    "schemas": ("vmplace/**/*.schema.json", "vmplace/interfaces/schemas/*", "vmplace/**/*.rng"),
    "prometheus": ("vmplace/**/*.dashboard.json", "vmplace/**/*.rules.yml"),
}
"""By folder of /usr/share/vmplace: which files of the checkout belong there."""


def found(patterns: tuple[str, ...]) -> set[Path]:
    return {path for pattern in patterns for path in ROOT.glob(pattern)}


def test_the_package_ships_what_vmplace_has():
    rules = (ROOT / "debian/rules").read_text().replace("\\\n", " ").replace("\t", "")
    installed = {folder: found(tuple(sources.split())) for folder, sources in INSTALLED.findall(rules)}
    assert installed == {folder: found(patterns) for folder, patterns in SHIPPED.items()}
    assert all(len({path.name for path in paths}) == len(paths) for paths in installed.values())


def shown_texts() -> Iterator[str]:
    """Yield what people may get to read: help, and strings of the code that are no docstrings."""
    for names, command in commands(cli):
        yield command.get_help(click.Context(command, info_name=names))
    for path in (ROOT / "vmplace").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docstrings = {id(one.value) for one in nodes if isinstance(one, ast.Expr)}
        strings = (one for one in nodes if isinstance(one, ast.Constant) and id(one) not in docstrings)
        yield from (one.value for one in strings if isinstance(one.value, str))


def test_the_package_ships_the_pages_that_help_and_cures_name():
    named = {page for text in shown_texts() for page in re.findall(r"\bdocs/[a-z/-]+\.md", text)}
    shipped = (ROOT / "debian/vmplace.docs").read_text().split()
    assert {"docs/simulate.md", "docs/operate.md", "docs/clouds/openstack.md"} <= named
    assert sorted(one for one in named if not {one, str(Path(one).parent)} & {*shipped}) == []
    assert [one for one in shipped if not (ROOT / one).exists()] == []
