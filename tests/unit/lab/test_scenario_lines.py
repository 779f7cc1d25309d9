"""What follows from a declared pattern, against sums by hand."""

import msgspec
import pytest

from lab.scenario import Guest, Scenario
from lab.scenario_lines import declared_lines
from lab.workload import Touch, Workload


def guest(name: str, nids: tuple[int, ...], rate: float, **work: object) -> Guest:
    touch = Touch(vcpus=f"0-{len(nids) - 1}", ranges=("0+90",), rate=rate, **work)  # type: ignore[arg-type]
    load = Workload(arena_mib=90, touch=(touch,), verify_kib_per_s=0)
    return Guest(name=name, start_nids=nids, memory_mib=128, workload=load)


def lines(*guests: Guest, speed: float = 1.0) -> float:
    return declared_lines(Scenario(name="try", topology="n2", guests=guests), guests[0], speed)


def test_single_reads_miss_but_for_what_the_caches_hold():
    assert lines(guest("a", (0,), 8.0)) == pytest.approx(1 - 2.25 / 90)


def test_guests_share_the_caches_of_their_node_by_their_touches():
    assert lines(guest("a", (0,), 8.0), guest("b", (0,), 24.0)) == pytest.approx(1 - 2.25 / 4 / 90)
    assert lines(guest("a", (0,), 8.0), guest("b", (1,), 24.0)) == pytest.approx(1 - 2.25 / 90)


def test_what_is_written_goes_back_to_memory():
    all_written = lines(guest("a", (0,), 8.0, write_percent=100))
    assert all_written == pytest.approx(2 * (1 - 2.25 / 90))


def test_verification_reads_lines_as_time_passes():
    mine = guest("a", (0,), 8.0)
    verifying = msgspec.structs.replace(mine.workload, verify_kib_per_s=64)
    more = lines(msgspec.structs.replace(mine, workload=verifying), speed=0.5) - lines(mine, speed=0.5)
    # 1024 lines a second beside 4000 touches.
    assert more == pytest.approx(0.256)
