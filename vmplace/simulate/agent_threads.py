"""Where do vCPU threads of the simulated host run?  Where they may, by its scheduler's choice.

1. Guests whose nodes were named are pinned to them; the threads of others may run on all CPUs.
2. Whenever somebody changes that, the scheduler has its way (scheduler.py).
"""

from collections.abc import Iterable, Mapping

from vmplace.errors import GuestGoneError
from vmplace.simulate.simulated_guest import SimulatedGuest
from vmplace.simulate.simulation import Simulation


class SimulatedThreads:
    """The vCPU threads of all guests; ``cpus_by_nid``: the host's CPUs."""

    def __init__(
        self,
        simulation: Simulation,
        guests: Iterable[SimulatedGuest],
        cpus_by_nid: Mapping[int, tuple[int, ...]],
    ) -> None:
        self._simulation = simulation
        self._by_node = [cpus_by_nid[nid] for nid in simulation.host.system.nids]
        self._guests = tuple(guests)
        every = tuple(cpu for cpus in self._by_node for cpu in cpus)
        self.cpus: dict[int, tuple[int, ...]] = {}
        """Where each thread may run."""
        for guest in self._guests:
            for tid, node in zip(guest.tids, guest.run.vcpu_node.tolist(), strict=True):
                self.cpus[tid] = self._by_node[node] if guest.run.spec.pinned else every

    def read_cpus(self, tid: int) -> set[int]:
        """Return the CPUs that thread ``tid`` may run on."""
        self._guest(tid)
        return set(self.cpus[tid])

    def set_cpus(self, tid: int, cpus: Iterable[int]) -> None:
        """Let thread ``tid`` run on ``cpus`` only."""
        guest = self._guest(tid)
        self.cpus[tid] = tuple(sorted(cpus))
        guest.run.may_run = [self._nodes_of(one) for one in guest.tids]
        self._simulation.schedule()

    def _nodes_of(self, tid: int) -> list[int]:
        mine = set(self.cpus[tid])
        return [node for node, cpus in enumerate(self._by_node) if not mine.isdisjoint(cpus)]

    def _guest(self, tid: int) -> SimulatedGuest:
        for guest in self._guests:
            if tid in guest.tids and guest.run in self._simulation.active:
                return guest
        raise GuestGoneError(f"thread {tid} ended")
