"""Does an emulated host stand still as it boots?  Pure.

Linux loses timers of idle CPUs there now and then (6.12.117, hosts of two and of four nodes): nothing that
waits for one goes on, and the emulator, which otherwise is busy from its start to the end of the boot, uses
no CPU time.  Some such hosts say so on their console, after 20 s.
"""

from dataclasses import dataclass

SAID = "timer wakeup didn't happen"
STILL_S = 20.0
STILL_RATIO = 0.1
"""One that stood still used 0.04 of a CPU, on timers of its devices."""


@dataclass
class Standstill:
    """Watches a boot from ``since_s`` on, when the emulator had used ``cpu_s``."""

    since_s: float
    cpu_s: float = 0.0

    def lasts(self, now_s: float, cpu_s: float) -> bool:
        """Take in the CPU seconds used so far; tell whether there were next to none in the last 20 s."""
        if cpu_s - self.cpu_s > STILL_RATIO * STILL_S:
            self.since_s, self.cpu_s = now_s, cpu_s
        return now_s - self.since_s > STILL_S
