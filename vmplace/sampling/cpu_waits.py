"""How long do a guest's vCPUs wait for a CPU?  By /proc/PID/task/TID/schedstat, which nothing can hold up.

1. Asked are vCPUs that may run on several CPUs; of many some, at equal distances.
2. The kernel counts as waiting, too, that a quota lets nobody run.  So nothing is said of guests with a
   quota.  That is asked for each ``QUOTA_S``, and again if somebody waits.
3. Guests that hardly run count as if one vCPU ran for a tenth of the time: that they wait hurts nobody.

Source: Documentation/scheduler/sched-stats.rst; proc_pid_schedstat (fs/proc/base.c, 6.12), which takes no
lock of the process.  A kernel without CONFIG_SCHED_INFO does not tell.  cpu.max: cgroup-v2.rst.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from vmplace.sampling.counters_perf import spread
from vmplace.thread_waits import ran_and_waited_ns
from vmplace.topology.guest import GuestTopology, Identity
from vmplace.topology.procfs import PROC
from vmplace.topology.thread_cgroup import SYSFS, iter_texts

MOST_THREADS = 16
"""A read takes 3 to 8 microseconds."""
LEAST_RUN = 0.1
QUOTA_S, SURE_S = 30.0, 1.0
MANY = 0.03
"""Waits beyond which the quota is looked at again, if the last answer is older than SURE_S."""

Times = Mapping[int, tuple[int, int]]


class CpuWaits:
    """What each guest's vCPU threads had run and waited when they were last asked."""

    def __init__(
        self, proc: Path = PROC, sysfs: Path = SYSFS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._proc, self._sysfs, self._clock = proc, sysfs, clock
        self._last: dict[Identity, tuple[float, Times]] = {}
        self._quotas: dict[Identity, tuple[float, bool]] = {}

    def ratio(self, guest: GuestTopology) -> float | None:
        """Return the ns that vCPUs waited for each ns that they ran, since the last call.

        None in the first call, of a guest that is gone or has a quota, and if the kernel does not tell.
        """
        tids = spread(tuple(vcpu.tid for vcpu in guest.vcpus if len(vcpu.cpus) > 1), MOST_THREADS)
        if not tids or self._has_quota(guest, tids[0], QUOTA_S):
            self._last.pop(guest.identity, None)
            return None
        now_s, now = self._clock(), self._times(guest, tids)
        before_s, before = self._last.get(guest.identity, (now_s, {}))
        self._last[guest.identity] = now_s, now
        both = now.keys() & before.keys()
        ran, waited = (sum(now[tid][one] - before[tid][one] for tid in both) for one in (0, 1))
        counted = max(float(ran), LEAST_RUN * (now_s - before_s) * 1e9)
        if not both or not counted or waited < 0:
            return None
        waits = waited / counted
        return None if waits > MANY and self._has_quota(guest, tids[0], SURE_S) else waits

    def forget(self, guest: GuestTopology) -> None:
        """Let go of a guest that ended."""
        self._last.pop(guest.identity, None)
        self._quotas.pop(guest.identity, None)

    def _times(self, guest: GuestTopology, tids: tuple[int, ...]) -> Times:
        task = self._proc / str(guest.pid) / "task"
        found = ((tid, ran_and_waited_ns(task / str(tid) / "schedstat")) for tid in tids)
        return {tid: times for tid, times in found if times is not None}

    def _has_quota(self, guest: GuestTopology, tid: int, sure_s: float) -> bool:
        known = self._quotas.get(guest.identity)
        if known is None or self._clock() - known[0] >= sure_s:
            names = "cpu.max", "cpu.cfs_quota_us"
            texts = iter_texts(guest.pid, tid, "cpu", *names, self._proc, self._sysfs)
            has_quota = any(text.split()[:1] not in (["max"], ["-1"], []) for text in texts)
            known = self._quotas[guest.identity] = self._clock(), has_quota
        return known[1]
