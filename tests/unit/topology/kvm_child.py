"""A small real KVM guest: ``kvm_child.py MEMORY VCPUS [NAMES]``; prints hva and tids, runs until killed.

MEMORY is private, mlocked, memfd, or hugetlb.  NAMES is a format such as ``CPU {}/KVM``.  A file that MAPFILE
(environment) names is opened and mapped; NORESERVE_TIB, or NORESERVE_MIB, are mapped and hardly touched; of
MAPPINGS there are so many more.
The guest halts at once, so its vCPU threads sleep inside KVM_RUN; with ``busy`` for MEMORY vCPU 0 spins.
Nothing of vmplace is used here: this is the truth that the tests compare with.
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
import sys
import threading
import time
from pathlib import Path

RAM_BYTES = 96 << 20
KVM_CREATE_VM, KVM_CREATE_IRQCHIP, KVM_CREATE_VCPU, KVM_RUN = 0xAE01, 0xAE60, 0xAE41, 0xAE80
KVM_SET_USER_MEMORY_REGION = 0x4020AE46
KVM_SET_REGS, KVM_GET_SREGS, KVM_SET_SREGS = 0x4090AE82, 0x8138AE83, 0x4138AE84
HALT_FOREVER, SPIN = b"\xf4\xeb\xfd", b"\xeb\xfe"
MAP_HUGETLB, MAP_NORESERVE = 0x40000, 0x4000


def make_ram(kind: str) -> mmap.mmap:
    """Map the RAM in the wanted way, and touch it all."""
    if kind == "memfd":
        fd = os.memfd_create("guest-ram")
        os.ftruncate(fd, RAM_BYTES)
        ram = mmap.mmap(fd, RAM_BYTES, mmap.MAP_SHARED)
    else:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (MAP_HUGETLB if kind == "hugetlb" else 0)
        ram = mmap.mmap(-1, RAM_BYTES, flags)
    for offset in range(0, RAM_BYTES, 4096):
        ram[offset] = 1
    if kind == "mlocked":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mlock(ctypes.c_void_p(address_of(ram)), ctypes.c_size_t(RAM_BYTES)):
            raise OSError(ctypes.get_errno(), "mlock")
    return ram


def address_of(ram: mmap.mmap) -> int:
    """Return the hva of the mapping."""
    return ctypes.addressof(ctypes.c_char.from_buffer(ram))


def map_file() -> list[object]:
    """Open and map the file that MAPFILE names."""
    if b"MAPFILE" not in os.environb:
        return []
    fd = os.open(os.environb[b"MAPFILE"], os.O_RDWR)
    return [mmap.mmap(fd, 0, mmap.MAP_PRIVATE)]


def map_untouched() -> list[object]:
    """Map memory, and touch a page of each quarter."""
    size = int(os.environ.get("NORESERVE_TIB", "0")) << 40 | int(os.environ.get("NORESERVE_MIB", "0")) << 20
    if not size:
        return []
    room = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    for quarter in range(4):
        room[quarter * size // 4] = 1
    return [room]


def map_many() -> list[object]:
    """Split a mapping by turns of its protection."""
    pages = int(os.environ.get("MAPPINGS", "0"))
    if not pages:
        return []
    room = mmap.mmap(-1, pages * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, pages, 2):
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(address_of(room) + page * 4096), 4096, mmap.PROT_READ):
            raise OSError("mprotect")
    return [room]


def run_vcpu(fd: int, vcpu_id: int, tids: dict[int, int], names: str | None) -> None:
    """Start the vCPU at address 0 in real mode and stay in it."""
    if names:
        Path("/proc/thread-self/comm").write_text(names.format(vcpu_id))
    sregs = bytearray(312)
    fcntl.ioctl(fd, KVM_GET_SREGS, sregs)
    struct.pack_into("<QIH", sregs, 0, 0, 0xFFFF, 0)
    fcntl.ioctl(fd, KVM_SET_SREGS, bytes(sregs))
    fcntl.ioctl(fd, KVM_SET_REGS, struct.pack("<18Q", *[0] * 17, 2))
    # Only now: who waits for all of them finds them named.
    tids[vcpu_id] = threading.get_native_id()
    while True:
        # A process that is stopped and goes on leaves KVM_RUN.
        with contextlib.suppress(InterruptedError):
            fcntl.ioctl(fd, KVM_RUN, 0)


def runs_guest(tid: int) -> bool:
    """Tell whether a vCPU's thread is in KVM_RUN, as far as the kernel tells: not of one that is on a CPU."""
    if not tid:
        return False
    try:
        fields = Path(f"/proc/self/task/{tid}/syscall").read_text().split()
    except OSError:
        return True
    return fields[0] == "running" or (len(fields) > 2 and int(fields[2], 16) == KVM_RUN)


def main(kind: str, vcpus: int, names: str | None = None) -> None:
    """Make the guest, print ``hva`` and the tids, wait."""
    kept = [*map_file(), *map_untouched(), *map_many()]
    vm = fcntl.ioctl(os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC), KVM_CREATE_VM, 0)
    ram = make_ram(kind)
    fcntl.ioctl(vm, KVM_SET_USER_MEMORY_REGION, struct.pack("<IIQQQ", 0, 0, 0, RAM_BYTES, address_of(ram)))
    fcntl.ioctl(vm, KVM_CREATE_IRQCHIP, 0)
    code = SPIN if kind == "busy" else HALT_FOREVER
    ram[: len(code)] = code
    tids: dict[int, int] = {}
    for vcpu_id in range(vcpus):
        fd = fcntl.ioctl(vm, KVM_CREATE_VCPU, vcpu_id)
        threading.Thread(target=run_vcpu, args=(fd, vcpu_id, tids, names), daemon=True).start()
    while not all(runs_guest(tids.get(vcpu_id, 0)) for vcpu_id in range(vcpus)):
        time.sleep(0.001)
    print(address_of(ram), *(tids[vcpu_id] for vcpu_id in range(vcpus)), flush=True)
    threading.Event().wait()
    del kept


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:4])
