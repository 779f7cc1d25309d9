"""Inside the emulated host: a vCPU that touches the same pages over and over, and notes how long it waited.

It runs in a thread of its own from ``probing`` to the end of that block.
"""

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.kvm_vm import CPU_OF_NODE, BenchVm

CODE_AT = 0x100
SLOT, STOP, PASSES, LONGEST = 0x700, 0x704, 0x708, 0x800
READ, WRITE = bytes.fromhex("8b16"), bytes.fromhex("8906")
NODE = 1
"""Where the vCPU runs: the process that moves and harvests is on node 0."""

# start: mov esi, ebx
# next:  mov edi, [SLOT]; rdtsc; mov ecx, eax; (touch [esi]); rdtsc; sub eax, ecx
#        cmp eax, [LONGEST + edi * 4]; jbe skip; mov [LONGEST + edi * 4], eax
# skip:  add esi, 4096; cmp esi, ebp; jb next; inc [PASSES]; cmp [STOP], 0; je start; hlt
BEFORE_TOUCH = bytes.fromhex("89de 8b3d00070000 0f31 89c1")
AFTER_TOUCH = bytes.fromhex(
    "0f31 29c8 3b04bd00080000 7607 8904bd0008000081c600100000 39ee 72d6 ff0508070000 833d0407000000 74c5 f4"
)


class Probe:
    """What the vCPU tells while it runs; a touch longer than 2^32 ticks of its TSC looks shorter."""

    def __init__(self, vm: BenchVm) -> None:
        self._hva = vm.hva
        self._ticks_per_us = vm.vcpu.tsc_khz() / 1000

    @property
    def passes(self) -> int:
        """Return how often the vCPU has touched all pages, modulo 2^32."""
        return self._word(PASSES).value

    @contextmanager
    def watching(self, stalls: list[float]) -> Iterator[None]:
        """Append the longest touch (us) that begins in this block."""
        self._word(LONGEST + 4).value = 0
        self._word(SLOT).value = 1
        yield
        self._word(SLOT).value = 0
        # What the vCPU waits for now is noted when it goes on.
        self.wait_passes(2)
        stalls.append(self._word(LONGEST + 4).value / self._ticks_per_us)

    def wait_passes(self, count: int) -> None:
        """Wait until the vCPU has touched all pages so often."""
        before, deadline = self.passes, time.monotonic() + 60
        while (self.passes - before) % (1 << 32) < count:
            if time.monotonic() > deadline:
                raise RuntimeError("the vCPU stands still")
            time.sleep(0.001)

    def _word(self, at: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_address(self._hva + at)

    def stop(self) -> None:
        """Have the vCPU halt after this pass."""
        self._word(STOP).value = 1


@contextmanager
def probing(vm: BenchVm, first: int, end: int, touch: bytes = WRITE) -> Iterator[Probe]:
    """Have the vCPU touch pages [first, end) on node NODE, in this block."""
    code = BEFORE_TOUCH + touch + AFTER_TOUCH
    ctypes.memset(vm.hva + SLOT, 0, 4096 - SLOT)
    ctypes.memmove(vm.hva + CODE_AT, code, len(code))

    def run() -> None:
        os.sched_setaffinity(0, {CPU_OF_NODE[NODE]})
        vm.vcpu.execute(CODE_AT, rbx=first * 4096, rbp=end * 4096)

    thread, probe = threading.Thread(target=run, daemon=True), Probe(vm)
    thread.start()
    probe.wait_passes(2)
    try:
        yield probe
    finally:
        probe.stop()
        thread.join()
