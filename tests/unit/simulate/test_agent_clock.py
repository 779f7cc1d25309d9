"""When the agent looks, against readings that stay or change."""

import numpy as np

from vmplace.simulate.agent_clock import SLOWEST, WAKE_NS, AgentClock

CALM = [(np.eye(2), 100.0)]
SHIFTED = [(np.array([[0.9, 0.1], [0.0, 1.0]]), 100.0)]
SLOWER = [(np.eye(2), 103.0)]


def looks(clock: AgentClock, wakes: int, reading) -> int:
    count = 0
    for _ in range(wakes):
        if clock.wake(clock.next_wake_ns, reading):
            clock.looked(changed=False)
            count += 1
    return count


def test_a_calm_host_is_looked_at_ever_more_rarely():
    clock = AgentClock()
    assert looks(clock, 2 * SLOWEST, CALM) == 5
    assert looks(clock, 10 * SLOWEST, CALM) == 10


def test_traffic_or_latency_that_changes_is_looked_at_at_once():
    for change in (SHIFTED, SLOWER):
        clock = AgentClock()
        looks(clock, 40, CALM)
        assert clock.wake(clock.next_wake_ns, change)


def test_a_look_that_led_to_something_is_followed_by_another():
    clock = AgentClock()
    looks(clock, 40, CALM)
    clock.wake(clock.next_wake_ns, SLOWER)
    clock.looked(changed=True)
    assert clock.wake(clock.next_wake_ns + WAKE_NS, SLOWER)
