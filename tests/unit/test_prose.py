"""Do the words that a stranger reads follow the rules?  Pages, links, figures, pictures and --help."""

import ast
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bench.results_page import BENCHES, CHANGED_SINCE, NOTES, OF_RUNS, PAGE, RESULTS, keep, page
from vmplace.agent import look_interval
from vmplace.agent.config_sections import Config
from vmplace.agent.cost import BYTES_A_PAGE, LEAST_BYTES
from vmplace.agent.idle_backoff import LONGEST_CHEAP_MS, LONGEST_DEAR_MS
from vmplace.interfaces.cli import cli
from vmplace.topology.memory_budget import host_limit_bytes

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
SUSPICIOUS = re.compile(COINED.pattern.replace(r"\b", "").replace(" out", ""), re.I)
"""A file that has no such letters anywhere has no such word: it need not be parsed."""
MEASURED = re.compile(
    r"\|[^|\n]*(?<![\d.])\d+\.\d+(?![\d.])|\|\s*\d+ ?%\s*\||\bup to [\d.]+\s?%"
    r"|\bload \d|\b(one|two|three|several) runs?\b"
    r"|\btook\D{0,25}\d|\bone (boot|run|try|time) in \d|\d ?(s|ms) late\b|\d (minutes|hours) to "
)
"""How a measured figure shows: a decimal or bare percentage in a table, "up to 5 %", load, number of runs, or
words about one event."""
LONGEST_SENTENCE = 30
"""Words, names of options and files among them; most have twenty or fewer."""
RENDERED = re.compile(r"<!-- demo: rendered by make results -->.*?<!-- /demo -->", re.S)
FENCES = re.compile(r"^```.*?^```$|^    [^\n]*$|`[^`]*`", re.S | re.M)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(text: str) -> str:
    """Return the text without code."""
    return FENCES.sub("", text)


def sentences(text: str) -> Iterator[str]:
    """Yield what stands between full stops, colons and semicolons; items of lists are sentences."""
    text = re.sub(r"<!--.*?-->|^#.*?$|^\|.*?$|\]\([^)]*\)", "", without_blocks(text), flags=re.S | re.M)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:\*|\d+\.) )", text):
        yield from (" ".join(one.split()) for one in re.split(r"(?<=[.!?:;])\**\s+", block))


def without_blocks(text: str) -> str:
    """Return the text without code; lines of an item that are as far to the right remain."""
    return re.sub(
        r"^```.*?^```$|(?:(?<=\n\n)|(?<=-->\n))(?:    [^\n]*\n+)+", "", text + "\n", flags=re.S | re.M
    )


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


def test_help_lists_commands_with_whole_sentences() -> None:
    """Click cuts what is longer than a line."""
    groups = {names: one for names, one in commands(cli) if isinstance(one, click.Group)}
    assert len(groups) >= 4
    for names, group in groups.items():
        if not names.startswith("vmplace lab"):
            listed = group.get_help(click.Context(group, info_name=names)).partition("Commands:")[2]
            assert "..." not in listed


def identifiers(path: Path) -> set[str]:
    """Return what is named in a file: variables, parameters, attributes, functions, classes, aliases."""
    nodes = ast.walk(ast.parse(path.read_text()))
    named = {getattr(node, key, None) for node in nodes for key in ("id", "attr", "arg", "name", "asname")}
    return {one for one in named if isinstance(one, str)}


def test_names_in_code_are_those_of_the_field() -> None:
    folders = ("vmplace", "lab", "bench", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    words = {
        name(path): [one for one in identifiers(path) if COINED.search(re.sub("_|(?=[A-Z][a-z])", " ", one))]
        for path in files
        if SUSPICIOUS.search(path.read_text())
    }
    assert len(files) > 300 and len(words) > 30
    assert {path: found for path, found in words.items() if found} == {}


def comments(path: Path) -> Iterator[str]:
    """Yield the comments and the docstrings of a Python file that may have coined words."""
    if not SUSPICIOUS.search(text := path.read_text()):
        return
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    yield from (token.string for token in tokens if token.type == tokenize.COMMENT)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)


def sources_in_c(folder: str) -> list[Path]:
    """Return its C files; not the lab's, whose text is part of its images: to change it builds them anew."""
    return [] if folder == "lab" else list((ROOT / folder).rglob("*.[ch]"))


