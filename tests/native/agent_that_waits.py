"""The real agent (agent_process.py), and a step of it that reads another process' memory until that one ends.

Run as: agent_that_waits.py PID ADDRESS BYTES CONFIG GUESTS MIB GUEST_PID HVA

Prints a line when the step begins, and one when it is given up or over.
"""

import ctypes
import sys
import threading

from tests.unit.interfaces import agent_process
from vmplace import held
from vmplace.held import HeldError

TIMES = 16


def read_until_it_ends(pid: int, address: int, size: int) -> None:
    """Read so much with each call that there is hardly a moment without a reference to the memory map."""
    buffer = ctypes.create_string_buffer(size)
    pair = ctypes.c_uint64 * (2 * TIMES)
    here, there = pair(*(ctypes.addressof(buffer), size) * TIMES), pair(*(address, size) * TIMES)
    while ctypes.CDLL(None).process_vm_readv(pid, here, TIMES, there, TIMES, 0) > 0:
        pass


def begin(pid: int, address: int, size: int) -> None:
    """Have a step do so."""
    print("begun", flush=True)
    try:
        held.bounded(pid, lambda: read_until_it_ends(pid, address, size))
        print("over", flush=True)
    except HeldError:
        print("held", flush=True)


if __name__ == "__main__":
    threading.Thread(target=begin, args=tuple(map(int, sys.argv[1:4])), daemon=True).start()
    del sys.argv[1:4]
    agent_process.main()
