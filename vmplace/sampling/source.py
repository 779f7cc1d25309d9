"""What must a source of samples do?  One window of one guest: arm, wait, harvest."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from vmplace.sampling.sample import SampleBatch, SourceCoverage
from vmplace.topology.guest import GuestTopology
from vmplace.topology.host import HostTopology


def nothing() -> None:
    """Do nothing: the beat of who is not watched."""


@dataclass(frozen=True)
class SourceSetup:
    """What a source is made from; the roots are parameters for tests.

    ``recording`` is the file that source "replay" plays; ``state_dir`` holds what must outlive a killed
    agent.  ``beat`` is called with each piece of a long look: it goes on.
    """

    host: HostTopology
    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    state_dir: Path = Path("/run/vmplace")
    recording: Path | None = None
    beat: Callable[[], None] = nothing


class Source(Protocol):
    """A sensor for the touched pages of guests.

    Made from a ``SourceSetup``; the constructor probes, changes nothing and raises UnsupportedHostError
    with the cure where the host lacks what is needed.
    """

    name: str
    coverage: SourceCoverage

    def arm(self, guest: GuestTopology) -> None:
        """Start a window of one guest; raises GuestGoneError for a guest that ended."""

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Return what was touched since the guest was armed; raises GuestGoneError.

        The sensor is not armed again by this: what is touched between windows counts for none.
        """

    def forget(self, guest: GuestTopology) -> None:
        """Hold nothing more for this guest, which may have ended."""

    def close(self) -> None:
        """Take the sensor off; harmless when done twice."""


@runtime_checkable
class PlaceKeeper(Protocol):
    """A source that does not look up in each window where all pages are."""

    def moved(self, guest: GuestTopology, hva: npt.NDArray[np.uint64]) -> None:
        """Look these pages, or the huge ones that they are, up in the next window."""

    def look_again(self) -> None:
        """Look all pages of all guests up in the next window."""


@runtime_checkable
class EarlyReader(Protocol):
    """A source that can tell within a window what was touched so far: what is seen early is hot."""

    def read_early(self, guest: GuestTopology) -> None:
        """Note it for the harvest, and clear nothing; raises GuestGoneError, ValueError if not armed."""
