"""Runs of the agent's loop by the guests of a host, kept in a file: each in a line, from when it is done.

1. The file is locked while it is open: of two models with one file, the second is refused.
2. The first line says what the runs were made from.  A file of other traces is refused, and stays.
3. What a killed model left of its last line is cut off; nothing else is ever rewritten.
"""

import fcntl
from pathlib import Path
from types import TracebackType

import msgspec

from vmplace import __version__
from vmplace.errors import ConfigError, OutsideError, VmplaceError
from vmplace.outside import error_text, finite, parse_json, read_bytes

MOST_BYTES = 1 << 28
MOST_PRESSURE = 2.0
HINT = "name another file with --loop-runs, or remove this one"
BUSY_HINT = "wait until the other model is done, or name another file with --loop-runs"
State = tuple[tuple[tuple[str, int], ...], ...]
"""For each node the guests on it, sorted: program and vCPUs; the nodes sorted, too."""


class StateRun(msgspec.Struct, frozen=True):
    """What the loop brings about: each node's pressure, and what guests take, ordered as in the state."""

    state: State
    nodes: tuple[float, ...]
    guests: tuple[tuple[float, ...], ...]


class Made(msgspec.Struct, frozen=True):
    """The first line of a file of runs: release, span, and a digest of the host's file and of the traces."""

    version: str
    span_ns: float
    inputs: str


class KeptRuns:
    """The runs of a file by state; what is kept is in the file at once."""

    def __init__(self, path: Path, span_ns: float, inputs: str) -> None:
        """Lock the file and read what is there; raises ConfigError if it is of something else, or in use."""
        self._path, self.span_ns, self._made = path, span_ns, Made(__version__, span_ns, inputs)
        self.runs: dict[State, StateRun] = {}
        try:
            self._file = path.open("a+b", buffering=0)
        except OSError as err:
            raise _unusable(path, err) from err
        try:
            self._lock()
            self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "KeptRuns":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the next one have the file."""
        self._file.close()

    def keep(self, run: StateRun) -> None:
        """Keep a run; raises VmplaceError if the disk does not take it."""
        self.runs[run.state] = run
        self._add(run)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise ConfigError(
                "another model keeps its runs here", place=str(self._path), hint=BUSY_HINT
            ) from err
        except OSError as err:
            raise _unusable(self._path, err) from err

    def _read(self) -> None:
        try:
            text = read_bytes(self._path, MOST_BYTES)
        except OSError as err:
            raise _unusable(self._path, err) from err
        except OutsideError as err:
            raise ConfigError(error_text(err), place=str(self._path), hint=HINT) from err
        # The line at which a model was killed has no end; it may be the first.
        whole = text[: text.rfind(b"\n") + 1]
        if whole or not msgspec.json.encode(self._made).startswith(text):
            self._take(whole or text)
        if whole != text:
            self._file.truncate(len(whole))
        if not whole:
            self._add(self._made)

    def _take(self, text: bytes) -> None:
        """Take the runs of whole lines; raises ConfigError."""
        number, (header, *lines) = 1, text.removesuffix(b"\n").split(b"\n")
        try:
            is_mine = parse_json(header, Made) == self._made
            for line in lines if is_mine else ():
                number += 1
                run = checked(parse_json(line, StateRun))
                self.runs[run.state] = run
        except OutsideError as err:
            why = f"is no file of the loop's runs: {error_text(err)}"
            raise ConfigError(why, place=f"{self._path}:{number}", hint=HINT) from err
        if not is_mine:
            why = "has runs of other traces, of another host, release or length"
            raise ConfigError(why, place=str(self._path), hint=HINT)

    def _add(self, line: msgspec.Struct) -> None:
        left = msgspec.json.encode(line) + b"\n"
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as err:
            hint = f"free some space for {self._path}; the same command goes on where it was"
            raise VmplaceError(f"cannot write {self._path}: {err.strerror}", hint=hint) from err


def checked(run: StateRun) -> StateRun:
    """Return a run that has a figure for each node and each guest; raises OutsideError."""
    sizes = [len(there) for there in run.state]
    if len(run.nodes) != len(sizes) or [len(one) for one in run.guests] != sizes:
        raise OutsideError("a run has not one figure for each node and each guest")
    for value in (*run.nodes, *(share for there in run.guests for share in there)):
        finite(value, least=0, most=MOST_PRESSURE, what="pressure")
    return run


def _unusable(path: Path, err: OSError) -> ConfigError:
    hint = "name a file with --loop-runs that you may write, in a folder that exists"
    return ConfigError(f"cannot be used ({err.strerror})", place=str(path), hint=hint)
