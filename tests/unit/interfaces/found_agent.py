"""The real agent that finds its guests by itself, beside whoever else runs; only the sensor is made up.

Run as: found_agent.py CONFIG [reads|moves|undoes].  What no guest touched says that all of it was touched on
node 0; with "reads", all its pages are read in each window, as real sensors do; with the others, they are on
node 1 and move to node 0, by real calls of a kernel that may have one node: there, or back, takes long.
"""

import contextlib
import logging
import os
import sys
import time
from pathlib import Path
from typing import ClassVar

import numpy as np

from tests.unit.agent.agent_world import HOST, World, batch
from vmplace.actuation import gfn_kernel, undo
from vmplace.actuation.batch import Hvas, NativeKernel, Status
from vmplace.agent.config import read_config
from vmplace.agent.config_sections import Config
from vmplace.agent.discovery import CachedDiscovery
from vmplace.agent.parts import Actuator, Parts
from vmplace.agent.wiring import found_of
from vmplace.interfaces.agent_command import Beat, run_agent, start_log
from vmplace.policy import home
from vmplace.sampling.page_frames import FrameReader
from vmplace.sampling.sample import SampleBatch
from vmplace.topology.guest import GuestTopology
from vmplace.topology.guest_finder import GuestFinder

LOG = logging.getLogger(__name__)
LARGE_S, CALL_S = 3.0, 20.0


class ReadingWorld(World):
    """A sensor that reads guests' page tables, and says nothing of it."""

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Read all pages; raises what a sensor would.  Of others' guests for as long as of a large one."""
        until = time.monotonic() + (LARGE_S if is_others(guest.pid) else 0)
        with contextlib.closing(FrameReader()) as frames, frames.opened(guest) as pagemap:
            read(frames, pagemap, guest)
            while time.monotonic() < until:
                read(frames, pagemap, guest)
        return super().harvest(guest)


class MovedWorld(World):
    """A sensor that says of all memory that it is on node 1, where no vCPU runs."""

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Say so."""
        return batch(guest, 1)


class MovingKernel(NativeKernel):
    """The kernel, as if all pages had been on node 1 before they moved.

    What moves another user's pages to node ``slow_nid`` lasts for CALL_S.
    """

    slow_nid = 0
    moved: ClassVar[dict[int, Hvas]] = {}

    def page_nids(self, pid: int, hvas: Hvas, status: Status) -> None:
        """Ask for all pages."""
        super().page_nids(pid, hvas, status)
        status[(status == 0) & ~np.isin(hvas, self._moved(pid))] = 1

    def move_pages(self, pid: int, hvas: Hvas, nids: Status, status: Status) -> int:
        """Move pages to the node that there is, perhaps again and again."""
        until = time.monotonic()
        if is_others(pid) and nids[0] == self.slow_nid:
            LOG.info("pid=%d long call", pid)
            until += CALL_S
        took = super().move_pages(pid, hvas, np.zeros_like(nids), status)
        while time.monotonic() < until:
            time.sleep(0.05)
            super().move_pages(pid, hvas, np.zeros_like(nids), status)
        went = status == 0
        rest = np.setdiff1d(self._moved(pid), hvas[went])
        self.moved[pid] = np.union1d(rest, hvas[went & (nids == 0)])
        status[went] = nids[went]
        return took

    def _moved(self, pid: int) -> Hvas:
        return self.moved.get(pid, np.zeros(0, np.uint64))


def is_others(pid: int) -> bool:
    """Tell whether a guest is another user's."""
    return Path(f"/proc/{pid}").stat().st_uid != os.getuid()


def read(frames: FrameReader, pagemap: int, guest: GuestTopology) -> None:
    """Read all pages once."""
    for ram in guest.ram:
        for _ in frames.chunks(pagemap, ram):
            pass


WORLDS = {"reads": ReadingWorld, "moves": MovedWorld, "undoes": MovedWorld}


def main() -> None:
    """Run the agent until stopped."""
    finder = GuestFinder()
    does = sys.argv[2] if sys.argv[2:] else ""
    world = WORLDS.get(does, World)([])
    if isinstance(world, MovedWorld):
        MovingKernel.slow_nid = int(does == "undoes")
        for module in (gfn_kernel, undo):
            setattr(module, NativeKernel.__name__, MovingKernel)
    discovery = CachedDiscovery(lambda: HOST, lambda _nid: 1 << 30, lambda: found_of(finder.find(), 1 << 30))

    def open_parts(_config: Config, actuator: Actuator, _beat: Beat) -> Parts:
        return Parts(discovery, world, home.plan, "auto", actuator, holds=finder.holds)

    start_log(verbose=False)
    run_agent(read_config(Path(sys.argv[1])), open_parts)


if __name__ == "__main__":
    main()
