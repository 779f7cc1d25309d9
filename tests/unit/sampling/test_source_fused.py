"""Several sources as one: who leads, what the others add, and what happens if they fail."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vmplace.errors import GuestGoneError, UnsupportedHostError
from vmplace.sampling.registry import SOURCES, best_source, is_source
from vmplace.sampling.sample import NodeBits, NodeHits, RangeSample, SampleBatch, SourceCoverage
from vmplace.sampling.served import ServedAccesses
from vmplace.sampling.source import SourceSetup
from vmplace.sampling.source_fused import FusedSource
from vmplace.topology.guest import GuestTopology, Movability, RamRange
from vmplace.topology.host import HostTopology

RAM = RamRange(1 << 30, 64, 0, 4096, Movability.MOVABLE, "test")
GUEST = GuestTopology("one", 1, 1, "kvm", (), (RAM,))
HITS = NodeHits(np.array([3]), np.array([1]))
SERVED = ServedAccesses(1, (0, 0, 1, 0, 0), (0, 0, 9, 0, 0), (0, 0, 900, 0, 0))


class Sensor:
    """A source that answers with one sample, or fails."""

    coverage = SourceCoverage(written=True, accessor_nid=True)

    def __init__(self, name: str, sample: RangeSample, failure: Exception | None = None) -> None:
        self.name, self._sample, self._failure, self.closed = name, sample, failure, False

    def arm(self, guest: GuestTopology) -> None:
        if self._failure:
            raise self._failure

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        served = SERVED if self.name == "ibs" else None
        return SampleBatch(guest.name, self.name, self.coverage, 0, 1, (0, 1), (self._sample,), served)

    def forget(self, guest: GuestTopology) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def sample(pages: int) -> RangeSample:
    """Return a window in which node 0 touched the first pages."""
    touched = np.array([[(1 << pages) - 1], [0], [0]], np.uint64)
    accessed = (np.arange(64) < pages).astype(np.uint8)
    return RangeSample(
        RAM, accessed, np.zeros(64, np.int8), np.zeros(1, np.uint8), NodeBits(touched, touched)
    )


def test_what_was_touched_is_the_first_ones_word_and_the_others_add_what_it_lacks() -> None:
    other = replace(sample(1), counted=HITS, text=np.array([5]))
    source = FusedSource([Sensor("kvm", sample(9)), Sensor("ibs", other)])
    source.arm(GUEST)
    batch = source.harvest(GUEST)
    assert (batch.source, batch.ranges[0].accessed.sum()) == ("kvm+ibs", 9)
    assert batch.ranges[0].counted is HITS and batch.ranges[0].text is not None
    assert batch.served is SERVED


class EarlySensor(Sensor):
    """One that can read bits before the window ends."""

    read: tuple[str, ...] = ()

    def read_early(self, guest: GuestTopology) -> None:
        self.read = (*self.read, guest.name)


def test_the_first_one_alone_reads_early() -> None:
    first, other = EarlySensor("kvm", sample(9)), EarlySensor("ibs", sample(1))
    FusedSource([first, other]).read_early(GUEST)
    assert (first.read, other.read) == (("one",), ())


def test_a_first_one_that_cannot_read_early_is_not_asked() -> None:
    FusedSource([Sensor("kvm", sample(9))]).read_early(GUEST)


def test_another_range_than_the_first_ones_adds_nothing() -> None:
    other = replace(sample(1), ram=replace(RAM, hva=0), counted=HITS)
    source = FusedSource([Sensor("kvm", sample(9)), Sensor("ibs", other)])
    source.arm(GUEST)
    assert source.harvest(GUEST).ranges[0].counted is None


def test_one_of_the_others_that_fails_is_left_out_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    busy = Sensor("hints", sample(1), UnsupportedHostError("another program takes hint faults"))
    source = FusedSource([Sensor("kvm", sample(9)), busy])
    for _ in range(3):
        source.arm(GUEST)
        assert source.harvest(GUEST).ranges[0].accessed.sum() == 9
    assert caplog.text.count("source=hints is left out") == 1


def test_a_failure_of_the_first_one_and_a_guest_that_is_gone_are_the_callers() -> None:
    for sensors in (
        [Sensor("kvm", sample(9), UnsupportedHostError("no roots")), Sensor("ibs", sample(1))],
        [Sensor("kvm", sample(9)), Sensor("ibs", sample(1), GuestGoneError("it ended"))],
    ):
        with pytest.raises((UnsupportedHostError, GuestGoneError)):
            FusedSource(sensors).arm(GUEST)


def test_all_are_closed() -> None:
    sensors = [Sensor("kvm", sample(9)), Sensor("ibs", sample(1))]
    FusedSource(sensors).close()
    assert all(sensor.closed for sensor in sensors)


@pytest.mark.parametrize(
    ("name", "known"),
    [("ibs", True), ("kvm+ibs", True), ("kvm+hints+ibs", True), ("ibs+kvm", False), ("kvm+idle", False)]
    + [("kvm+kvm", False), ("kvm+", False), ("", False)],
)
def test_a_source_that_misses_nothing_leads(name: str, known: bool) -> None:
    assert is_source(name) is known


def test_several_sources_need_each_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vmplace.sampling.source_kvm.probe_features", lambda: 0)
    with pytest.raises(UnsupportedHostError, match="TDP MMU"):
        best_source(SourceSetup(HostTopology((), {}), sysfs=tmp_path), "kvm+ibs")


class Keeper(Sensor):
    """A source that keeps places."""

    def __init__(self) -> None:
        super().__init__("kvm", sample(9))
        self.kept: list[object] = []

    def moved(self, guest: GuestTopology, hva: np.ndarray) -> None:
        self.kept.append((guest.name, hva.tolist()))

    def look_again(self) -> None:
        self.kept.append("all")


def test_what_moved_is_reported_to_the_one_whose_places_count() -> None:
    keeper = Keeper()
    source = FusedSource([keeper, Sensor("ibs", sample(1))])
    source.moved(GUEST, np.array([1 << 30], np.uint64))
    source.look_again()
    assert keeper.kept == [("one", [1 << 30]), "all"]
    other = FusedSource([Sensor("kvm", sample(1)), keeper])
    other.moved(GUEST, np.array([1 << 30], np.uint64))
    other.look_again()
    assert len(keeper.kept) == 2


def test_each_sensor_of_the_table_can_be_chosen() -> None:
    assert [name for name in SOURCES if not is_source(name)] == ["replay"]
