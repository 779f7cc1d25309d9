"""How fast may the guests of a scenario go on this machine?

1. All guests work as fast as they can for a moment, with the meter on.
2. They then get half of that: all the same share of what they declare, at most all of it.
3. Below ``LEAST_SPEED`` the memory is touched too seldom for anybody to learn from it: too slow to judge.
"""

import time
from collections.abc import Callable, Mapping

from lab.counters_meter import MeterCounters
from lab.errors import TooSlowError
from lab.machine import LabHost
from lab.scenario import Guest, Scenario
from lab.scenario_meter import FULL_SPEED, WARM_UP_S

SHARE = 0.5
"""Of what guests can do; the rest is for managers, and for what else this machine does meanwhile."""
LEAST_SPEED = 0.2
CALIBRATION_S = 2.0


def declared_rates(scenario: Scenario) -> dict[int, float]:
    """Return the touches a second that each guest declares, by guest number.

    Empty for a scenario in which they say nothing: guests as fast as they can be, programs, phases of
    different rates.
    """
    declared = [_declared_rate(guest) for guest in scenario.guests]
    return {guest: rate for guest, rate in enumerate(declared, start=1) if rate} if all(declared) else {}


def _declared_rate(guest: Guest) -> float | None:
    """Return the touches a second of all vCPUs, the same in each phase; None if there is no such rate."""
    work = guest.workload
    if work.run or any(touch.rate == "max" for touch in work.touch):
        return None
    rates = {
        1000 * sum(float(t.rate) * len(t.vcpu_ids()) for t in work.touch if t.phase in (None, phase))
        for phase in range(max(len(work.phases_ms), 1))
    }
    return rates.pop() if len(rates) == 1 else None


def measured_speed(host: LabHost, rates: Mapping[int, float], set_speed: Callable[[float], object]) -> float:
    """Return the share of their declared rates at which the guests are to work, and let them do so.

    Raises TooSlowError where that is next to nothing.
    """
    set_speed(FULL_SPEED)
    with MeterCounters(host.shared_memory) as meter:
        host.run(["vmp-meter", "on"])
        try:
            time.sleep(WARM_UP_S)
            earlier, start = meter.read(), time.monotonic()
            time.sleep(CALIBRATION_S)
            growth, passed = meter.read().since(earlier), time.monotonic() - start
        finally:
            host.run(["vmp-meter", "off"])
    speed = speed_of({guest: float(growth.work[guest].sum()) / passed for guest in rates}, rates)
    set_speed(speed)
    return speed


def speed_of(possible: Mapping[int, float], rates: Mapping[int, float]) -> float:
    """Return the speed for guests that can make ``possible`` touches a second."""
    share = min((possible[guest] / rate for guest, rate in rates.items()), default=1.0)
    if SHARE * share < LEAST_SPEED:
        raise TooSlowError(f"at their best guests make {share:.0%} of their touches")
    return min(1.0, SHARE * share)


class WorkClock:
    """For how many seconds have guests done what they are to do, from now on?  By the meter, on or off."""

    def __init__(self, host: LabHost, rates: Mapping[int, float]) -> None:
        """``rates``: the touches a second that guests are to make, by number."""
        self._host, self._rates = host, rates
        self._first = self._made()

    def passed_s(self) -> float | None:
        """Return the seconds of the guest that got to do least; None where guests declare nothing."""
        made = self._made()
        return min(((made[one] - self._first[one]) / rate for one, rate in self._rates.items()), default=None)

    def _made(self) -> dict[int, int]:
        with MeterCounters(self._host.shared_memory) as meter:
            return {guest: meter.totals(guest).work for guest in self._rates}
