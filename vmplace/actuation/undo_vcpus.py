"""Give vCPU threads back the CPUs that they had, as far as these are there.

CPUs may have gone offline since vmplace tied a thread: sched_getaffinity(2) leaves them out, and of a thread
whose last CPU goes, the kernel drops the tie (select_fallback_rq).  Neither is somebody else's change.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from vmplace.actuation.affinity import KernelCpus, LibvirtConnection, ThreadCpus, set_cpus_by_libvirt
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
                self._restore(record)
            except GuestGoneError:
                continue
            except Exception as err:
                # Pages, and the other threads, go back all the same.
                failures.append(f"guest {record.guest.name}, vCPU {record.vcpu_id}: {err}")
                rest.append(record)
        return rest

    def _restore(self, record: AffinityRecord) -> None:
        if read_start_time(record.guest.pid, self.proc, tid=record.tid) != record.thread_start_time:
            return
        online = read_online_cpus(self.sysfs) or frozenset((*record.cpus, *(record.set_to or ())))
        if record.set_to is not None and not self._is_ours(record, online):
            return
        missing = set(record.cpus) - online
        if missing and not online.intersection(record.cpus):
            raise VmplaceError(f"its CPUs {sorted(missing)} are offline: undo again once they are back")
        if record.by_libvirt and self.libvirt is not None:
            set_cpus_by_libvirt(self.libvirt, record.guest.name, record.vcpu_id, record.cpus)
        else:
            self.threads.set_cpus(record.tid, record.cpus)
        self.counts["vcpus"] += 1
        self.offline |= missing

    def _is_ours(self, record: AffinityRecord, online: frozenset[int]) -> bool:
        """Tell whether a thread has the CPUs that vmplace gave it, or none of these are left to it."""
        now, was = self.threads.read_cpus(record.tid), online.intersection(record.cpus)
        if now in (was, set(record.cpus)):
            # What sched_getaffinity leaves out may still be missing.
            return was != set(record.cpus)
        for cpus in (record.set_to, record.or_set_to):
            if cpus is not None and now in (online.intersection(cpus), set(cpus)):
                return True
        if online.isdisjoint(record.set_to or ()) and now >= was:
            return True
        self.counts["others_vcpus"] += 1
        return False
