"""The agent's answers to ``fit`` and ``advise``."""

from vmplace.agent.loop import Agent
from vmplace.agent.report import guest_traffic
from vmplace.agent.tracked_guest import TrackedGuest
from vmplace.errors import VmplaceError
from vmplace.policy.advise import Advice, advise
from vmplace.policy.fit import Fit, Flavour, fit, tenants
from vmplace.policy.plan import Mode
from vmplace.topology.host import HostTopology


def fit_answer(agent: Agent, flavour: Flavour) -> Fit:
    """Return where a guest of that size fits, and what would make room for it."""
    host = _host(agent)
    views = agent.roster.views()
    movable = movable_names(agent)
    leaving = tenants(host, [view for view in views if view.topology.name in movable])
    return fit(host, views, leaving, flavour)


def advice_answer(agent: Agent, flavour: Flavour) -> Advice:
    """Return the nodes on which a guest of that size would best run."""
    host = _host(agent)
    return advise(host, agent.roster.views(), memory_loads(agent, host), flavour)


def movable_names(agent: Agent) -> frozenset[str]:
    """Return the guests that may make room."""
    return frozenset(guest.name for guest in agent.roster if _may_leave(guest))


def memory_loads(agent: Agent, host: HostTopology) -> dict[int, float]:
    """Return how many touched pages of the last window each node's memory holds."""
    loads = dict.fromkeys(host.nids, 0.0)
    for guest in agent.roster:
        traffic = guest_traffic(guest, host)
        for nid, load in zip(traffic.nids, traffic.mc_loads().tolist(), strict=True) if traffic else ():
            loads[nid] = loads.get(nid, 0.0) + load
    return loads


def _may_leave(guest: TrackedGuest) -> bool:
    return guest.settings.mode is Mode.AUTO and not guest.held and guest.waits_for is None


def _host(agent: Agent) -> HostTopology:
    if agent.host is None:
        raise VmplaceError("the agent has not looked at the host yet", hint="ask again in a second")
    return agent.host
