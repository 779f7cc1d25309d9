"""The one gate for what comes from outside: bounded sizes, lines, names that print, numbers with ranges.

Outside is whatever somebody else wrote: /proc and sysfs (where guests choose file names, thread names and
command lines), libvirt, QEMU's monitor, perf, recordings, traces, configuration.  What is wrong with it is
an ``OutsideError``, whose sentence names what was wrong; callers say where.

1. Size before content: a file is read up to a limit, and reported as too long beyond it.
2. Lines end at "\\n" and nowhere else.  str.splitlines also splits at \\v, \\f, \\r, \\x1c to \\x1e, \\x85,
   U+2028 and U+2029, which the kernel does not escape in the file names of /proc/PID/maps: a name could
   pose as a line.
3. Names are shown, logged and sent only as ``printable``.
4. A number has a least and a most: ``int`` takes any length, other scripts' digits and "_".
"""

import math
import zlib
from pathlib import Path
from typing import Any, TypeVar

from vmplace.errors import OutsideError

T = TypeVar("T")

MOST_BYTES = 16 << 20
"""What a text file that nobody bounds more closely may have."""
CHUNK_BYTES = 1 << 17
SMALL_BYTES = 1 << 16
"""Of files of the kernel that hold a figure or a line."""
LONGEST_NAME = 64
LONGEST_NUMBER = 20
MOST_ID = (1 << 16) - 1
"""Of CPUs, nodes and the like: CONFIG_NR_CPUS stays below 8192, node ids below 1024."""
MOST_BITS = (1 << 63) - 1
TOML_CURE = "text values stand in quotes, tables in [brackets]; see https://toml.io"


class Reading:
    """A file that a thread reads; another thread may give it up, and what was read is let go of."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._content, self._is_wanted = most, bytearray(), True

    def read(self, path: Path) -> bytes:
        """Return what the file holds; raises OutsideError for one of more than ``most`` bytes, OSError."""
        there = self._most + 1
        # /proc and sysfs tell no size, and a read of all that is allowed would take as much memory first.
        with path.open("rb", buffering=0) as file:
            while self._is_wanted and there > 0 and (part := file.read(min(there, CHUNK_BYTES))):
                self._content += part
                there -= len(part)
        if len(self._content) > self._most:
            raise OutsideError(f"{printable(str(path), 200)} holds more than {self._most} bytes")
        return bytes(self._content)

    def give_up(self) -> None:
        """Keep nothing, and read no more once the read that waits has ended."""
        self._is_wanted = False
        self._content.clear()


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return what the file holds; raises OutsideError for one of more than ``most`` bytes, OSError."""
    return Reading(most).read(path)


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Return the text of a file, with U+FFFD for what is no UTF-8; raises OutsideError, OSError."""
    return read_bytes(path, most).decode(errors="replace")


def read_whole(path: Path, most: int = MOST_BITS, *, base: int = 10) -> int:
    """Return the number that a file holds and nothing else; raises OutsideError, OSError."""
    return whole(read_text(path, SMALL_BYTES).strip(), most=most, base=base, what=path.name)


def lines(text: str) -> list[str]:
    """Return the lines, without their ends: split at "\\n" alone."""
    parts = text.split("\n")
    return parts if parts[-1] else parts[:-1]


def printable(text: str, most: int = LONGEST_NAME) -> str:
    """Return ``text`` with "?" for what does not print, and what is too long cut and marked.

    Two texts that differ behind the cut stay different: what was cut off is summed up in the mark.
    """
    shown = "".join(char if char.isprintable() else "?" for char in text[:most])
    if len(text) <= most:
        return shown
    mark = f"~{zlib.crc32(text.encode(errors='surrogatepass')):08x}"
    return shown[: most - len(mark)] + mark


def whole(text: str, *, least: int = 0, most: int = MOST_BITS, base: int = 10, what: str = "number") -> int:
    """Return a whole number within [least, most]; raises OutsideError."""
    digits = text.removeprefix("-") if least < 0 else text
    # int() would take blanks, "_", signs and the digits of all scripts.
    if not (digits.isascii() and digits.isalnum() and len(digits) <= LONGEST_NUMBER):
        raise OutsideError(f"{what} is {printable(text)!r}, not a whole number")
    try:
        value = int(text, base)
    except ValueError as err:
        raise OutsideError(f"{what} is {printable(text)!r}, not a whole number") from err
    return within(value, least, most, what)


def within(value: int, least: int, most: int, what: str) -> int:
    """Return ``value`` if it is in [least, most]; raises OutsideError."""
    if not least <= value <= most:
        raise OutsideError(f"{what} is {value}, not from {least} to {most}")
    return value


def finite(value: Any, *, least: float, most: float, what: str) -> float:
    """Return a number within [least, most], which NaN never is; raises OutsideError."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as err:
        raise OutsideError(f"{what} is {printable(str(value))!r}, not a number") from err
    if not (math.isfinite(number) and least <= number <= most):
        raise OutsideError(f"{what} is {number:g}, not from {least:g} to {most:g}")
    return number


def parse_json(content: bytes | str, kind: type[T]) -> T:
    """Return JSON as ``kind``; raises OutsideError for what is none, or of another shape."""
    # Imported when wanted: it takes a fifth of the time of `vmplace status --json`.
    import msgspec

    try:
        return msgspec.json.decode(content, type=kind)
    # msgspec lets bad UTF-8 and deep nesting through as Python's own errors.
    except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError, ValueError) as err:
        raise OutsideError(error_text(err)) from err


def parse_toml(text: str) -> dict[str, Any]:
    """Return a TOML text's tables; raises tomllib.TOMLDecodeError with the place, or OutsideError.

    tomllib recurses once for each level, and hands numbers of any length to int().
    """
    # Imported when wanted: commands that read no TOML start without it.
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except (RecursionError, ValueError, OverflowError) as err:
        raise OutsideError(error_text(err)) from err


def toml_cure(err: Exception) -> str:
    """Return the hint for what tomllib says of a text."""
    reported = str(err).lower()
    is_twice = any(word in reported for word in ("overwrite", "twice", "duplicate", "mutate"))
    return "this key, or table, is there twice: keep one" if is_twice else TOML_CURE


def error_text(err: Exception) -> str:
    """Return in a printable line what an error of a library says."""
    if isinstance(err, RecursionError):
        return "nested too deeply"
    return printable(f"{err}" or type(err).__name__, 300)
