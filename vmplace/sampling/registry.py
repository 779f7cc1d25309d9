"""Which sources are there, and which is the best one this host offers?"""

from collections.abc import Callable
from dataclasses import dataclass

from vmplace.errors import UnsupportedHostError
from vmplace.sampling.source import Source, SourceSetup
from vmplace.sampling.source_damon import DamonSource
from vmplace.sampling.source_hints import HintsSource
from vmplace.sampling.source_ibs import IbsSource
from vmplace.sampling.source_idle import IdleSource
from vmplace.sampling.source_kvm import KvmSource
from vmplace.sampling.source_replay import ReplaySource

SOURCES: dict[str, Callable[[SourceSetup], Source]] = {
    "kvm": KvmSource,
    "idle": IdleSource,
    "damon": DamonSource,
    "ibs": IbsSource,
    "hints": HintsSource,
    "replay": ReplaySource,
}
"""By name; those that "auto" tries come first, the most exact one first."""

SENSORS = ("kvm", "idle", "damon", "ibs", "hints")
"""What "auto" tries in turn; where there are hint faults, "kvm" works, too."""


@dataclass(frozen=True)
class Choice:
    """The source that was chosen, and why the better ones were not."""

    source: Source
    reasons: tuple[str, ...] = ()


def best_source(setup: SourceSetup, wanted: str = "auto") -> Choice:
    """Return source ``wanted``, or for "auto" the first sensor that works.

    Raises UnsupportedHostError with all reasons where none does; KeyError for a name that is no source's.
    """
    if wanted != "auto":
        return Choice(SOURCES[wanted](setup), ("chosen by the configuration",))
    reasons: list[str] = []
    hints: list[str] = []
    for name in SENSORS:
        try:
            return Choice(SOURCES[name](setup), tuple(reasons))
        except UnsupportedHostError as err:
            reasons.append(f"{name}: {err}")
            hints.append(f"{name}: {err.hint}")
    raise UnsupportedHostError(f"nothing to sample with ({'; '.join(reasons)})", hint="; ".join(hints))
