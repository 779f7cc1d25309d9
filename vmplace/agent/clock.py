"""What time is it, and how much CPU time did the agent take?  The loop's only view of either.

A simulated host has a clock of its own (simulate/agent_host.py): the same loop then needs no real time.
"""

import time
from typing import Protocol

from vmplace import cpu_time


class Clock(Protocol):
    """Time as the loop sees it."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def unix_s(self) -> float:
        """Return seconds since 1970, for people."""

    def cpu_s(self) -> float:
        """Return the CPU seconds that the process took."""

    def thread_cpu_ns(self) -> int:
        """Return the CPU nanoseconds that the calling thread took, and what worked in its stead."""


class HostClock:
    """The clocks of the machine."""

    def monotonic(self) -> float:
        """Return CLOCK_MONOTONIC."""
        return time.monotonic()

    def unix_s(self) -> float:
        """Return CLOCK_REALTIME."""
        return time.time()

    def cpu_s(self) -> float:
        """Return CLOCK_PROCESS_CPUTIME_ID, and what worked in the process' stead (held.py)."""
        return time.process_time() + cpu_time.apart_cpu_s()

    def thread_cpu_ns(self) -> int:
        """Return CLOCK_THREAD_CPUTIME_ID, and what worked in the thread's stead (held.py)."""
        return cpu_time.thread_cpu_ns()
