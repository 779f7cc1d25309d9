"""How do services outside meet an emulated host, and nobody else?  In a network namespace of their own.

Its one interface besides the loopback is the outer end of the packet link (packet_link.py).  Nothing of this
machine's network is seen there, and no port of it taken.
"""

import contextlib
import ctypes
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import TypeVar

from lab.errors import LabError
from lab.packet_link import OUTSIDE, open_tun, receive_packets, send_packets
from lab.toolbox import started

Answer = TypeVar("Answer")
CLONE_NEWNET = 0x40000000


class PrivateNetwork:
    """A network namespace that lives as long as its holder."""

    def __init__(self, holder: int) -> None:
        self._path = f"/proc/{holder}/ns/net"
        # Only this thread is in the namespace.
        self._thread = ThreadPoolExecutor(1, initializer=self._enter)
        self._tun = self.call(lambda: open_tun(OUTSIDE))

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` there."""
        return ["nsenter", f"--net={self._path}", *argv]

    def call(self, function: Callable[[], Answer]) -> Answer:
        """Call a function there, which opens its connections itself."""
        return self._thread.submit(function).result()

    def link(self, port: Path) -> None:
        """Connect it with the host that has this socket as its serial port (packet_link.PORT)."""
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.connect(str(port))
        for copy, end in ((send_packets, stream.send), (receive_packets, stream.recv)):
            Thread(target=_until_closed, args=(copy, self._tun, end), daemon=True).start()

    def _enter(self) -> None:
        fd = os.open(self._path, os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(fd, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(fd)


def _until_closed(copy: Callable[[int, object], None], tun: int, end: object) -> None:
    with contextlib.suppress(OSError):
        copy(tun, end)


@contextlib.contextmanager
def private_network() -> Iterator[PrivateNetwork]:
    """Yield a network for the length of the block."""
    hold = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", "ip link set lo up; exec cat"]
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write), started(hold, stdin=read) as process:
        _await_namespace(process.pid)
        yield PrivateNetwork(process.pid)


def _await_namespace(pid: int) -> None:
    deadline, own = time.monotonic() + 30, Path("/proc/self/ns/net").readlink()
    while Path(f"/proc/{pid}/ns/net").readlink() == own:
        if time.monotonic() > deadline:
            raise LabError("no network namespace", hint="run as root, outside of a container without them")
        time.sleep(0.02)
