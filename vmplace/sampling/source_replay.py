"""What was touched, once: a recording in place of a sensor.

Guests are matched by name, each gets its own batches in their order; after the last one it is gone.
"""

import time
from collections.abc import Iterator

from vmplace.errors import GuestGoneError, RecordingError, UnsupportedHostError
from vmplace.sampling.recording import iter_recording, read_recorded_host
from vmplace.sampling.sample import SampleBatch, SourceCoverage
from vmplace.sampling.source import SourceSetup
from vmplace.topology.guest import GuestTopology


class ReplaySource:
    """Batches of a recording, as fast as they are asked for, or ``timed`` as they were recorded."""

    name = "replay"
    coverage = SourceCoverage()

    def __init__(self, setup: SourceSetup, *, timed: bool = False) -> None:
        """Open the recording; raises UnsupportedHostError without one, RecordingError for a bad one."""
        if setup.recording is None:
            raise UnsupportedHostError("source replay has no recording", hint="name the file to replay")
        self._path = setup.recording
        self._timed = timed
        self._batches: dict[str, Iterator[SampleBatch]] = {}
        self.host = read_recorded_host(self._path)

    def arm(self, guest: GuestTopology) -> None:
        """Do nothing: the windows are over."""

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Return the guest's next batch; GuestGoneError after the last, RecordingError where damaged."""
        batches = self._batches.setdefault(guest.name, self._iter_batches(guest.name))
        try:
            batch = next(batches, None)
        except RecordingError:
            # A generator that raised is finished: the next call tells the guest's end.
            self._batches[guest.name] = iter(())
            raise
        if batch is None:
            raise GuestGoneError(f"the recording holds no more of guest {guest.name}")
        if self._timed:
            time.sleep((batch.ended_ns - batch.started_ns) / 1e9)
        return batch

    def forget(self, guest: GuestTopology) -> None:
        """Close the guest's place in the recording."""
        self._batches.pop(guest.name, None)

    def close(self) -> None:
        """Close the recording."""
        self._batches.clear()

    def _iter_batches(self, guest: str) -> Iterator[SampleBatch]:
        for event in iter_recording(self._path, only_guest=guest):
            if isinstance(event, SampleBatch):
                yield event