@pytest.mark.parametrize("folder", ["vmplace", "bench", "tests", "lab"])
def test_comments_use_the_words_of_the_field(folder: str) -> None:
    files = list((ROOT / folder).rglob("*.py"))
    words = {name(path): [one for text in comments(path) for one in COINED.findall(text)] for path in files}
    words |= {name(path): COINED.findall(path.read_text()) for path in sources_in_c(folder)}
    assert len(words) > 10
    assert {path: found for path, found in words.items() if found} == {}


def test_figures_come_from_kept_runs_alone() -> None:
    assert PAGE.read_text() == page(), "run make results"


@pytest.mark.parametrize(
    "path", [one for one in PAGES if one != PAGE and "design" not in one.parts], ids=name
)
def test_no_figure_of_a_run_is_typed(path: Path) -> None:
    text = path.read_text()
    text = prose(RENDERED.sub("", text) if path == ROOT / "README.md" else text)
    assert [match.group() for match in MEASURED.finditer(text)] == [], "keep the run in bench/results"


def test_a_typed_figure_would_be_found() -> None:
    assert MEASURED.search("| harvest | 0.51 |") and MEASURED.search("(one run, load 4)")
    assert MEASURED.search("the longest took 0.04 to 0.23 s") and MEASURED.search("(about one boot in 30)")
    assert MEASURED.search("was 35 ms late") and MEASURED.search("25 minutes to build")
    assert MEASURED.search("| kernel | 14% |") and MEASURED.search("a guest lost up to 5 %")
    assert not MEASURED.search("| libvirt | 11.3.0 |")
    assert not MEASURED.search("| early readings | 2 % of a CPU |")
    assert not MEASURED.search("Weights from 0 to 1, in steps of 0.1.")


@pytest.mark.parametrize(
    "path", [one for one in PAGES if one.name != "CHANGELOG.md" and "design" not in one.parts], ids=name
)
def test_no_sentence_is_longer_than_a_breath(path: Path) -> None:
    assert [one for one in sentences(path.read_text()) if len(one.split()) > LONGEST_SENTENCE] == []


def test_a_long_sentence_would_be_found() -> None:
    words = " ".join(["word"] * 20)
    found = [
        len(one.split())
        for one in sentences(f"# {words}\n\n* **{words}.** {words}\n  {words}\n\n    {words}")
    ]
    assert max(found) == 40 and sorted(found)[-2] == 21


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


def test_each_test_that_a_note_on_hostile_guests_names_is_there() -> None:
    named = re.findall(r"`(test_\w+)(?:\[\w+\])?`", (DOCS / "design/hostile-guests.md").read_text())
    tests = "".join(path.read_text() for path in (DOCS.parent / "tests").rglob("test_*.py"))
    assert len(named) > 50
    assert [name for name in named if f"def {name}(" not in tests] == []


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


def test_a_bench_without_a_kept_run_is_named_as_such(tmp_path: Path) -> None:
    missing = page(tmp_path)
    assert all(f"| {title} |" in missing for title, _, _ in BENCHES.values())
    shutil.copy(RESULTS / "hook.json", tmp_path)
    title = BENCHES["hook"][0]
    assert f"| {title} |" not in page(tmp_path) and f"## {title}\n" in page(tmp_path)
    assert all((DOCS / "design" / note).exists() for note in NOTES.values())


def test_a_bench_of_which_a_part_failed_is_not_kept(tmp_path: Path) -> None:
    record = {"record": {"commit": "a" * 40, "command": ["/x/bench_y.py", "--out", "/x/y.json"]}, "parts": {}}
    (tmp_path / "y.json").write_text(json.dumps(record | {"failed": {"part": "why"}}))
    with pytest.raises(ValueError, match="a part failed"):
        keep(tmp_path / "y.json", tmp_path)
    (tmp_path / "y.json").write_text(json.dumps(record | {"failed": {}}))
    keep(tmp_path / "y.json", tmp_path)
    assert json.loads((tmp_path / "y.json").read_text())["record"]["command"] == ["bench_y.py"]


