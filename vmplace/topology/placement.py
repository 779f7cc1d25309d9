"""The placement fd of a guest's VM, on kernels built with kvm-patches/; VMMs need no change.

pidfd_getfd(2) borrows the VM's descriptor from the VMM, for the one ioctl that KVM allows to other processes.
Interface: kvm-patches/kvm_placement.h.
"""

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vmplace import held, native
from vmplace.errors import GuestGoneError, UnsupportedHostError
from vmplace.held import HeldError
from vmplace.topology.guest import GuestTopology
from vmplace.topology.kvm_statistics import parse_statistics
from vmplace.topology.procfs import PROC, read_descriptors, read_start_time
from vmplace.topology.vcpus import VM_DESCRIPTOR

T = TypeVar("T")

KVM_CREATE_VM, KVM_CHECK_EXTENSION = 0xAE01, 0xAE03
KVM_CAP_PLACEMENT = 0x706C
KVM_PLACEMENT_STATS_FD = 0xAEF7
MOST_STATISTICS_BYTES = 1 << 16
FEATURE_ROOTS, FEATURE_HARVEST, FEATURE_REPLICATE, FEATURE_MOVE = 1, 2, 4, 8
FEATURE_HINTS, FEATURE_STATS, FEATURE_REPLICATE_HUGE = 16, 32, 64
FEATURES = {
    FEATURE_ROOTS: "node roots",
    FEATURE_HARVEST: "harvests",
    FEATURE_REPLICATE: "replicas",
    FEATURE_MOVE: "moves",
    FEATURE_HINTS: "hint faults",
    FEATURE_STATS: "statistics",
    FEATURE_REPLICATE_HUGE: "replicas of huge pages",
}
CURE = "boot a kernel built with kvm-patches/ and CONFIG_KVM_PLACEMENT"
TDP_MMU_CURE = (
    "end all guests; modprobe -r kvm_intel kvm; modprobe kvm tdp_mmu=1; modprobe kvm_intel eptad=1"
    " (AMD: kvm_amd, without eptad)"
)


@dataclass(frozen=True)
class Slot:
    """One memslot: ``npages`` guest frames from ``base_gfn``, at ``hva`` in the VMM; ``as_id`` 1 is SMM's."""

    base_gfn: int
    npages: int
    hva: int
    as_id: int


@dataclass(frozen=True)
class PlacementInfo:
    """What KVM can do for this VM and what it is made of; node sets are bitmaps."""

    features: int
    nodes: int
    root_nodes: int
    slots: tuple[Slot, ...]


class Placement:
    """A placement fd; KVM undoes what was set up through it when its last user closes it."""

    def __init__(self, fd: int, close: Callable[[], None] | None = None, pid: int = 0) -> None:
        """``pid`` is the VMM's, which may block the ioctls (held.py)."""
        self.fd, self.pid = fd, pid
        self._close = close or (lambda: _closed(fd, pid))

    def call(self, step: Callable[[int], T]) -> T:
        """Return what ``step`` returns of the descriptor; HeldError if the VMM blocks it."""
        return held.bounded_on(self.pid, self.fd, step)

    def info(self) -> PlacementInfo:
        """Return what the VM is now."""
        features, nodes, root_nodes, _, _, slots, _ = self.call(native.placement_info)
        of_guest = tuple(Slot(gfn, npages, hva, slot >> 16) for gfn, npages, hva, slot, _, _ in slots)
        return PlacementInfo(features, nodes, root_nodes, of_guest)

    def statistics(self) -> dict[str, int]:
        """Return what KVM counted since the VM began, by the names in placement.rst."""
        return self.call(_statistics)

    def close(self) -> None:
        """Close the descriptor; harmless when done twice."""
        if self.fd >= 0:
            self._close()
        self.fd = -1


def _statistics(fd: int) -> dict[str, int]:
    file = fcntl.ioctl(fd, KVM_PLACEMENT_STATS_FD)
    try:
        return parse_statistics(os.pread(file, MOST_STATISTICS_BYTES, 0))
    finally:
        os.close(file)


def _closed(fd: int, pid: int) -> None:
    """Close a descriptor with which KVM may have much to give back: whoever waits for that waits apart."""
    with contextlib.suppress(HeldError):
        held.closed(pid, fd)


