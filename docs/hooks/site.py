"""How do the pages beside docs/ get into the site?  A hook of MkDocs (mkdocs.yml).

README is the home page.  Links between README, CONTRIBUTING and docs/ are those of a checkout, which any
forge shows; here they become those of the site.  Pages of docs/design and docs/clouds join the navigation
by themselves.
"""

import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

CHECKOUT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "ansible/README.md": "ansible.md",
}
FOLDERS = {"Clouds": "clouds", "Design notes": "design"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name all pages of the folders whose pages are not named one by one."""
    docs = Path(config.docs_dir)
    nav = [one for one in config.nav or [] if not FOLDERS.keys() & set(one)]
    for title, folder in FOLDERS.items():
        found = sorted((docs / folder).glob("*.md"), key=lambda path: (path.name != "index.md", path.name))
        if found:
            nav.append({title: [str(path.relative_to(docs)) for path in found]})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages beside docs/, and the licence."""
    for source, target in PAGES.items():
        if (CHECKOUT / source).exists():
            files.append(File.generated(config, target, content=(CHECKOUT / source).read_text()))
    files.append(File.generated(config, "LICENSE.txt", content=(CHECKOUT / "LICENSE").read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with the links of a checkout made those of the site."""
    targets = {target: source for source, target in PAGES.items()}
    source = PurePosixPath(targets.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    return LINK.sub(lambda match: _linked(match, source, PurePosixPath(page.file.src_uri)), markdown)


def _linked(match: re.Match[str], source: PurePosixPath, page: PurePosixPath) -> str:
    """Return one link; one to a file that is no page becomes its text."""
    bang, text, path, anchor = match.group(1), match.group(2), match.group(3), match.group(4) or ""
    wanted = _resolved(source.parent / path)
    target = PAGES.get(wanted, "LICENSE.txt" if wanted == "LICENSE" else None)
    if target is None and not wanted.startswith("docs/"):
        return f"`{text.strip('`')}`"
    up = "../" * (len(page.parts) - 1)
    return f"{bang}[{text}]({up}{target or wanted.removeprefix('docs/')}{anchor})"


def _resolved(path: PurePosixPath) -> str:
    """Return the path from the checkout's top, without "..": what is above the top stays there."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)
