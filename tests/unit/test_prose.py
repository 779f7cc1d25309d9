"""Do the words that a stranger reads follow the rules?  Pages, links, figures, pictures and --help."""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bench.results_page import PAGE, keep, page
from vmplace.interfaces.cli import cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *DOCS.rglob("*.md"),
        *ROOT.glob("*.md"),
        *(ROOT / "ansible").glob("*.md"),
        *(ROOT / "deploy").rglob("*.md"),
    ]
)
COINED = re.compile(r"\b(desk|bell|lookout|heed(s|ed|ing)?|sight|told|pace|dealt out|deals out)\b", re.I)
"""Words of this project alone, or that mean something else to everybody."""
MEASURED = re.compile(r"\|[^|\n]*(?<![\d.])\d+\.\d+(?![\d.])|\bload \d|\b(one|two|three|several) runs?\b")
"""How a measured figure shows: a decimal in a table, the machine's load, a number of runs."""
RENDERED = re.compile(r"<!-- (\w+): rendered by make results -->.*?<!-- /\1 -->", re.S)
FENCES = re.compile(r"^```.*?^```$|^    [^\n]*$|`[^`]*`", re.S | re.M)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(text: str) -> str:
    """Return the text without code."""
    return FENCES.sub("", text)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_pages_use_the_words_of_the_field(path: Path) -> None:
    found = [match.group() for match in COINED.finditer(prose(path.read_text()))]
    assert found == [], "say queue, wake-up, discovery, respect, touch rate, reported or known, interleaved"


def commands(command: click.Command, names: str = "vmplace") -> Iterator[tuple[str, click.Command]]:
    yield names, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for sub in command.list_commands(context):
            found = command.get_command(context, sub)
            assert found is not None
            yield from commands(found, f"{names} {sub}")


def test_help_uses_the_words_of_the_field() -> None:
    found = {
        names: COINED.findall(command.get_help(click.Context(command, info_name=names)))
        for names, command in commands(cli)
    }
    assert len(found) > 20
    assert {names: words for names, words in found.items() if words} == {}


def test_figures_come_from_kept_runs_alone() -> None:
    assert PAGE.read_text() == page(), "run make results"


@pytest.mark.parametrize(
    "path", [one for one in PAGES if one != PAGE and "design" not in one.parts], ids=name
)
def test_no_figure_of_a_run_is_typed(path: Path) -> None:
    text = prose(RENDERED.sub("", path.read_text()))
    assert [match.group() for match in MEASURED.finditer(text)] == [], "keep the run in bench/results"


def test_a_typed_figure_would_be_found() -> None:
    assert MEASURED.search("| harvest | 0.51 |") and MEASURED.search("(one run, load 4)")
    assert not MEASURED.search("| libvirt | 11.3.0 |")
    assert not MEASURED.search("Weights from 0 to 1, in steps of 0.1.")


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    broken = [link for link in LINK.findall(prose(path.read_text())) if not is_there(path, link)]
    assert broken == []


def is_there(path: Path, link: str) -> bool:
    if ":" in link:
        return True
    file, _, anchor = link.partition("#")
    target = (path.parent / file) if file else path
    return target.exists() and (not anchor or anchor in anchors(target.read_text()))


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as MkDocs and forges make them."""
    plain = (line.strip("# ").lower() for line in text.splitlines() if line.startswith("#"))
    return {re.sub(r"[^a-z0-9_ -]", "", line).replace(" ", "-") for line in plain}


def test_pictures_are_those_that_are_drawn() -> None:
    for file, drawn in runpy.run_path(str(DOCS / "pictures/draw.py"))["PICTURES"].items():
        assert (DOCS / "pictures" / file).read_text() == drawn, "run make pictures"


def test_messages_of_the_manual_are_those_of_the_code() -> None:
    manual = (DOCS / "operate.md").read_text()
    quoted = re.findall(r'^### "(.*)"$', manual, re.M)
    code = "\n".join(path.read_text() for path in (ROOT / "vmplace").rglob("*.py"))
    reported = re.sub(r'"\s*\n\s*f?"', "", code)
    assert len(quoted) > 5
    for message in quoted:
        for words in message.replace("&lt;", "<").replace("&gt;", ">").split("…"):
            assert words.strip() in reported, message


def test_a_bench_of_which_a_part_failed_is_not_kept(tmp_path: Path) -> None:
    record = {"record": {"commit": "a" * 40, "command": ["/x/bench_y.py", "--out", "/x/y.json"]}, "parts": {}}
    (tmp_path / "y.json").write_text(json.dumps(record | {"failed": {"part": "why"}}))
    with pytest.raises(ValueError, match="a part failed"):
        keep(tmp_path / "y.json", tmp_path)
    (tmp_path / "y.json").write_text(json.dumps(record | {"failed": {}}))
    keep(tmp_path / "y.json", tmp_path)
    assert json.loads((tmp_path / "y.json").read_text())["record"]["command"] == ["bench_y.py"]