@dataclass
class _Shared:
    """A placement fd that several parts of this program use: KVM lets one fd own a VM's placement."""

    fd: int
    pid: int
    users: int = 0


_SHARED: dict[tuple[int, int], _Shared] = {}
"""By the identity of the guest."""
_SHARED_LOCK = threading.Lock()


def _user_of(identity: tuple[int, int]) -> Placement:
    shared = _SHARED[identity]
    shared.users += 1
    return Placement(shared.fd, lambda: _leave(identity), shared.pid)


def _leave(identity: tuple[int, int]) -> None:
    with _SHARED_LOCK:
        shared = _SHARED[identity]
        shared.users -= 1
        if shared.users:
            return
        del _SHARED[identity]
    _closed(shared.fd, shared.pid)


def probe_features(dev: Path = Path("/dev")) -> int:
    """Return FEATURE_* of this host's KVM, asked of an empty VM; raises UnsupportedHostError without any."""
    try:
        kvm = os.open(dev / "kvm", os.O_RDWR | os.O_CLOEXEC)
    except OSError as err:
        raise UnsupportedHostError(
            f"{dev / 'kvm'}: {err.strerror}", hint="run as root on a KVM host"
        ) from err
    try:
        if fcntl.ioctl(kvm, KVM_CHECK_EXTENSION, KVM_CAP_PLACEMENT) <= 0:
            raise UnsupportedHostError("KVM has no placement fd", hint=CURE)
        vm = fcntl.ioctl(kvm, KVM_CREATE_VM, 0)
        try:
            placement = _opened(os.getpid(), vm)
        finally:
            os.close(vm)
        try:
            return placement.info().features
        finally:
            placement.close()
    finally:
        os.close(kvm)


def open_placement(guest: GuestTopology, proc: Path = PROC) -> Placement:
    """Return the placement fd of the guest's VM; raises GuestGoneError, UnsupportedHostError.

    All that is opened of a guest at one time is one fd: what it set up is gone once all are closed.
    """
    with _SHARED_LOCK:
        if guest.identity not in _SHARED:
            _SHARED[guest.identity] = _Shared(_opened_of(guest, proc).fd, guest.pid)
        return _user_of(guest.identity)


def owned_by_another(guest: GuestTopology) -> UnsupportedHostError:
    """Return what to raise for EBUSY: somebody else's fd owns the placement of the guest."""
    return UnsupportedHostError(
        f"guest {guest.name}: another program places its memory",
        hint="end that program, or have it close its placement fd",
    )


def _opened_of(guest: GuestTopology, proc: Path) -> Placement:
    descriptors = read_descriptors(guest.pid, proc)
    for fd in sorted(fd for fd, target in descriptors.items() if target == VM_DESCRIPTOR):
        placement = _opened(guest.pid, fd)
        try:
            # Opened first, compared then: the descriptor belongs to the process that is compared.
            if read_start_time(guest.pid, proc) != guest.start_time:
                raise GuestGoneError(f"guest {guest.name}: pid {guest.pid} is another process now")
            # QEMU holds more VMs than the guest's while it probes.
            is_guests = bool(placement.info().slots)
        except BaseException:
            placement.close()
            raise
        if is_guests:
            return placement
        placement.close()
    raise GuestGoneError(f"guest {guest.name}: process {guest.pid} holds no VM any more")


def _opened(pid: int, vm_fd: int) -> Placement:
    try:
        fd = held.opened(pid, lambda: native.placement_open(pid, vm_fd))
        return Placement(fd, pid=pid)
    except OSError as err:
        if err.errno in {errno.ESRCH, errno.EBADF}:
            raise GuestGoneError(f"process {pid} ended, or holds no VM any more") from err
        if err.errno == errno.EPERM:
            raise UnsupportedHostError(
                "the placement fd is refused", hint="run as root, or with CAP_SYS_ADMIN and CAP_SYS_PTRACE"
            ) from err
        # A stock KVM answers every ioctl of another process with EIO.
        raise UnsupportedHostError(f"KVM has no placement fd ({err.strerror})", hint=CURE) from err
