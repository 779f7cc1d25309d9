"""The real agent that finds its guests by itself, beside whoever else runs; only the sensor is made up.

Run as: found_agent.py CONFIG [reads].  What no guest touched says that all of it was touched on node 0;
with "reads", all its pages are read in each window, as real sensors do.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

from tests.unit.agent.agent_world import HOST, World
from vmplace.agent.config import Config, read_config
from vmplace.agent.discovery import Discovery
from vmplace.agent.parts import Actuator, Parts
from vmplace.agent.wiring import found_of
from vmplace.interfaces.agent_command import Beat, run_agent, start_log
from vmplace.policy import home
from vmplace.sampling.page_frames import FrameReader
from vmplace.sampling.sample import SampleBatch
from vmplace.topology.guest import GuestTopology
from vmplace.topology.guest_finder import GuestFinder

LARGE_S = 3.0


class ReadingWorld(World):
    """A sensor that reads guests' page tables, and says nothing of it."""

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Read all pages; raises what a sensor would.  Of others' guests for as long as of a large one."""
        is_others = Path(f"/proc/{guest.pid}").stat().st_uid != os.getuid()
        until = time.monotonic() + (LARGE_S if is_others else 0)
        with contextlib.closing(FrameReader()) as frames, frames.opened(guest) as pagemap:
            read(frames, pagemap, guest)
            while time.monotonic() < until:
                read(frames, pagemap, guest)
        return super().harvest(guest)


def read(frames: FrameReader, pagemap: int, guest: GuestTopology) -> None:
    """Read all pages once."""
    for ram in guest.ram:
        for _ in frames.chunks(pagemap, ram):
            pass


def main() -> None:
    """Run the agent until stopped."""
    finder = GuestFinder()
    world = ReadingWorld([]) if sys.argv[2:] == ["reads"] else World([])
    discovery = Discovery(lambda: HOST, lambda _nid: 1 << 30, lambda: found_of(finder.find(), 1 << 30))

    def open_parts(_config: Config, actuator: Actuator, _beat: Beat) -> Parts:
        return Parts(discovery, world, home.plan, "auto", actuator, holds=finder.holds)

    start_log(verbose=False)
    run_agent(read_config(Path(sys.argv[1])), open_parts)


if __name__ == "__main__":
    main()
