"""Runs inside the emulated host: a guest of the lab's own QEMU, whose memory policy is changed as it runs.

Reads steps from standard input, a JSON list: ``{"policy": {...}}`` are arguments of set-memdev-policy,
``{"touch": [first, end]}`` has the guest touch its memory, in units of 4 MiB, ``{"migrate": [from, to]}`` has
migratepages(8) move it from outside, ``{"add": {...}}`` plugs eight memory backends with these properties.
Prints a JSON list: after each step, the pages of guest RAM by node as numa_maps counts them, how many of
those that were there before are on another node now, and how many mappings the process has.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, "/opt/vmplace")

from vmplace import native

HERE = Path("/root")
RAM_BYTES = 1 << 30
UNIT_PAGES = 1024
QEMU = (
    *("/root/qemu", "-L", "/usr/share/seabios", "-L", "/usr/share/qemu", "-nodefaults", "-display", "none"),
    *("-machine", "q35,accel=kvm,usb=off,memory-backend=ram0", "-cpu", "host", "-m", "1024"),
    *("-object", f"memory-backend-ram,id=ram0,size={RAM_BYTES}", "-kernel", "/root/toucher"),
    *("-chardev", "socket,id=com1,path=/root/com1.sock,server=on,wait=off", "-serial", "chardev:com1"),
    *("-qmp", "unix:/root/qmp.sock,server=on,wait=off"),
)
_NODE = re.compile(r" N(\d+)=(\d+)")


def connected(path: Path) -> socket.socket:
    """Return a connection to a socket that QEMU is about to make."""
    for _ in range(600):
        try:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(path))
        except OSError:
            time.sleep(0.1)
            continue
        return connection
    raise TimeoutError(path)


class Guest:
    """The running guest, its monitor and its serial port."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(QEMU)
        self._monitor = connected(HERE / "qmp.sock").makefile("rw")
        self._monitor.readline()
        self.qmp("qmp_capabilities")
        self._port = connected(HERE / "com1.sock")
        layout = self.qmp("query-ram-layout")
        above = next(r for r in layout if r["memdev"] == "ram0" and r["gpa"] >= 1 << 20)
        self.start = above["hva"] - above["offset"]

    def qmp(self, command: str, **arguments: Any) -> Any:
        """Return what the command returns."""
        self._monitor.write(json.dumps({"execute": command, "arguments": arguments}))
        self._monitor.flush()
        while "event" in (answer := json.loads(self._monitor.readline())):
            pass
        return answer["return"]

    def touch(self, first: int, end: int) -> None:
        """Have the guest write to its memory."""
        self._port.sendall(bytes([first, end]))
        if (answer := self._port.recv(1)) != b"k":
            raise ValueError(answer)

    def numa_maps(self) -> dict[int, int]:
        """Return the pages of guest RAM by node, as the kernel sums them up."""
        found: Counter[int] = Counter()
        for line in Path(f"/proc/{self._process.pid}/numa_maps").read_text().splitlines():
            if self.start <= int(line.split()[0], 16) < self.start + RAM_BYTES:
                found.update({int(nid): int(pages) for nid, pages in _NODE.findall(line)})
        return dict(found)

    def nids(self) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
        """Return the node of each page of guest RAM; below 0: no page."""
        hvas = np.arange(self.start, self.start + RAM_BYTES, 4096, dtype=np.uint64)
        status = np.zeros(len(hvas), np.int32)
        native.page_nids(self._process.pid, hvas, status)
        return status

    def migrate(self, source: int, target: int) -> None:
        """Have its memory moved by another process."""
        subprocess.run(["migratepages", str(self._process.pid), str(source), str(target)], check=True)

    def add(self, properties: dict[str, Any]) -> None:
        """Plug eight memory backends."""
        for number in range(8):
            self.qmp("object-add", **{"qom-type": "memory-backend-ram", "id": f"more{number}", **properties})

    def mappings(self) -> int:
        """Return how many mappings the process has."""
        return len(Path(f"/proc/{self._process.pid}/maps").read_text().splitlines())

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Do the steps."""
    (HERE / "qemu").chmod(0o755)
    guest, reported = Guest(), []
    for step in json.loads(sys.stdin.read()):
        before = guest.nids()
        if "touch" in step:
            guest.touch(*step["touch"])
        elif "migrate" in step:
            guest.migrate(*step["migrate"])
        elif "add" in step:
            guest.add(step["add"])
        else:
            guest.qmp("set-memdev-policy", id="ram0", **step["policy"])
        moved = int(((before >= 0) & (before != guest.nids())).sum())
        reported.append({"numa_maps": guest.numa_maps(), "moved": moved, "mappings": guest.mappings()})
    guest.end()
    print(json.dumps(reported))


if __name__ == "__main__":
    os.chdir(HERE)
    main()
