"""Give vCPU threads back the CPUs that they had, as far as these are there.

1. CPUs may have gone offline since vmplace tied a thread: sched_getaffinity(2) leaves them out, and of a
   thread whose last CPU goes, the kernel drops the tie (select_fallback_rq).
2. Its cpuset may have other CPUs now.  The kernel keeps what was set, shows what is in both, or all of the
   cpuset if nothing is, and goes back to what was set once the cpuset allows it (user_cpus_ptr, Linux 6.2).

Neither is somebody else's change.  Who pins by libvirt changes cpuset and affinity, which looks like 2.  That
pin stays all the same, as the cpuset does, unless it leaves a thread none of the CPUs that it had before
vmplace: then nothing is given back, and the journal keeps the record.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from vmplace.actuation.affinity import KernelCpus, LibvirtConnection, ThreadCpus, set_cpus_by_libvirt
from vmplace.actuation.cpusets import read_cpuset
from vmplace.actuation.identity import PROC, read_start_time
from vmplace.actuation.journal_records import AffinityRecord
from vmplace.errors import GuestGoneError, VmplaceError
from vmplace.topology.sysfs import read_online_cpus

SYSFS = Path("/sys")


@dataclass
class VcpusUndoing:
    """The undo of one guest's ties; ``offline``: CPUs that a thread had and cannot have now.

    ``counts`` has "vcpus" that got their CPUs back, and "others_vcpus" that were given other CPUs since.
    """

    libvirt: LibvirtConnection | None = None
    proc: Path = PROC
    sysfs: Path = SYSFS
    counts: Counter[str] = field(default_factory=Counter)
    offline: set[int] = field(default_factory=set)
    threads: ThreadCpus = field(default_factory=KernelCpus)

    def restore(self, records: Iterable[AffinityRecord], failures: list[str]) -> list[AffinityRecord]:
        """Give all threads their CPUs back; return the records of those that would not take them."""
        rest = []
        for record in records:
            try:
                if not self._restore(record):
                    rest.append(record)
            except GuestGoneError:
                continue
            except Exception as err:
                # Pages, and the other threads, go back all the same.
                failures.append(f"guest {record.guest.name}, vCPU {record.vcpu_id}: {err}")
                rest.append(record)
        return rest

    def _restore(self, record: AffinityRecord) -> bool:
        """Give one thread its CPUs back if they are to; return whether the record is done with."""
        if read_start_time(record.guest.pid, self.proc, tid=record.tid) != record.thread_start_time:
            return True
        online = read_online_cpus(self.sysfs) or frozenset((*record.cpus, *(record.set_to or ())))
        usable = self._usable(record, online)
        if record.set_to is not None and not self._is_ours(record, usable, online - usable):
            return True
        if record.set_to is not None and usable.isdisjoint(record.cpus) and online.intersection(record.cpus):
            self.counts["others_vcpus"] += 1
            return False
        missing = set(record.cpus) - online
        if missing and not online.intersection(record.cpus):
            raise VmplaceError(f"its CPUs {sorted(missing)} are offline: undo again once they are back")
        if record.by_libvirt and self.libvirt is not None:
            set_cpus_by_libvirt(self.libvirt, record.guest.name, record.vcpu_id, record.cpus)
        else:
            self.threads.set_cpus(record.tid, record.cpus)
        self.counts["vcpus"] += 1
        self.offline |= missing
        return True

    def _usable(self, record: AffinityRecord, online: frozenset[int]) -> frozenset[int]:
        """Return the CPUs that the thread could use now, whatever is set."""
        if record.by_libvirt:
            # Its tie is a cpuset, too.
            return online
        cpuset = read_cpuset(record.guest.pid, record.tid, self.proc, self.sysfs)
        return online.intersection(cpuset) if cpuset else online

    def _is_ours(self, record: AffinityRecord, usable: frozenset[int], hidden: frozenset[int]) -> bool:
        """Tell whether a thread has the CPUs that vmplace gave it, or none of these are left to it."""
        now, was = self.threads.read_cpus(record.tid), usable.intersection(record.cpus)
        if now in (was, set(record.cpus)):
            # What sched_getaffinity leaves out may still be missing, or set by vmplace.
            return was != set(record.cpus) or not hidden.isdisjoint(record.set_to or ())
        for cpus in (record.set_to, record.or_set_to):
            if cpus is not None and now in (usable.intersection(cpus), set(cpus)):
                return True
        if usable.isdisjoint(record.set_to or ()) and now >= was:
            return True
        self.counts["others_vcpus"] += 1
        return False
