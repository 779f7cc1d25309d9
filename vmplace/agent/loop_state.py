"""What do the stages of the loop share?"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vmplace.actuation.result import Copies
from vmplace.agent.clock import Clock
from vmplace.agent.command_queue import CommandQueue
from vmplace.agent.config_sections import Config
from vmplace.agent.handovers import Handovers
from vmplace.agent.heartbeat import Heartbeat
from vmplace.agent.idle_backoff import IdleBackoff
from vmplace.agent.notes import Notes
from vmplace.agent.orders import Inbox
from vmplace.agent.parts import Parts
from vmplace.agent.planning import CpuBudget
from vmplace.agent.readings import Readings
from vmplace.agent.room import RoomMaker
from vmplace.agent.roster import Roster
from vmplace.agent.state import AgentStatus, PlanSummary
from vmplace.agent.trials import Trials
from vmplace.agent.wakeup import Wakeup
from vmplace.topology.host import HostTopology


@dataclass
class LoopState:
    """What the stages use, and what is known at this moment.

    It belongs to the loop's thread.  Others may read ``status``, ``host`` and ``last_plan``, which are
    replaced whole, and hand over what is for ``inbox``.  ``host`` is what plans see: without the room that is
    kept, None before the first look.  ``by_pages``: guests that the last plan watches itself.
    ``left_to_kernel``: guests that the kernel's balancing places instead.  ``copies``: as counted after the
    last window, None where that failed.
    """

    config: Config
    parts: Parts
    clock: Clock
    wakeup: Wakeup
    heartbeat: Heartbeat
    roster: Roster
    inbox: Inbox
    rooms: RoomMaker
    commands: CommandQueue
    trials: Trials
    readings: Readings
    decisions: CpuBudget
    handovers: Handovers
    status: AgentStatus
    backoff: IdleBackoff
    notes: Notes = field(default_factory=Notes)
    host: HostTopology | None = None
    by_pages: frozenset[str] = frozenset()
    left_to_kernel: frozenset[str] = frozenset()
    last_plan: PlanSummary = field(default_factory=PlanSummary)
    copies: Mapping[str, Copies] | None = None

    def now_ns(self) -> int:
        """Return CLOCK_MONOTONIC in ns."""
        return round(self.clock.monotonic() * 1e9)

    def look_again_soon(self) -> None:
        """End the rests: somebody did something."""
        self.backoff = IdleBackoff(self.config.window_ms, self.config.longest_rest_ms)
