"""The policy bench's file, written anew after each scenario, so that what was measured is never lost."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.policy_notes import beaten
from bench.record import provenance, write_atomically


@dataclass
class Table:
    """The table as far as it has come, in a file that is whole at any time."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, Any] | None = None
    failed: dict[str, str] = field(default_factory=dict)
    sampled: str = "all windows of all traces"
    unjudged: list[str] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=provenance)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Write the table after the block; if that fails, the block's name and why go into it."""
        try:
            yield
        except Exception as err:  # whatever it is, the other rows are of use
            traceback.print_exc()
            self.failed[name] = f"{type(err).__name__}: {err}"
        self.write()

    def write(self) -> None:
        """Write what there is."""
        reported: dict[str, Any] = {
            "rows": self.rows,
            "notes": [*beaten(self.rows)],
            "leave_one_out": self.left_out,
        }
        reported |= {"record": self.record, "failed": self.failed, "sampled": self.sampled}
        reported["unjudged"] = self.unjudged
        write_atomically(self.path, msgspec.to_builtins(reported))
