"""The sources, and the choice of the best one that this host offers."""

from collections.abc import Callable
from dataclasses import dataclass

from vmplace.errors import UnsupportedHostError
from vmplace.sampling.damon_admin import DamonHeldError
from vmplace.sampling.source import Source, SourceSetup
from vmplace.sampling.source_damon import DamonSource
from vmplace.sampling.source_fused import FusedSource
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

EXACT, ADDED = "kvm", ("ibs", "hints")
"""What can be had together ("kvm+ibs+hints"), and the one that must be among them."""

SENSORS = tuple(name for name in SOURCES if name != "replay")
"""What "auto" tries in turn; where there are hint faults, "kvm" works, too."""


@dataclass(frozen=True)
class Choice:
    """The source that was chosen, and why the better ones were not."""

    source: Source
    reasons: tuple[str, ...] = ()


def is_source(name: str) -> bool:
    """Tell whether that is a sensor, or several: one that sees nodes and misses nothing, then others."""
    first, *others = name.split("+")
    return first in SENSORS and (not others or first == EXACT) and set(others) <= {*ADDED} - {first}


def best_source(setup: SourceSetup, wanted: str = "auto") -> Choice:
    """Return source ``wanted``, e.g. "ibs" or "kvm+ibs", or for "auto" the first sensor that works.

    Raises UnsupportedHostError with all reasons where none does; KeyError for a name that is no source's.
    """
    if wanted != "auto":
        return Choice(_named(setup, wanted), ("chosen by the configuration",))
    reasons: list[str] = []
    hints: list[str] = []
    for name in SENSORS:
        try:
            return Choice(SOURCES[name](setup), tuple(reasons))
        except (UnsupportedHostError, DamonHeldError) as err:
            reasons.append(f"{name}: {err}")
            hints.append(f"{name}: {err.hint}")
    raise UnsupportedHostError(f"nothing to sample with ({'; '.join(reasons)})", hint="; ".join(hints))


def _named(setup: SourceSetup, name: str) -> Source:
    """Return the source, or several as one; raises UnsupportedHostError for the first that cannot work."""
    if "+" not in name:
        return SOURCES[name](setup)
    opened: list[Source] = []
    try:
        for part in name.split("+"):
            opened.append(SOURCES[part](setup))
    except Exception:
        for source in opened:
            source.close()
        raise
    return FusedSource(opened)
