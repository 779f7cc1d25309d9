"""Which program simulates guests under a policy: the simulator by itself, the oracle, or the agent's loop?"""

from collections.abc import Sequence

from vmplace.errors import VmplaceError
from vmplace.simulate.agent_run import AgentSetup, agent_rates_after, run_agent
from vmplace.simulate.guest_run import GuestRun, GuestSpec
from vmplace.simulate.host_file import SimulatedHost
from vmplace.simulate.learnt import HALF_LIFE_NS
from vmplace.simulate.oracle import best_course, oracle
from vmplace.simulate.oracle_static import static_course
from vmplace.simulate.placement_costs import FREE, PlacementCosts
from vmplace.simulate.registry import Reach, SimulatedPolicy
from vmplace.simulate.result import SimulationResult
from vmplace.simulate.scheduler import started
from vmplace.simulate.simulation import Simulation
from vmplace.simulate.source_views import Source, sensor_of, wants_hits

ALL_WINDOWS = 1 << 30


def simulate(  # noqa: PLR0913  (what is simulated; each has its own type)
    host: SimulatedHost,
    specs: Sequence[GuestSpec],
    policy: SimulatedPolicy,
    source: Source,
    windows: int = ALL_WINDOWS,
    costs: PlacementCosts | None = None,
    half_life_ns: float = HALF_LIFE_NS,
) -> SimulationResult:
    """Return what comes out when ``specs`` run under ``policy`` for at most ``windows`` windows each."""
    if not specs:
        raise VmplaceError("there is no guest to simulate", hint="give one: --guest NAME=TRACE.npz")
    if policy.reach is Reach.FUTURE:
        return oracle(host, specs, windows, costs or PlacementCosts(), best_course)
    if policy.reach is Reach.FIXED:
        return oracle(host, specs, windows, FREE, static_course)
    guests = [GuestRun(spec, host, windows, half_life_ns, wants_hits(source)) for spec in specs]
    started(guests, host)
    simulation = Simulation(host, guests, policy, source, costs or PlacementCosts())
    if policy.reach is Reach.AGENT:
        run_agent(simulation, AgentSetup(policy.agent_policy, sensor_of(source)))
    return simulation.run()


def settled_rates(  # noqa: PLR0913  (what is simulated; each has its own type)
    host: SimulatedHost,
    specs: Sequence[GuestSpec],
    policy: SimulatedPolicy,
    source: Source,
    span_ns: float,
    costs: PlacementCosts | None = None,
) -> dict[str, float]:
    """Return each guest's DRAM accesses per ns once the policy was at work for ``span_ns``.

    For guests whose traces do not end before; those that do have no rate.
    """
    guests = [GuestRun(spec, host, ALL_WINDOWS) for spec in specs]
    started(guests, host)
    simulation = Simulation(host, guests, policy, source, costs or PlacementCosts())
    if policy.reach is Reach.AGENT:
        return agent_rates_after(simulation, AgentSetup(policy.agent_policy, sensor_of(source)), span_ns)
    return simulation.rates_after(span_ns)
