"""How does a report become one HTML file that needs nothing else: no script, no font, no other file?"""

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vmplace.errors import VmplaceError
from vmplace.extras import extra_cure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NODE_COLOURS = (
    *("#2a9d8f", "#e9c46a", "#7b6fb0", "#e76f51", "#4f86c6", "#b5838d", "#8ab17d", "#6d597a"),
    *("#b08968", "#577590", "#f28482", "#84a59d", "#a44a3f", "#90a955", "#5e548e", "#c9ada7"),
)
"""By node index; further nodes begin again."""
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #264653 }
body { max-width: 76rem; margin: 2rem auto; padding: 0 1rem }
h1 { margin-bottom: 0 } h2 { margin-top: 2.5rem; border-bottom: 1px solid #d9d9d9 }
svg { max-width: 100%; height: auto } p.note { color: #5c6b73 } p.bad { color: #b3261e }
table { border-collapse: collapse; margin: 1rem 0 } caption { text-align: left; color: #5c6b73 }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #eee }
th:first-child, td:first-child, .words { text-align: left }
thead th { border-bottom: 2px solid #264653 }
"""
UNKNOWN = "?"


@dataclass(frozen=True)
class Table:
    """Rows of text; the first column is what a row is about."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def of_known(self) -> "Table":
        """Return the table without the columns in which no row has an answer."""
        columns = list(zip(*self.rows, strict=True))
        known = [i for i, column in enumerate(columns) if set(column) != {UNKNOWN}]
        rows = tuple(tuple(row[i] for i in known) for row in self.rows)
        return Table(tuple(self.headings[i] for i in known), rows, self.caption)


@dataclass(frozen=True)
class Section:
    """One part of a page; ``svg`` is a picture as text, ``warnings`` are shown in red."""

    title: str
    note: str = ""
    svg: str = ""
    tables: tuple[Table, ...] = ()
    warnings: tuple[str, ...] = ()


def html_page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """Return the whole page."""
    body = "\n".join(_section(section) for section in sections)
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    top = f'<h1>{html.escape(title)}</h1>\n<p class="note">{html.escape(subtitle)}</p>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{top}\n{body}\n</body></html>\n'


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure, inches; raises VmplaceError where matplotlib is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as err:
        hint = f"apt install python3-matplotlib, or {extra_cure('report')}"
        raise VmplaceError("pictures need matplotlib", hint=hint) from err
    # Text stays text: it can be searched, and takes a tenth of the bytes.
    mpl.rcParams["svg.fonttype"] = "none"
    # Names of guests and managers are no formulas, whatever signs they have.
    mpl.rcParams["text.parse_math"] = False
    return Figure(figsize=(width, height), layout="constrained")


def svg_of(figure: "Figure") -> str:
    """Return the figure as an element that can stand in a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]


def number(value: float | None, digits: int = 2) -> str:
    """Return a figure as text; a question mark where there is no answer."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def node_colour(index: int) -> str:
    """Return the colour of a node index, the same in all pictures."""
    return NODE_COLOURS[index % len(NODE_COLOURS)]


def _section(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    parts += [f'<p class="note">{html.escape(section.note)}</p>'] if section.note else []
    parts += [section.svg, *(_table(table) for table in section.tables)]
    parts += [f'<p class="bad">{html.escape(warning)}</p>' for warning in section.warnings]
    return "\n".join(part for part in parts if part)


def _table(table: Table) -> str:
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.headings)
    head = "".join(_heading(*one) for one in zip(table.headings, columns, strict=True))
    rows = "\n".join("<tr>" + "".join(_cell(text) for text in row) + "</tr>" for row in table.rows)
    caption = f"<caption>{html.escape(table.caption)}</caption>" if table.caption else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>"


def _heading(text: str, column: Sequence[str]) -> str:
    words = ' class="words"' if column and all(map(_is_words, column)) else ""
    return f"<th{words}>{html.escape(text)}</th>"


def _cell(text: str) -> str:
    words = ' class="words"' if _is_words(text) else ""
    return f"<td{words}>{html.escape(text)}</td>"


def _is_words(text: str) -> bool:
    return not (text[:1].isdigit() or text[:1] in "-+?")
