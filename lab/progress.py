"""What is the lab doing right now?  One line per step, with the elapsed time and the log's last line."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from lab import cache


def log_path(name: str) -> Path:
    """Return a fresh log file of that name in the cache; the last one of the same name is overwritten."""
    path = cache.cache_root() / "logs" / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def last_line(log: Path | None, limit: int = 4096) -> str:
    """Return the last non-empty line of a log that may still grow, or an empty string."""
    with contextlib.suppress(OSError):
        if log is not None:
            with log.open("rb") as handle:
                handle.seek(max(0, log.stat().st_size - limit))
                lines = handle.read().decode(errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""


@dataclass(frozen=True)
class _Step:
    name: str
    log: Path | None
    started: float


_open: list[_Step] = []
"""Steps that this process is in, of all that tell; the newest last."""


def waited_for() -> str:
    """Return this process's newest step and its seconds so far; nothing if it is in none."""
    newest = _open[-1:]
    return "".join(f"{step.name}: {time.monotonic() - step.started:.0f} s" for step in newest)


class Progress:
    """Tells the steps on a terminal (one refreshed line) or in a log (a line now and then)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._steps: list[_Step] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._ticker: threading.Thread | None = None
        self._start = time.monotonic()

    @contextlib.contextmanager
    def step(self, name: str, log: Path | None = None) -> Iterator[None]:
        """Show a step while the block runs; steps of several threads may overlap."""
        step = _Step(name, log, time.monotonic())
        self._begin(step)
        outcome = "failed"
        try:
            yield
            outcome = "done"
        finally:
            self._end(step, outcome)

    def note(self, text: str) -> None:
        """Print a line."""
        with self._lock:
            self._print(text)

    def _begin(self, step: _Step) -> None:
        with self._lock:
            self._steps.append(step)
            _open.append(step)
            if not self._terminal:
                self._print(f"{step.name} ...")
            if self._ticker is None:
                self._stop = threading.Event()
                self._ticker = threading.Thread(target=self._tick, args=(self._stop,), daemon=True)
                self._ticker.start()

    def _end(self, step: _Step, outcome: str) -> None:
        with self._lock:
            self._steps.remove(step)
            _open.remove(step)
            if not self._steps:
                self._stop.set()
                self._ticker = None
            self._print(f"{step.name}: {outcome} in {time.monotonic() - step.started:.1f} s")

    def _tick(self, stop: threading.Event) -> None:
        while not stop.wait(1.0 if self._terminal else 15.0):
            with self._lock:
                for step in self._steps if not self._terminal else self._steps[-1:]:
                    self._show(step)

    def _show(self, step: _Step) -> None:
        text = f"{step.name}: {time.monotonic() - step.started:.0f} s  {last_line(step.log)}"
        if not self._terminal:
            self._print(text[:160])
            return
        self._stream.write("\r\x1b[K" + text[:100])
        self._stream.flush()

    def _print(self, text: str) -> None:
        clear = "\r\x1b[K" if self._terminal else ""
        self._stream.write(f"{clear}[{time.monotonic() - self._start:6.1f}] {text}\n")
        self._stream.flush()
