"""Which threads of a VMM are vCPUs?

1. By name: QEMU, cloud-hypervisor, Firecracker and crosvm name them.  (QEMU does under libvirt, and
   with ``-name …,debug-threads=on``.)
2. By KVM: debugfs has the tid of every vCPU (6.12, virt/kvm/kvm_main.c, kvm_create_vcpu_debugfs).
3. By what a thread does: a halted vCPU waits in ioctl(vCPU descriptor, KVM_RUN); a busy one has guest
   time in its stat (field 43), and VMMs make these threads in the order of the vCPUs.

Names count only if they are complete, and 2 and 3 only if they explain every vCPU: a guest of which half
the vCPUs are known would be placed for that half.  Any process may name its threads so: if more threads have
such names than KVM has vCPUs for the process, the names do not count.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from vmplace import held
from vmplace.errors import OutsideError
from vmplace.outside import read_text, read_whole, whole
from vmplace.topology.cpulist import parse_cpulist
from vmplace.topology.procfs import PROC, read_guest_ticks, read_status

THREAD_NAME = re.compile(r"CPU ([0-9]{1,5})/KVM|(?:fc_vcpu |crosvm_vcpu|vcpu[-_ ]?)([0-9]{1,5})")
VCPU_DESCRIPTOR = re.compile(r"anon_inode:kvm-vcpu:([0-9]{1,5})")
VM_DESCRIPTOR = "anon_inode:kvm-vm"
IOCTL_NUMBER = "16"  # x86-64
KVM_RUN = 0xAE80
MOST = (1 << 64) - 1


def find_vcpu_tids(
    pid: int,
    descriptors: Mapping[int, str],
    threads: Mapping[int, str],
    proc: Path = PROC,
    debugfs: Path = Path("/sys/kernel/debug"),
) -> dict[int, int]:
    """Return the tid of each vCPU by its id; empty while they are not known.

    Raises HeldError if the process holds up whoever asks what its threads do.
    """
    named = {
        int(match[1] or match[2]): tid
        for tid, name in threads.items()
        if (match := THREAD_NAME.fullmatch(name))
    }
    vcpus = sum(1 for target in descriptors.values() if VCPU_DESCRIPTOR.fullmatch(target))
    if 0 < len(named) <= vcpus:
        return dict(sorted(named.items()))
    vcpu_fds = {
        fd: int(match[1])
        for fd, target in descriptors.items()
        if (match := VCPU_DESCRIPTOR.fullmatch(target))
    }
    wanted = set(vcpu_fds.values())
    found = _ask_debugfs(descriptors, threads, debugfs) if wanted else {}
    if not _is_whole(found, wanted) and wanted:
        found = _ask_threads(pid, vcpu_fds, threads, proc)
    return dict(sorted(found.items())) if _is_whole(found, wanted) else {}


def _is_whole(found: Mapping[int, int], wanted: set[int]) -> bool:
    return set(found) == wanted and len(set(found.values())) == len(wanted)


def read_affinity(pid: int, tid: int, proc: Path = PROC) -> tuple[int, ...]:
    """Return the CPUs the thread may run on, ascending; raises GuestGoneError if it ended."""
    return parse_cpulist(read_status(pid, proc, tid=tid).get("Cpus_allowed_list", ""))


def _ask_debugfs(descriptors: Mapping[int, str], threads: Mapping[int, str], debugfs: Path) -> dict[int, int]:
    """Return what kvm/CREATOR-FD/vcpuN/pid says; CREATOR, the thread that made the VM, may have ended."""
    found = {}
    for fd in (fd for fd, target in descriptors.items() if target == VM_DESCRIPTOR):
        for path in (debugfs / "kvm").glob(f"*-{fd}/vcpu*/pid"):
            try:
                tid, vcpu_id = read_whole(path), whole(path.parts[-2].removeprefix("vcpu"))
            except (OSError, OutsideError):
                continue
            # Descriptors of two VMMs may bear one number: the thread tells whose it is.
            if tid in threads:
                found[vcpu_id] = tid
    return found


def _ask_threads(
    pid: int, vcpu_fds: Mapping[int, int], threads: Mapping[int, str], proc: Path
) -> dict[int, int]:
    def ask() -> tuple[dict[int, int], list[int]]:
        found = _ask_waiting_threads(pid, vcpu_fds, threads, proc)
        rest = sorted(set(threads) - set(found.values()))
        return found, [tid for tid in rest if read_guest_ticks(pid, tid, proc)]

    found, busy = held.bounded(pid, ask)
    missing = sorted(set(vcpu_fds.values()) - set(found))
    # Fewer: some have not run long enough for a tick.  More: one halted since the first look.
    return found | dict(zip(missing, busy, strict=True)) if len(busy) == len(missing) else found


def _ask_waiting_threads(
    pid: int, vcpu_fds: Mapping[int, int], threads: Mapping[int, str], proc: Path
) -> dict[int, int]:
    found: dict[int, int] = {}
    for tid in threads:
        try:
            fields = read_text(proc / f"{pid}/task/{tid}/syscall").split()
        except OSError:
            continue
        # "running" instead of a number: no answer this time.  KVM's own worker inherits the registers
        # of the vCPU that made it (kernel/vhost_task.c), but has no stack pointer.
        if len(fields) != 9 or fields[0] != IOCTL_NUMBER:
            continue
        fd, request, stack = (whole(fields[at].removeprefix("0x"), base=16, most=MOST) for at in (1, 2, 7))
        if request == KVM_RUN and stack:
            vcpu_id = vcpu_fds.get(fd)
            if vcpu_id is not None:
                found[vcpu_id] = tid
    return found
