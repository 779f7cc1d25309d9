"""Arrivals of guests as a CSV file, written and replayed by `vmplace fleet-model`.

The file may come from anywhere: what is wrong is refused with its line, the cause and the cure.  Empty lines
are left out, and so is the mark that some programs write before the first one (BOM).
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vmplace.errors import ConfigError, OutsideError
from vmplace.fleet.loop_table import LoopTable
from vmplace.interfaces.output_file import opened_output
from vmplace.outside import LONGEST_NAME, error_text, finite, lines, printable, read_bytes, whole

COLUMNS = ("uuid", "from_s", "to_s", "vcpus", "memory_gib", "program")
HINT = f"CSV in UTF-8 with a header and the columns {', '.join(COLUMNS)}; each uuid once, times in seconds"
MOST_BYTES = 1 << 28
MOST_S, MOST_GIB, MOST_VCPUS = 1e9, 1 << 16, 1 << 12


@dataclass(frozen=True)
class Arrival:
    """One guest: when it comes and goes (s), its size, and the program that it runs."""

    uuid: str
    from_s: float
    to_s: float
    vcpus: int
    memory_gib: int
    program: str


def write_arrivals(path: Path, guests: Sequence[Arrival]) -> None:
    """Write a trace of arrivals, to be replayed; raises VmplaceError."""
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow(COLUMNS)
    rows.writerows([getattr(guest, name) for name in COLUMNS] for guest in guests)
    with opened_output(path) as out:
        out.write(text.getvalue().encode())


def read_arrivals(path: Path, table: LoopTable) -> list[Arrival]:
    """Return a recorded trace of arrivals, by time; raises ConfigError with the line, cause and cure."""
    try:
        text = read_bytes(path, MOST_BYTES).decode("utf-8-sig")
    except OSError as err:
        hint = "name a file that exists and that you may read"
        raise ConfigError(f"cannot be read ({err.strerror})", place=str(path), hint=hint) from err
    except (OutsideError, UnicodeDecodeError) as err:
        raise ConfigError(error_text(err), place=str(path), hint=HINT) from err
    line, found = 1, dict[str, Arrival]()
    try:
        # Line by line: csv's own count of lines is wrong where it fails.
        header, *rows = lines(text) or [""]
        names = _header(header)
        for row in rows:
            line += 1
            if not row.strip():
                continue
            guest = _arrival(names, row, table)
            if found.setdefault(guest.uuid, guest) is not guest:
                raise OutsideError(f"uuid {guest.uuid!r} is in a line before, too")
    except (csv.Error, OutsideError) as err:
        place = f"{path}:{line}"
        raise ConfigError(error_text(err), place=place, hint=f"{HINT}; {_known(table)}") from err
    return sorted(found.values(), key=lambda one: one.from_s)


def _fields(line: str) -> list[str]:
    return next(csv.reader([line], strict=True), [])


def _header(line: str) -> list[str]:
    names = _fields(line)
    if lacking := [name for name in COLUMNS if name not in names]:
        raise OutsideError(f"the header has no column {', '.join(lacking)}")
    if len(set(names)) < len(names):
        raise OutsideError("the header names a column twice")
    return names


def _arrival(names: list[str], line: str, table: LoopTable) -> Arrival:
    fields = _fields(line)
    if len(fields) != len(names):
        raise OutsideError(f"this line has {len(fields)} fields, the header {len(names)}")
    row = dict(zip(names, fields, strict=True))
    uuid, program = row["uuid"], row["program"]
    if not uuid or printable(uuid) != uuid:
        raise OutsideError(f"uuid is {printable(uuid)!r}, not 1 to {LONGEST_NAME} signs that print")
    from_s, to_s = (finite(row[name], least=0, most=MOST_S, what=name) for name in ("from_s", "to_s"))
    if from_s >= to_s:
        raise OutsideError(f"the guest comes at {from_s:g} and goes at {to_s:g}, not later")
    vcpus = whole(row["vcpus"], least=1, most=MOST_VCPUS, what="vcpus")
    memory_gib = whole(row["memory_gib"], least=1, most=MOST_GIB, what="memory_gib")
    if vcpus not in table.demand.get(program, {}):
        raise OutsideError(f"the table has no program {printable(program)!r} on {vcpus} vCPUs")
    return Arrival(uuid, from_s, to_s, vcpus, memory_gib, program)


def _known(table: LoopTable) -> str:
    sizes = sorted({size for sizes in table.demand.values() for size in sizes})
    return f"programs: {', '.join(table.programs)}; vCPUs: {', '.join(map(str, sizes))}"
