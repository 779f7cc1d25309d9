"""Keep the rows of a sweep in one Parquet file, and beside it while the sweep runs.

``OUT.parts/`` takes rows as lines of JSON, a new file every few seconds: object storage knows no append.
At the end all rows become OUT, and the parts go.  A sweep that was killed is taken up from OUT and parts.

Several sweeps may write to one OUT.  On a disk they take turns.  Object storage has no locks: whoever sees
that OUT or a part changed meanwhile begins anew, but a change in the last moment before OUT is replaced is
not seen.
"""

import contextlib
import fcntl
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from vmplace.errors import VmplaceError, cure_of_reading, cure_of_writing
from vmplace.extras import extra_module
from vmplace.fleet.sweep_rows import SQL_TYPES, SweepRow

FLUSH_S = 10.0
ATTEMPTS = 5
RESULT_CURE = "name a file that `vmplace sweep --out` wrote"
LINES = msgspec.json.Encoder()


class SweepResults:
    """The rows at ``url``, and those to come; use as a context manager, which keeps what was added."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Read what is there; raises VmplaceError for what no sweep wrote."""
        self.url, self._clock = url, clock
        self._filesystem, self._path = _opened(url)
        self._parts = f"{self._path}.parts"
        self._new: list[SweepRow] = []
        self._flushed_s = clock()
        with self._alone():
            _, self.rows = self._current()

    @property
    def done(self) -> set[str]:
        """Return the tasks that have figures; one that failed is tried again."""
        return {task for task, row in self.rows.items() if row.error is None}

    def add(self, row: SweepRow) -> None:
        """Take a row in; it is on disk FLUSH_S later at the latest, if rows go on coming."""
        self.rows[row.task] = row
        self._new.append(row)
        if self._clock() - self._flushed_s >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write the new rows beside the file; raises VmplaceError."""
        if not self._new:
            return
        part = f"{self._parts}/{uuid.uuid4().hex}.jsonl"
        try:
            # Without the lock, as whoever is stopped must not wait; another sweep may remove the folder.
            for _ in range(ATTEMPTS):
                self._filesystem.makedirs(self._parts, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    self._filesystem.pipe_file(part, LINES.encode_lines(self._new))
                    break
            else:
                raise self._is_busy()
        except Exception as err:
            raise VmplaceError(f"{self.url} cannot be written: {err}", hint=cure_of_writing(err)) from err
        self._new, self._flushed_s = [], self._clock()

    def finish(self) -> None:
        """Make all rows one Parquet file, those of a sweep beside this one too; its parts go last."""
        self.flush()
        with self._alone():
            if not any(self._merge() for _ in range(ATTEMPTS)):
                raise self._is_busy()

    def _merge(self) -> bool:
        """Make OUT of itself and of the parts; return False if another sweep changed it meanwhile."""
        before = self._identity()
        parts, rows = self._current()
        with tempfile.TemporaryDirectory(prefix="vmplace-sweep-") as folder:
            lines, made = Path(folder, "rows.jsonl"), Path(folder, "rows.parquet")
            lines.write_bytes(LINES.encode_lines(list(rows.values())))
            _write_parquet(lines, made)
            if not self._replace(made, before):
                return False
        self.rows = rows
        for part in parts:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.rm_file(part)
        # Another sweep may have written into it, and object storage has no folders.
        with contextlib.suppress(OSError, NotImplementedError):
            self._filesystem.rmdir(self._parts)
        return True

    def _replace(self, made: Path, before: str | None) -> bool:
        """Put the file in its place, whole or not at all; return False if OUT is not as ``before``."""
        fresh = f"{self._path}.{uuid.uuid4().hex}.new"
        try:
            self._filesystem.put_file(str(made), fresh)
            if self._identity() != before:
                return False
            self._filesystem.mv(fresh, self._path)
        except Exception as err:
            hint = f"the rows are kept in {self.url}.parts"
            raise VmplaceError(f"{self.url} cannot be written: {err}", hint=hint) from err
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.rm_file(fresh)
        return True

    def _identity(self) -> str | None:
        """Return what changes whenever OUT is replaced, None if there is none."""
        self._filesystem.invalidate_cache(self._path)
        return str(self._filesystem.ukey(self._path)) if self._filesystem.exists(self._path) else None

    def _current(self) -> tuple[list[str], dict[str, SweepRow]]:
        """Return the parts that are there, and all rows by task."""
        for _ in range(ATTEMPTS):
            parts = self._part_names()
            # Another sweep may have taken a part into OUT since.
            with contextlib.suppress(FileNotFoundError):
                return parts, {row.task: row for row in self._kept(parts)}
        raise self._is_busy()

    def _is_busy(self) -> VmplaceError:
        hint = f"run the same command once more: the rows are kept in {self.url}.parts"
        return VmplaceError(f"other sweeps change {self.url} all the time", hint=hint)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other sweeps from the file meanwhile, where it is on a disk that has locks."""
        folder = Path(self._path).parent
        if not _is_on_disk(self._filesystem):
            yield
            return
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _part_names(self) -> list[str]:
        if not self._filesystem.exists(self._parts):
            return []
        # Another sweep may have written some since this one listed them.
        self._filesystem.invalidate_cache(self._parts)
        return sorted(self._filesystem.glob(f"{self._parts}/*.jsonl"))

    def _kept(self, parts: Sequence[str]) -> list[SweepRow]:
        rows = read_rows(self.url) if self._filesystem.exists(self._path) else []
        for part in parts:
            rows += _whole_rows(part, self._filesystem.cat_file(part))
        # A row with figures is worth more than a failure, whichever was written first.
        return sorted(rows, key=lambda row: row.error is None)

    def __enter__(self) -> "SweepResults":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()


