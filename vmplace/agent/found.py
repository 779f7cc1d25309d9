"""What is a look at the guests of the host worth?"""

from dataclasses import dataclass

from vmplace.topology.guest import GuestTopology


@dataclass(frozen=True)
class Found:
    """The guests of this moment, and what a person should know about how they were found."""

    guests: tuple[GuestTopology, ...]
    notes: tuple[str, ...] = ()
