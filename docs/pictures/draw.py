"""Two pictures of how it works, as SVG without a library: ``python docs/pictures/draw.py`` writes them anew.

before-after.svg is not drawn here: `make results` draws the run of the demo that is kept.
"""

from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent
INK, FRAME, VCPU, MEMORY, COPY = "#222", "#888", "#c9d8f0", "#f5c98b", "#fbe6c8"
FONT = 'font-family="DejaVu Sans, Verdana, sans-serif"'


def text(x: float, y: float, words: str, *, size: int = 14, anchor: str = "middle") -> str:
    """Return one line of text; names are larger than 14, and bold."""
    weight = ' font-weight="bold"' if size > 14 else ""
    place = f'x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} {FONT} fill="{INK}"{weight}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str = "white") -> str:
    """Return a rectangle."""
    size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"'
    return f'<rect {size} fill="{fill}" stroke="{FRAME}"/>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a line with a head at its end."""
    ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return f'<line {ends} stroke="{INK}" stroke-width="1.5" marker-end="url(#head)"/>'


def picture(width: int, height: int, title: str, parts: Iterator[str]) -> str:
    """Return an SVG file; ``title`` is what a screen reader says."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    marker = (
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>'
    )
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join((head, f"<title>{escape(title)}</title>", marker, ground, *parts, "</svg>\n"))


STAGES = (
    ("topology", "what host,", "what guests"),
    ("sampling", "what was touched,", "and from where"),
    ("model", "heat and node", "of each page"),
    ("policy", "one plan for", "all guests"),
    ("actuation", "journal, then", "move within budget"),
)
READINGS = ((0, "clear bits"), (0.06, "6 ms"), (0.2, "24 ms"), (0.45, "96 ms"), (1, "harvest, 1 s"))


def window() -> Iterator[str]:
    """Yield one window of the agent: its stages, and when bits are read."""
    for index, (name, first, second) in enumerate(STAGES):
        x = 20 + 180 * index
        yield box(x, 30, 150, 90, VCPU if name == "sampling" else "white")
        yield text(x + 75, 56, name, size=16)
        yield text(x + 75, 82, first, size=13)
        yield text(x + 75, 102, second, size=13)
        if index:
            yield arrow(x - 28, 75, x - 2, 75)
    yield from _readings()
    yield '<path d="M815,122 L815,205 Q815,215 805,215 L105,215 Q95,215 95,205 L95,124" fill="none" '
    yield f'stroke="{INK}" stroke-width="1.5" marker-end="url(#head)"/>'
    yield text(455, 235, "rest: none after a move, up to 2 s while nothing is to be moved", size=13)


def _readings() -> Iterator[str]:
    yield f'<line x1="200" y1="165" x2="760" y2="165" stroke="{FRAME}" stroke-width="1.5"/>'
    for share, words in READINGS:
        x = 200 + 560 * share
        yield f'<line x1="{x:g}" y1="158" x2="{x:g}" y2="172" stroke="{INK}"/>'
        anchor = "end" if share == 0 else "start" if share < 0.1 else "middle"
        yield text(x + (-6 if share == 0 else 4 if share < 0.1 else 0), 190, words, size=12, anchor=anchor)
    yield text(480, 150, "bits are read several times: one that shows early means many touches", size=12)


def mechanisms() -> Iterator[str]:
    """Yield what is done to a guest: pairs of hosts of two nodes, before and after."""
    rows = (
        ("move", "one node uses it", ((1, 0), (0, 1)), ((1, 0), (1, 0))),
        ("interleave", "both nodes write it", ((1, 1), (1, 0)), ((1, 1), (0.5, 0.5))),
        ("copy", "both nodes only read it", ((1, 1), (1, 0)), ((1, 1), (1, -1))),
        ("gather", "vCPUs may run anywhere", ((0.5, 0.5), (0.5, 0.5)), ((1, 0), (1, 0))),
    )
    for index, (name, why, before, after) in enumerate(rows):
        y = 20 + 130 * index
        yield text(20, y + 50, name, size=18, anchor="start")
        yield text(20, y + 74, why, size=13, anchor="start")
        yield from _host(220, y, *before)
        yield arrow(530, y + 50, 575, y + 50)
        yield from _host(590, y, *after)


def _host(x: float, y: float, vcpus: tuple[float, float], memory: tuple[float, float]) -> Iterator[str]:
    for node in (0, 1):
        left = x + 150 * node
        yield box(left, y, 140, 105)
        yield text(left + 70, y + 98, f"node {node}", size=11)
        if vcpus[node]:
            wide = 120 * vcpus[node]
            yield box(left + 10, y + 10, wide, 28, VCPU)
            yield text(left + 10 + wide / 2, y + 29, "vCPUs" if vcpus[node] == 1 else "half", size=13)
        share = memory[node]
        if share:
            wide = 120 * abs(share)
            yield box(left + 10, y + 48, wide, 28, COPY if share < 0 else MEMORY)
            word = "copy" if share < 0 else "memory" if share == 1 else "half"
            yield text(left + 10 + wide / 2, y + 67, word, size=13)


PICTURES = {
    "window.svg": picture(910, 250, "One window of the agent: five stages, and a rest", window()),
    "mechanisms.svg": picture(910, 530, "Move, interleave, copy, gather: before and after", mechanisms()),
}


def main() -> None:
    """Write the pictures anew."""
    for name, drawn in PICTURES.items():
        (FOLDER / name).write_text(drawn)


if __name__ == "__main__":
    main()