def _whole_rows(part: str, data: bytes) -> list[SweepRow]:
    """Return the rows of all lines that end: a writer that was killed leaves half of one behind."""
    try:
        return msgspec.json.Decoder(SweepRow).decode_lines(data[: data.rfind(b"\n") + 1])
    except msgspec.MsgspecError as err:
        raise VmplaceError(f"{part} is no part of a sweep: {err}", hint="move it away") from err


def _opened(url: str) -> tuple[Any, str]:
    try:
        filesystem, path = extra_module("fsspec", "fleet").url_to_fs(url)
        if filesystem.isdir(path):
            raise VmplaceError(f"{url} is a folder", hint="name a file, such as results.parquet")
        folder = Path(path).parent
        if _is_on_disk(filesystem) and not folder.is_dir():
            raise VmplaceError(f"there is no folder {folder}", hint=f"make it: mkdir -p {folder}")
    except (ValueError, ImportError, OSError) as err:
        raise VmplaceError(f"{url}: {err}", hint="a path, or a URL that fsspec knows") from err
    return filesystem, str(path)


def _is_on_disk(filesystem: Any) -> bool:
    protocols = filesystem.protocol
    return "file" in ((protocols,) if isinstance(protocols, str) else protocols)


def _write_parquet(lines: Path, made: Path) -> None:
    columns = ", ".join(f"{name}: '{kind}'" for name, kind in SQL_TYPES.items())
    database = extra_module("duckdb", "fleet").connect()
    database.execute(
        f"COPY (SELECT * FROM read_json($lines, format = 'newline_delimited', columns = {{{columns}}}) "  # noqa: S608 (names of this module)
        "ORDER BY recording, host, policy) TO $made (FORMAT parquet, COMPRESSION zstd)",
        {"lines": str(lines), "made": str(made)},
    )


def read_rows(url: str) -> list[SweepRow]:
    """Return the rows of a Parquet file; raises VmplaceError for one that no sweep wrote."""
    with parquet_file(url) as (database, path):
        try:
            found = database.execute("SELECT * FROM read_parquet($path)", {"path": path})
            names = [column[0] for column in found.description]
            rows = [dict(zip(names, values, strict=True)) for values in found.fetchall()]
            return [msgspec.convert(row, SweepRow) for row in rows]
        except Exception as err:
            raise not_of_a_sweep(url, err, path) from err


def not_of_a_sweep(url: str, err: Exception, path: str) -> VmplaceError:
    """Return the error for a file that has something else; ``path``: that of its copy, which nobody knows."""
    reported = str(err).partition("\n")[0].replace(path, url)
    return VmplaceError(f"{url} is no result of a sweep: {reported}", hint=RESULT_CURE)


@contextmanager
def parquet_file(url: str) -> Iterator[tuple[Any, str]]:
    """Give DuckDB, and the path of a copy of the file at ``url``; raises VmplaceError."""
    filesystem, path = _opened(url)
    with tempfile.TemporaryDirectory(prefix="vmplace-sweep-") as folder:
        local = str(Path(folder, "rows.parquet"))
        try:
            filesystem.get_file(path, local)
        except OSError as err:
            if filesystem.exists(f"{path}.parts"):
                hint = "run the same command again: it goes on with the rows that are kept"
                raise VmplaceError(f"the sweep for {url} was stopped before its end", hint=hint) from err
            raise VmplaceError(f"{url} cannot be read: {err}", hint=cure_of_reading(err)) from err
        yield extra_module("duckdb", "fleet").connect(), local
