"""The Debian package ships all schemas, dashboards and rules that vmplace has, for people and their tools."""

import re
from pathlib import Path

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