def written_names(bench: str) -> re.Pattern[str]:
    """Return what matches each name that a bench, or another of bench/ that it names, may give a figure."""
    stems = {path.stem: path for path in (ROOT / "bench").glob("*.py")}
    source = stems[bench].read_text()
    parts = [source, *(stems[one].read_text() for one in set(re.findall(r"\w+", source)) & stems.keys())]
    names = set()
    for node in (node for text in parts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(re.escape(node.value))
        elif isinstance(node, ast.JoinedStr) and any(isinstance(one, ast.Constant) for one in node.values):
            names.add(
                "".join(
                    re.escape(str(one.value)) if isinstance(one, ast.Constant) else ".+"
                    for one in node.values
                )
            )
    return re.compile("|".join(sorted(names, key=len, reverse=True)))


def figure_names(figures: object) -> Iterator[str]:
    if isinstance(figures, dict):
        for key, below in figures.items():
            # A number is a size.
            yield from () if key.isdecimal() else (key,)
            yield from () if figures.keys() >= OF_RUNS else figure_names(below)


@pytest.mark.parametrize("kept", sorted((ROOT / "bench/results").glob("*.json")), ids=lambda one: one.stem)
def test_kept_figures_are_those_that_the_bench_writes_today(kept: Path) -> None:
    parts = json.loads(kept.read_text()).get("parts", {})
    if not parts:
        pytest.skip("no bench: tests of their own hold the demo and the policies")
    names = written_names(BENCHES[kept.stem][2].split()[0])
    figures = {name for part in parts.values() for name in figure_names(part["figures"])}
    assert [name for name in sorted(figures) if not names.fullmatch(name)] == [], (
        "delete what is gone, or measure"
    )


def test_a_figure_that_no_bench_writes_would_be_found() -> None:
    names = written_names("bench_decision")
    assert names.fullmatch("layout_s") and names.fullmatch("auto_s_of_gib_touched")
    assert not names.fullmatch("joint_s") and not names.fullmatch("host_s_per_gib")


def test_what_changed_since_is_of_runs_that_are_kept() -> None:
    kept = {
        path.stem: json.loads(path.read_text())["record"].get("commit", "")[:12]
        for path in RESULTS.glob("*.json")
    }
    for (name, commit), changed in CHANGED_SINCE.items():
        text = " ".join(page().split())
        shown = f"Commit: {commit}" in text and f"Changed since: {changed}." in text
        assert shown == (kept.get(name) == commit), name


def test_the_site_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("material")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(build, cwd=ROOT, env=environment, check=True)
    loads = re.compile(
        r'<(script|img|iframe)[^>]*src="https?:|<link[^>]*rel="(stylesheet|icon)"[^>]*href="https?:'
    )
    pages = [path.read_text() for path in tmp_path.rglob("*.html")]
    assert len(pages) > 30 and any("iframe-worker.js" in text for text in pages)
    assert [match.group() for text in pages for match in loads.finditer(text)] == []


def test_limits_that_the_manual_names_are_those_of_the_code() -> None:
    config, mib = Config(), 1 << 20
    per_page = (host_limit_bytes(1 << 40) - host_limit_bytes(0)) * 4096 / (1 << 40)
    rows = (
        f"| bytes moved | {config.budget.mb_per_s:g} MB/s | `[budget] mb_per_s` |",
        f"| one call of the kernel, as an aim | {config.budget.call_ms:g} ms | `[budget] call_ms` |",
        f"| early readings | {config.readings.share:.0%} of a CPU".replace("%", " %"),
        f"| the agent's memory, planned | {host_limit_bytes(0) // mib} MiB, and {per_page:g} bytes for each",
        f"| the agent's memory, at most | {LEAST_BYTES // mib} MiB, and {BYTES_A_PAGE} bytes for each 4 KiB",
    )
    page = re.sub(r"\s+", " ", (DOCS / "how-it-works.md").read_text())
    assert [row for row in rows if row not in page] == []
    assert "MemoryMax=5%\n" in (ROOT / "vmplace/interfaces/vmplace.service").read_text()
    assert "`MemoryMax` (5 % of the host's memory)" in page
    assert (config.decisions.share, config.budget.replica_ratio, look_interval.SHARE) == (0.25, 0.25, 0.1)
    assert config.longest_rest_ms is None
    cheap, dear = (f"{ms / 1000:g} s" for ms in (LONGEST_CHEAP_MS, LONGEST_DEAR_MS))
    rest = f"up to {cheap} while nothing is to be moved"
    assert rest in (DOCS / "pictures/window.svg").read_text()
    assert f"rests between windows, up to {cheap}, or up to {dear} where sampling and planning" in page
    assert f"a tenth of a CPU, or one in {dear} | `longest_rest_ms`" in page
