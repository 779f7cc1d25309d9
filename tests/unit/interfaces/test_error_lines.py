"""Who asks for JSON gets errors as JSON: a code, a sentence and a cure; exit codes are as for people."""

import contextlib
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import click
import msgspec
import pytest

import vmplace
from vmplace.errors import VmplaceError
from vmplace.interfaces import error_lines
from vmplace.interfaces.client import REFUSALS, RefusedError
from vmplace.interfaces.error_lines import CODES, ErrorLine, asks_json, error_line

ROOT = Path(__file__).parents[3]
SCHEMA = Path(error_lines.__file__).with_name("error.schema.json")


def run(tmp_path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", "from vmplace.interfaces.cli import main; main()", *words]
    env = os.environ | {"VMPLACE_SOCKET": str(tmp_path / "none.sock")}
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, env=env)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        ("status", "no-agent", 4),
        ("show", "usage", 2),
        ("show db1 --nosuch", "usage", 2),
        ("undo --config {}/none.toml", "bad-config", 1),
    ],
)
def test_an_error_is_one_line_of_json_on_stderr(tmp_path: Path, words: str, code: str, exit_code: int):
    (tmp_path / "vmplace.toml").write_text(f'state_dir = "{tmp_path}"\n')
    argv = words.format(tmp_path).split()
    reported = run(tmp_path, *argv, "--json")
    line: ErrorLine = msgspec.json.decode(reported.stderr, type=ErrorLine)
    assert reported.stderr.count("\n") == 1 and (line.error.code, line.exit_code) == (code, exit_code)
    assert line.error.message and line.error.cure
    plain = run(tmp_path, *argv)
    assert reported.returncode == plain.returncode == exit_code
    assert line.error.message in plain.stderr and "{" not in plain.stderr


def test_the_schema_is_that_of_the_line():
    shipped = json.loads(SCHEMA.read_text())
    assert shipped.pop("$schema").endswith("2020-12/schema")
    assert shipped == msgspec.json.schema(ErrorLine)


def errors_below(parent: type[VmplaceError]) -> set[type[VmplaceError]]:
    return {parent}.union(*(errors_below(child) for child in parent.__subclasses__()))


def test_each_error_has_a_code_that_is_documented():
    for module in pkgutil.walk_packages(vmplace.__path__, "vmplace."):
        # Some need extras that are not installed here.
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module.name)
    codes = {error.code for error in errors_below(VmplaceError) if error.__module__.startswith("vmplace.")}
    assert codes | {*REFUSALS.values(), "usage", "interrupted"} == set(CODES)
    page = (ROOT / "docs/operate.md").read_text()
    assert [code for code, when in CODES.items() if f"| `{code}` | {when} |" not in page] == []


@pytest.mark.parametrize(
    ("kind", "code", "exit_code"), [("denied", "denied", 1), ("guest", "nothing", 3), ("failed", "failed", 1)]
)
def test_what_the_agent_refuses_has_the_code_of_its_kind(kind, code: str, exit_code: int):
    line = error_line(RefusedError("no", kind=kind))
    assert (line.error.code, line.exit_code) == (code, exit_code)


def test_names_in_errors_move_no_cursor():
    line = error_line(VmplaceError("guest \x1b]0;x\x07\nis\x85gone", hint="\x1b[2J"))
    assert (line.error.message, line.error.cure) == ("guest ?]0;x?\nis?gone", "?[2J")


def test_ctrl_c_is_reported():
    assert error_line(click.Abort()).error.code == "interrupted"


def test_what_comes_behind_two_dashes_is_no_option():
    assert asks_json(["show", "db1", "--json"]) and not asks_json(["show", "--", "--json"])
