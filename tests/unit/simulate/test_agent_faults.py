"""Whatever goes wrong under the agent, by seed: nobody's failure stops another's, and undo is exact.

A failing seed is repeated by the name of its test: pytest FILE -k "seed and [7]".
"""

import errno
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.unit.simulate.small_trace import private_pages
from tests.unit.simulate.test_agent_run import KVM, LONG, simulation_of, spec_of
from vmplace.errors import VmplaceError
from vmplace.simulate.agent_host import SimulatedGuest
from vmplace.simulate.agent_run import AgentHost, AgentSetup, quiet
from vmplace.simulate.simulation import Simulation

SEEDS = 8
KERNEL = ("move_pages", "page_nids", "replicate", "statistics", "info", "open")
LOOKS = ("host", "guests", "arm", "read", "harvest")


class Killed(BaseException):
    """The loop ends here, as by an error that nobody catches; what Python cleans up is still cleaned up."""


class Faults:
    """Lets steps of the host go wrong with a small chance; the same ones for the same seed."""

    def __init__(self, simulation: Simulation, seed: int) -> None:
        self._simulation, self._chance = simulation, np.random.default_rng(seed)
        self.on, self.kills = True, 1

    def before(self, step: str, guest: SimulatedGuest | None) -> None:
        if not self.on or self._chance.random() > 0.05:
            return
        kind = int(self._chance.integers(4))
        if kind == 0 and self.kills:
            self.kills -= 1
            raise Killed
        if kind == 1 and guest is not None and guest.name == "victim":
            self._end(guest)
        elif step in KERNEL:
            raise OSError(int(self._chance.choice([errno.ENOMEM, errno.ENODEV, errno.EIO])), "made up")
        elif step in LOOKS:
            raise VmplaceError(f"{step}: made up")

    def _end(self, guest: SimulatedGuest) -> None:
        """End the guest's process, whatever is being done with it."""
        if guest.run in self._simulation.active:
            self._simulation.active.remove(guest.run)
            self._simulation.finished[guest.name] = self._simulation.now


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("policy", ["interleave", "auto"])
def test_undo_is_exact_whatever_went_wrong(tmp_path: Path, policy: str, seed: int) -> None:
    pages = private_pages(heat=LONG, windows=20)
    simulation = simulation_of(spec_of(pages, "stays"), spec_of(pages, "victim"))
    faults = Faults(simulation, seed)
    host = AgentHost(simulation, AgentSetup(policy, KVM, seed=seed, trouble=faults), tmp_path)
    before = simulation.guests[0].node.copy()
    for _ in range(2):
        with quiet(), closing(host.actuator()) as actuator:
            try:
                host.agent(actuator).run(windows=6)
            except Killed:
                continue
            assert host.simulation.guests[0] in simulation.active
    faults.on = False
    with quiet(), closing(host.actuator()) as last:
        last.undo(None, lambda: False)
    assert (simulation.guests[0].node == before).all()


def test_the_faults_do_not_keep_everything_from_moving(tmp_path: Path) -> None:
    """The control: without the undo, pages are elsewhere, and faults did happen."""
    simulation = simulation_of(spec_of(private_pages(heat=LONG, windows=20), "stays"))
    faults = Faults(simulation, 3)
    faults.kills, before = 0, simulation.guests[0].node.copy()
    host = AgentHost(simulation, AgentSetup("auto", KVM, trouble=faults), tmp_path)
    with quiet(), closing(host.actuator()) as actuator:
        agent = host.agent(actuator)
        agent.run(windows=8)
    assert (simulation.guests[0].node != before).any()
