"""Where in a TOML text does each key stand?

tomllib and msgspec say what is wrong, but not where.  The scan is lax: it runs only over text that
tomllib has accepted, so it need not reject anything.
"""

import json
import re

Path = tuple[str | int, ...]

_LONG_ESCAPE = re.compile(r"(?<!\\)\\U([0-9A-Fa-f]{8})")
_SPACE = re.compile(r"(?:\s|#[^\n]*)*")
_PART = re.compile(r"""[ \t]*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))[ \t]*""")
_STRING = re.compile(r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\])*"|\'[^\']*\'', re.DOTALL)
# A date may be separated from its time by a space.
_BARE = re.compile(r"[^\s,\]}#]+(?: \d\d:[^\s,\]}#]+)?")


def key_places(text: str) -> dict[Path, tuple[int, int]]:
    """Return the (line, column) of every key and array element, counted from 1, by its path."""
    scan = _Scan(text)
    table: Path = ()
    while scan.skip_space() < len(text):
        if text[scan.pos] == "[":
            table = scan.header()
        else:
            scan.pair(table)
    return {path: _line_column(text, pos) for path, pos in scan.found.items()}


def _line_column(text: str, pos: int) -> tuple[int, int]:
    return text.count("\n", 0, pos) + 1, pos - text.rfind("\n", 0, pos)


def _unescaped(basic: str) -> str:
    """Return the text between two quotes: TOML's escapes are those of JSON, and \\UXXXXXXXX."""
    text = _LONG_ESCAPE.sub(lambda match: chr(int(match[1], 16)), basic)
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        # Not distinguished from others then: it only costs the place of a complaint.
        return basic


class _Scan:
    """A cursor over the text that notes the position of each key it passes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.found: dict[Path, int] = {}
        self._tables: dict[Path, int] = {}

    def skip_space(self) -> int:
        """Move over white space and comments; return the new position."""
        self.pos = self._match(_SPACE).end()
        return self.pos

    def header(self) -> Path:
        """Read ``[a.b]`` or ``[[a.b]]`` and return the table's path."""
        is_array = self.text.startswith("[[", self.pos)
        self.pos += 1 + is_array
        path = self._key(())
        self.pos += 1 + is_array
        if is_array:
            self._tables[path] = self._tables.get(path, -1) + 1
            path = (*path, self._tables[path])
        return path

    def pair(self, table: Path) -> None:
        """Read ``key = value``."""
        path = self._key(table)
        self.pos += 1
        self._value(path)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self.text, self.pos)
        if match is None:
            raise ValueError(f"not TOML at {_line_column(self.text, self.pos)}")
        return match

    def _key(self, table: Path) -> Path:
        while True:
            part = self._match(_PART)
            basic, literal, bare = part.groups()
            start = part.start() + len(part[0]) - len(part[0].lstrip())
            table = (*table, _unescaped(basic) if basic is not None else literal or bare)
            self.found.setdefault(table, start)
            self.pos = part.end()
            if not self.text.startswith(".", self.pos):
                return table
            self.pos += 1

    def _value(self, path: Path) -> None:
        self.skip_space()
        first = self.text[self.pos]
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        else:
            self.pos = self._match(_STRING if first in "\"'" else _BARE).end()

    def _array(self, path: Path) -> None:
        self.pos += 1
        index = 0
        while not self._closes("]"):
            self.found[(*path, index)] = self.pos
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: Path) -> None:
        self.pos += 1
        while not self._closes("}"):
            self.pair(path)

    def _closes(self, bracket: str) -> bool:
        self.skip_space()
        if self.text.startswith(",", self.pos):
            self.pos += 1
            self.skip_space()
        closed = self.text.startswith(bracket, self.pos)
        self.pos += closed
        return closed
