"""Free memory is always fresh; nodes and guests are looked up once in a while."""

from collections.abc import Callable
from dataclasses import replace

from tests.unit.agent.agent_world import HOST, guest
from vmplace.agent.discovered import Discovered
from vmplace.agent.discovery import GUESTS_S, HOST_S, LOOK_SHARE, CachedDiscovery


class Surroundings:
    def __init__(self) -> None:
        self.now, self.free, self.host_reads = 0.0, 5, 0
        self.found = Discovered((guest("db1"),))
        self.discovery = CachedDiscovery(
            self.read_host, lambda _nid: self.free, lambda: self.found, lambda: self.now
        )

    def read_host(self):
        self.host_reads += 1
        return HOST


def test_free_memory_is_of_this_moment_but_nodes_are_remembered():
    here = Surroundings()
    here.discovery.host()
    here.free = 7
    assert {node.free_bytes for node in here.discovery.host().nodes} == {7}
    assert here.host_reads == 1
    here.now = HOST_S
    here.discovery.host()
    assert here.host_reads == 2


def test_a_node_that_went_away_makes_it_look_again():
    here = Surroundings()
    here.discovery.host()

    def gone(_nid: int) -> int:
        raise FileNotFoundError

    here.discovery._read_free_bytes = gone
    assert here.discovery.host() == replace(HOST)
    assert here.host_reads == 2


def test_guests_are_found_in_time_or_when_asked():
    here = Surroundings()
    here.discovery.guests()
    here.found = Discovered(())
    assert here.discovery.guests().guests
    here.discovery.look_again()
    assert not here.discovery.guests().guests
    here.found = Discovered((guest("db1"),))
    here.now = GUESTS_S
    assert here.discovery.guests().guests


def share_of_slow_looks(here: Surroundings, between: Callable[[], None]) -> float:
    """Return which part of the time looks of 10 s take, with a second between any two calls."""

    def slow() -> Discovered:
        here.now += 10
        return here.found

    here.discovery._find = slow
    for _ in range(300):
        here.discovery.guests()
        between()
        here.now += 1
    looking_s = here.now - 300
    assert looking_s > 10
    return looking_s / here.now


def test_a_look_that_takes_long_is_made_more_seldom():
    assert share_of_slow_looks(Surroundings(), lambda: None) <= LOOK_SHARE


def test_guests_that_end_all_the_time_do_not_make_looks_take_more():
    here = Surroundings()
    assert share_of_slow_looks(here, here.discovery.look_again) <= LOOK_SHARE
    # What libvirt tells, or an order, is looked up at once.
    before = here.now
    here.discovery.look_again(asking=True)
    here.discovery.guests()
    assert here.now == before + 10


def test_a_guest_that_ends_brings_a_short_look_at_once():
    here, looks = Surroundings(), list[float]()

    def short() -> Discovered:
        looks.append(here.now)
        here.now += 0.04
        return here.found

    here.discovery._find = short
    here.discovery.guests()
    here.discovery.look_again()
    here.discovery.guests()
    assert len(looks) == 2


def test_what_is_reported_late_is_taken_up_at_once():
    """A look that waited for libvirt is made more seldom, but must not be how guests learn their policy."""
    here, late = Surroundings(), list[str]()
    here.discovery = CachedDiscovery(
        here.read_host, lambda _nid: 5, lambda: here.found, lambda: here.now, has_news=lambda: bool(late)
    )
    here.discovery.guests()
    here.found = Discovered((guest("db1"), guest("db2")))
    assert len(here.discovery.guests().guests) == 1 and not here.discovery.has_news()
    late.append("an answer")
    assert here.discovery.has_news() and len(here.discovery.guests().guests) == 2
