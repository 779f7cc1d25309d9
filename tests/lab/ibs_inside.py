"""Runs inside the emulated host: a loop at a known place loads known lines, and perf samples it.

fetch KIND          sample fetches of a loop; print its addresses and each sample of it: control, addresses
op KIND STRIDE      sample ops of a loop that loads every STRIDE bytes of 64 MiB, 0: the same line; print how
                    often each data source was seen of loads there
KIND is "process" or "kvm" (a vCPU without page tables of its own, whose linear addresses are the guest's).
"""

import ctypes
import json
import mmap
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, "/root")
sys.path.insert(0, "/opt/vmplace")

from tests.lab.sampling_inside import NPAGES, Vcpu, memory
from vmplace.sampling.perf_script import SAMPLE_OPTIONS, parse_samples

ROUNDS = 8
LINES = NPAGES * 64
DATA = "/tmp/ibs.data"
CONTROL, ACK = Path("/tmp/ibs.control"), Path("/tmp/ibs.ack")
PERIOD = "65536"
FETCHES = ["-e", "ibs_fetch/rand_en=1/", "-c", PERIOD, "-R"]
OPS = ["-e", "ibs_op/cnt_ctl=1/", "-c", PERIOD, "-d", "--phys-data", "--sample-cpu"]
# loop: mov al, [rdi]; add rdi, rdx; dec rsi; jnz loop; ret
PROCESS_CODE = bytes.fromhex("8a 07 48 01 d7 48 ff ce 75 f6 c3")
# loop: mov eax, [esi]; add esi, edx; dec ecx; jnz loop; hlt
GUEST_CODE = bytes.fromhex("8b 06 01 d6 49 75 f9 f4")
# tools/perf/util/amd-sample-raw.c
FETCH = re.compile(
    r"ibs_fetch_ctl:\s+([0-9a-f]+) .*|IbsFetchLinAd:\s+([0-9a-f]+)|IbsFetchPhysAd:\s+([0-9a-f]+)"
)

Loop = Callable[[int], None]
"""Load all lines of the memory once, STRIDE apart."""


def process_loop(hva: int) -> tuple[Loop, int, int]:
    """Return the loop, and its code's address: linear, and where it lies in this process."""
    executable = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, executable)
    page[: len(PROCESS_CODE)] = PROCESS_CODE
    code = ctypes.addressof(ctypes.c_char.from_buffer(page))
    load = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)(code)
    process_loop.kept = page  # type: ignore[attr-defined]
    return lambda stride: load(hva, LINES, stride), code, code


def kvm_loop(hva: int) -> tuple[Loop, int, int]:
    """Return the same of a vCPU; its code is in page 0."""
    vcpu = Vcpu(hva)
    ctypes.memmove(hva, GUEST_CODE, len(GUEST_CODE))

    def load(stride: int) -> None:
        # The line of the code is none of those that are loaded.
        first = 0 if stride else 4096
        vcpu.execute(0, rcx=LINES, rdx=stride, rsi=first)

    return load, 0, hva


LOOPS = {"process": process_loop, "kvm": kvm_loop}


def physical(hva: int, npages: int = 1) -> list[int]:
    """Return where pages of this process lie."""
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(hva // 4096 * 8)
        words = memoryview(file.read(8 * npages)).cast("Q")
    return [(word & (1 << 55) - 1) * 4096 for word in words]


def record(options: list[str], load: Callable[[], None]) -> None:
    """Have perf sample this process while it loads: so many ops, however long they take."""
    for fifo in (CONTROL, ACK):
        fifo.unlink(missing_ok=True)
        os.mkfifo(fifo)
    argv = [
        "perf",
        "record",
        "-q",
        "-o",
        DATA,
        *options,
        "-p",
        str(os.getpid()),
        "--no-bpf-event",
        "-N",
        "-B",
    ]
    # On a busy machine perf takes longer to start than the loop to end: it says when it samples.
    with subprocess.Popen([*argv, "-D", "-1", f"--control=fifo:{CONTROL},{ACK}"]) as perf:
        with CONTROL.open("w") as control, ACK.open() as ack:
            print("enable", file=control, flush=True)
            ack.readline()
            for _ in range(ROUNDS):
                load()
        perf.send_signal(signal.SIGINT)


def perf_lines(*argv: str) -> list[str]:
    """Return what the perf tool prints of the recording."""
    done = subprocess.run(["perf", *argv, "-i", DATA], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def fetch(kind: str) -> None:
    """Print the samples of a loop's fetches, and where the loop is."""
    load, linear, hva = LOOPS[kind](memory(4))
    record(FETCHES, lambda: load(64))
    words = [match.groups() for line in perf_lines("report", "-D") if (match := FETCH.search(line))]
    samples = [
        [int(control, 16), int(lin, 16), int(phys, 16)]
        for (control, _, _), (_, lin, _), (_, _, phys) in zip(words, words[1:], words[2:], strict=False)
        if control and lin and phys
    ]
    print(json.dumps({"linear": linear, "physical": physical(hva)[0] + hva % 4096, "samples": samples}))


def op(kind: str, stride: str) -> None:
    """Print how often each data source was seen of loads in the memory."""
    hva = memory(4)
    load, _, code = LOOPS[kind](hva)
    frames = set(physical(hva, NPAGES)) - set(physical(code))
    record(OPS, lambda: load(int(stride)))
    samples = parse_samples(perf_lines("script", *SAMPLE_OPTIONS))
    there = [int(phys) // 4096 * 4096 in frames for phys in samples.phys_addrs]
    seen = Counter(int(source) for source, at in zip(samples.data_srcs, there, strict=True) if at)
    print(json.dumps({"sources": list(seen.items()), "others": there.count(False)}))


if __name__ == "__main__":
    COMMANDS: dict[str, Callable[..., None]] = {"fetch": fetch, "op": op}
    COMMANDS[sys.argv[1]](*sys.argv[2:])
