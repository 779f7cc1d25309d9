"""What fleets are fitted to: the agent's own loop on hosts whose guests begin again when they end."""

import numpy as np
import pytest

from tests.unit.simulate.small_trace import private_pages
from vmplace.fleet.loop_host import LoopGuest, RepeatedRun, loop_nodes, loop_pressures
from vmplace.simulate.guest_option import guest_spec
from vmplace.simulate.host_file import parse_host
from vmplace.simulate.trace import parse_trace

HOST = parse_host(
    """
    distances = [[10, 20], [20, 10]]
    bandwidth_mib_per_s = [[8000, 4000], [4000, 8000]]
    node = [{nid = 0, cpus = 4, memory_mib = 64}, {nid = 1, cpus = 4, memory_mib = 64}]
    """,
    name="two",
)
TRACE = parse_trace(private_pages(heat=60_000), name="g")


def test_guests_are_placed_by_free_cpus() -> None:
    guests = [LoopGuest(TRACE, vcpus) for vcpus in (3, 2, 2, 2)]
    assert loop_nodes(HOST, guests) == [(0,), (1,), (1,), (0, 1)]


def test_a_program_begins_again_with_fresh_memory() -> None:
    run = RepeatedRun(guest_spec("g", TRACE, {}, HOST), HOST, 1 << 30)
    for _ in range(TRACE.windows):
        assert run.advance()
    assert run.window == 0 and set(np.unique(run.node)) == {-1}


def test_pressure_is_of_the_node_where_guests_are() -> None:
    alone = loop_pressures(HOST, [LoopGuest(TRACE, 2)], 0.2e9)
    assert alone[0] > 0 and alone[1] == pytest.approx(0, abs=0.01)
    apart = loop_pressures(HOST, [LoopGuest(TRACE, 2)] * 2, 0.2e9)
    assert apart == pytest.approx((alone[0], alone[0]), rel=0.05)


def test_guests_that_share_a_node_take_no_more_than_the_sum() -> None:
    guest = LoopGuest(TRACE, 2)
    alone, _ = loop_pressures(HOST, [guest], 0.2e9)
    shared, _ = loop_pressures(HOST, [guest] * 2, 0.2e9, nodes=[(0,), (0,)])
    assert alone < shared <= 2 * alone * 1.01
