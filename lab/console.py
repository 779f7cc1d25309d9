"""How does a person's terminal become the serial console of the emulated host?"""

import contextlib
import os
import select
import shutil
import socket
import sys
import termios
import tty
from collections.abc import Iterator
from pathlib import Path

from lab.json_socket import connect

LEAVE = b"\x1d"


def attach(path: Path) -> None:
    """Connect the terminal with a serial console until Ctrl-], end of input or end of the host."""
    with connect(path, timeout=10.0) as console, _raw(sys.stdin.fileno()):
        size = shutil.get_terminal_size()
        console.sendall(f"stty rows {size.lines} cols {size.columns}; clear\n".encode())
        while _pump(console):
            pass


def _pump(console: socket.socket) -> bool:
    """Move what is there in either direction; return whether both ends are still open."""
    ready, _, _ = select.select([console, sys.stdin], [], [])
    if console in ready:
        data = console.recv(65536)
        os.write(sys.stdout.fileno(), data)
        if not data:
            return False
    if sys.stdin in ready:
        typed = os.read(sys.stdin.fileno(), 4096)
        console.sendall(typed.partition(LEAVE)[0])
        return bool(typed) and LEAVE not in typed
    return True


@contextlib.contextmanager
def _raw(fd: int) -> Iterator[None]:
    """Pass every key on; a script's input is no terminal and is left as it is."""
    if not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    tty.setraw(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
