"""Runs of the agent's loop by the guests of a host, kept in a file: each in a line, from when it is done."""

from pathlib import Path

import msgspec

from vmplace import __version__
from vmplace.errors import ConfigError
from vmplace.outside import read_bytes

MOST_BYTES = 1 << 28
HINT = "name another file with --loop-runs, or remove this one"
State = tuple[tuple[tuple[str, int], ...], ...]
"""For each node the guests on it, sorted: program and vCPUs; the nodes sorted, too."""


class StateRun(msgspec.Struct, frozen=True):
    """What the loop brings about: each node's pressure, and what guests take, ordered as in the state."""

    state: State
    nodes: tuple[float, ...]
    guests: tuple[tuple[float, ...], ...]


class Made(msgspec.Struct, frozen=True):
    """The first line of a file of runs: by which release they were made, for which span."""

    version: str
    span_ns: float


class KeptRuns:
    """The runs of a file by state; what is kept is in the file at once."""

    def __init__(self, path: Path, span_ns: float) -> None:
        """Read what is there; raises ConfigError if it is of another release, or no such file."""
        self._path, self.span_ns, made = path, span_ns, Made(__version__, span_ns)
        self.runs: dict[State, StateRun] = {}
        if not path.exists():
            self._add(made)
            return
        text = read_bytes(path, MOST_BYTES)
        # The line at which a run was killed is cut off: it has no end.
        whole = text[: text.rfind(b"\n") + 1]
        header, *lines = whole.splitlines() or [b""]
        try:
            if msgspec.json.decode(header, type=Made) != made:
                raise ConfigError(
                    "has runs of another release, or of another length", place=str(path), hint=HINT
                )
            found = [msgspec.json.decode(line, type=StateRun) for line in lines]
        except msgspec.DecodeError as err:
            raise ConfigError(f"is no file of the loop's runs: {err}", place=str(path), hint=HINT) from err
        self.runs = {one.state: one for one in found}
        if whole != text:
            path.write_bytes(whole)

    def keep(self, run: StateRun) -> None:
        """Keep a run."""
        self.runs[run.state] = run
        self._add(run)

    def _add(self, line: msgspec.Struct) -> None:
        with self._path.open("ab") as out:
            out.write(msgspec.json.encode(line) + b"\n")
