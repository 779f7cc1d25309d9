"""Processes that hold up whoever reads them (holder.c), run as somebody without rights."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.unit.actuation.child_guest import guest_of
from tests.unit.nobody import NOBODY
from vmplace import apart, counting, held
from vmplace.topology.guest import GuestTopology

NPAGES, PAGE = 2048, 4096


@dataclass
class Holder:
    """The process, and the memory that stands for a guest's; the FUSE server's pid."""

    process: "subprocess.Popen[bytes]"
    guest: GuestTopology
    server: int

    @property
    def pid(self) -> int:
        return self.guest.pid

    @property
    def hva(self) -> int:
        return self.guest.ram[0].hva

    @property
    def hvas(self) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        return self.hva + np.arange(NPAGES, dtype=np.uint64) * np.uint64(PAGE)

    def tell(self, command: bytes) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(command)
        self.process.stdin.flush()
        assert self.process.stdout.read(1) == command

    def hold(self) -> None:
        self.tell(b"h")

    def let_go(self) -> None:
        self.tell(b"l")


@contextlib.contextmanager
def run_holder(command: "list[Path | str]") -> Iterator[Holder]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
    )
    server = None
    try:
        assert process.stdout
        fields = process.stdout.readline().split()
        if not fields:
            pytest.skip("nobody may not mount FUSE in a user namespace here")
        pid, hva, server = map(int, fields)
        yield Holder(process, guest_of(pid, hva, NPAGES), server)
    finally:
        # First: no signal ends what waits for it.
        if server is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)
        process.kill()
        process.wait()
        # What waited for it ends now.
        until = time.monotonic() + 60
        while held.holds(process.pid) and time.monotonic() < until:
            time.sleep(0.05)
        held.keep(set())
        apart.close()
        counting.close()
