"""Who places memory in a scenario?  Each manager as its users run it.

=============  ==================================================================================
none           nobody: the control
numad          the daemon of that name, at its default interval.  It considers processes with more than
               300 MB resident and more than half a CPU of load (numad.c: MEMORY_THRESHOLD, CPU_THRESHOLD),
               one per interval, and binds all their threads and memory to the nodes it picks.  Hosts that run
               it pin nothing, so the operator's pins are taken off: libvirt's cpusets would refuse its own.
               In the first five minutes after boot it takes every process for one that it has just bound
               (MIN_DELAY_FOR_REEVALUATION counts from 0): it runs with the clock of a host up for a day.
numad-advice   what libvirt does with placement='auto': `numad -w` advises nodes from a guest's size alone,
               its vCPUs are pinned there and its memory follows.  Once, guest by guest.
kernel         automatic NUMA balancing.  A task's scan delay and first period are shortened from 1 s to
               0.1 s and a scan covers the guest's whole memory, because the lab measures seconds, not hours
               (where the kernel offers these settings: CONFIG_SCHED_DEBUG).
interleave     all memory of all guests distributed over all nodes, as numactl --interleave=all does from a
               guest's start; done by the agent of this project with the policy of that name.
vmplace-stock  the agent of this project on a kernel without its patches, as a user installs it first: with
               the kernel's balancing on, which the agent takes or leaves at work.
vmplace        the agent of this project.
=============  ==================================================================================
"""

from typing import Protocol

from lab.kernel import Flavour
from lab.machine import LabHost
from lab.scenario import ManagerName, Scenario
from lab.scenario_agents import InterleavingAgent, StockAgent, VmplaceAgent
from lab.scenario_baselines import KernelBalancing, NoManager, Numad, NumadAdvice
from lab.scenario_figures import ManagerFigures


class Manager(Protocol):
    """One way of placing memory, in one emulated host.

    ``comes_to_rest``: it stops moving pages once all are placed, if guests go on as they do.
    """

    comes_to_rest: bool

    def __init__(self, host: LabHost, scenario: Scenario, speed: float = 1.0) -> None:
        """``speed``: the share of what they declare that guests do on this machine."""

    def start(self) -> None:
        """Let it act; it does when this returns."""

    def rounds(self) -> int | None:
        """Return how often it has looked at all guests and decided; None for one that does not say."""

    def figures(self) -> ManagerFigures:
        """Return its figures; it still runs."""

    def pause(self) -> None:
        """Let it do nothing until it is stopped: its clock is not that of emulated time."""

    def resume(self) -> None:
        """Let it go on."""

    def stop(self) -> None:
        """End it, also when paused; raises LabError if it had died on its own."""


KERNEL_OF: dict[ManagerName, Flavour] = {"vmplace-stock": "stock"}
"""Managers that have a kernel of their own (kernel.py)."""

MANAGERS: dict[ManagerName, type[Manager]] = {
    "none": NoManager,
    "numad": Numad,
    "numad-advice": NumadAdvice,
    "kernel": KernelBalancing,
    "interleave": InterleavingAgent,
    "vmplace-stock": StockAgent,
    "vmplace": VmplaceAgent,
}
