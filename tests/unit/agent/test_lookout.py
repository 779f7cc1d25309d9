"""Free memory is always fresh; nodes and guests are looked up once in a while."""

from dataclasses import replace

from tests.unit.agent.agent_world import HOST, guest
from vmplace.agent.found import Found
from vmplace.agent.lookout import GUESTS_S, HOST_S, LOOK_SHARE, Lookout


class Surroundings:
    def __init__(self) -> None:
        self.now, self.free, self.host_reads = 0.0, 5, 0
        self.found = Found((guest("db1"),))
        self.lookout = Lookout(self.read_host, lambda _nid: self.free, lambda: self.found, lambda: self.now)

    def read_host(self):
        self.host_reads += 1
        return HOST


def test_free_memory_is_of_this_moment_but_nodes_are_remembered():
    here = Surroundings()
    here.lookout.host()
    here.free = 7
    assert {node.free_bytes for node in here.lookout.host().nodes} == {7}
    assert here.host_reads == 1
    here.now = HOST_S
    here.lookout.host()
    assert here.host_reads == 2


def test_a_node_that_went_away_makes_it_look_again():
    here = Surroundings()
    here.lookout.host()

    def gone(_nid: int) -> int:
        raise FileNotFoundError

    here.lookout._read_free_bytes = gone
    assert here.lookout.host() == replace(HOST)
    assert here.host_reads == 2


def test_guests_are_found_in_time_or_when_asked():
    here = Surroundings()
    here.lookout.guests()
    here.found = Found(())
    assert here.lookout.guests().guests
    here.lookout.look_again()
    assert not here.lookout.guests().guests
    here.found = Found((guest("db1"),))
    here.now = GUESTS_S
    assert here.lookout.guests().guests


def test_a_look_that_takes_long_is_made_more_seldom():
    here = Surroundings()

    def slow() -> Found:
        here.now += 10
        return here.found

    here.lookout._find = slow
    for _ in range(300):
        here.lookout.guests()
        here.now += 1
    looking_s = here.now - 300
    assert 10 < looking_s <= LOOK_SHARE * here.now
