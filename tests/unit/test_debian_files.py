"""The Debian package ships all schemas, dashboards and rules that vmplace has, for people and their tools."""

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.unit.interfaces.test_libvirt_hook import LIMIT, auto_xml
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


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_packages_hook_changes_guests_only_while_the_package_is_there(tmp_path: Path, is_installed: bool):
    """It is a conffile: `apt-get remove` leaves it."""
    script = re.search(r"sed -i ('2a .*') \$\(PACKAGE\)/etc/libvirt", (ROOT / "debian/rules").read_text())
    assert script
    source = (ROOT / "libvirt-hooks/qemu.d/vmplace").read_text()
    (hook := tmp_path / "hook").write_text(source.replace(LIMIT, "LIMIT_S = 60.0\n"))
    subprocess.run(["sed", "-i", *shlex.split(script[1]), str(hook)], check=True)
    command = tmp_path / "vmplace"
    text = hook.read_text().replace("/usr/bin/vmplace", str(command))
    hook.write_text(text.replace("/usr/bin/python3", sys.executable))
    hook.chmod(0o755)
    if is_installed:
        command.touch(mode=0o755)
    words, given = [str(hook), "db1", "restore", "begin", "-"], (auto_xml({}) + " " * (1 << 20)).encode()
    done = subprocess.run(words, input=given[: 1 << 20], capture_output=True, check=True, timeout=120)
    assert (b"restrictive" in done.stdout) == is_installed
    assert is_installed or done.stdout == b""


def test_a_purge_keeps_the_journal_of_what_pip_brought(tmp_path: Path):
    """The manifest stays for changed settings, too: then there is nothing else of it any more."""
    script = (ROOT / "debian/postrm").read_text().replace("#DEBHELPER#", "")
    for folder in ("/var/lib/vmplace", "/etc/vmplace/", "/etc/systemd"):
        script = script.replace(folder, f"{tmp_path}{folder}")
    # Nothing of this machine may go.
    assert "rm -rf /" not in script.replace(f"rm -rf {tmp_path}/", "")
    journal, manifest = tmp_path / "var/lib/vmplace/journal", tmp_path / "etc/vmplace/installed.json"
    unit = tmp_path / "etc/systemd/system/vmplace.service"
    for path in (journal, manifest, unit):
        path.parent.mkdir(parents=True)
        path.touch()
    manifest.write_text(json.dumps({"files": {str(unit): "digest", "/etc/vmplace/vmplace.toml": "digest"}}))
    subprocess.run(["sh", "-c", script, "postrm", "purge"], check=True)
    assert journal.exists()
    unit.unlink()
    subprocess.run(["sh", "-c", script, "postrm", "purge"], check=True)
    assert not journal.parent.exists()
