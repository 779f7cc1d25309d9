"""How many lines do a guest's programs fetch and write back per touch, by what the guest declares?

What the meter counts is held against it.

1. Touches miss as in the simulator's forecast: within a burst only lines that were not drawn before.
2. Of the modelled caches a guest has what its touches are of all touches on its vCPUs' nodes; what it holds
   of the guest's memory is hit.
3. Verification reads each line of a page once.

Not in it: a burst of writes also counts itself in a table (payload/arena.h) of a word per page, which the
caches hold but for a few per cent of all lines.
"""

from collections import defaultdict

from lab.scenario import Guest, Scenario
from lab.scenario_forecast import dirty_share, misses_per_touch
from lab.topology import MIB

LINE_BYTES = 64
CACHED_BYTES = 2.25 * MIB
"""A CPU's 256 KiB and the 2 MiB of its node, as the meter has them by default."""


def declared_lines(scenario: Scenario, guest: Guest, speed: float = 1.0) -> float:
    """Return the lines per touch of a guest that works at ``speed`` times its declared rates."""
    arena_bytes = (guest.workload.arena_mib or guest.memory_mib) * MIB
    missed = 1 - min(_cached_bytes(scenario, guest) / arena_bytes, 1.0)
    touches_per_s = 1000 * speed * sum(_rates_by_node(guest).values())
    verified = guest.workload.verify_kib_per_s * 1024 / LINE_BYTES / touches_per_s
    return missed * misses_per_touch(guest) * (1 + dirty_share(guest)) + verified


def _cached_bytes(scenario: Scenario, guest: Guest) -> float:
    """Return what of a node's caches the guest has, mean over the nodes of its vCPUs."""
    all_rates: dict[int, float] = defaultdict(float)
    for other in scenario.guests:
        for nid, rate in _rates_by_node(other).items():
            all_rates[nid] += rate
    mine = _rates_by_node(guest)
    return CACHED_BYTES * sum(rate / all_rates[nid] for nid, rate in mine.items()) / len(mine)


def _rates_by_node(guest: Guest) -> dict[int, float]:
    """Return the declared touches a ms by the node of the vCPUs that make them."""
    rates: dict[int, float] = defaultdict(float)
    for touch in (touch for touch in guest.workload.touch if touch.phase in (None, 0)):
        for vcpu in touch.vcpu_ids():
            rates[guest.vcpu_nids[vcpu]] += float(touch.rate)
    return rates
