"""What do ``record``, ``replay`` and ``demo`` print?  Their JSON schemas are made from these types."""

from dataclasses import dataclass

import msgspec

from vmplace.agent.rehearsal import Rehearsal


class Recorded(msgspec.Struct, frozen=True):
    """``record``: the file, and what it holds; ``batches``: windows of all guests, each counted."""

    file: str
    size_bytes: int
    windows: int
    batches: int
    guests: int


@dataclass(frozen=True, kw_only=True)
class Replayed(Rehearsal):
    """``replay``: what the policy of that name would have moved, estimated LAR before and after."""

    policy: str


@dataclass(frozen=True, kw_only=True)
class Demonstrated(Replayed):
    """``demo``: the same of the recording that comes with vmplace; ``report``: the file of the report."""

    report: str
