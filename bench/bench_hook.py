"""How long does libvirt wait for the hook at ``migrate``?  Beside ``python3 -c pass``.

The agent is there, slow (its socket is full at first, and datagrams are taken late), hung, or away.

Figures: ms at the median and the 99th percentile, and the longest, of whole runs, process and all, in turns
(``control``: Python alone, and as the hook has it, isolated), and of the hook's own work (its main function,
in one process).  Fails if the hook fails once.

    python3 -m bench.bench_hook 1000
"""

import argparse
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from bench.record import add_record_options, measure

HOOK = Path(__file__).parents[1] / "libvirt-hooks/qemu.d/vmplace"
PYTHON = "/usr/bin/python3"
SLOW_S = 0.02
"""Beside a hook, which takes half of that."""
POLICY = (
    '<metadata><vmplace:policy xmlns:vmplace="urn:vmplace:policy:1"><vmplace:mode>auto</vmplace:mode>'
    "</vmplace:policy></metadata><numatune><memory mode='strict' nodeset='0-1'/></numatune>"
)
DISK = (
    "<disk type='file' device='disk'><source file='/guests/disk{}'/><target dev='vd{}' bus='virtio'/></disk>"
)


def domain_xml(disks: int = 30) -> bytes:
    """Return a domain of some 4 KiB, as busy guests have."""
    devices = "".join(DISK.format(i, i) for i in range(disks))
    uuid = "<uuid>8f1d3c52-0000-0000-0000-000000000001</uuid>"
    return f"<domain type='kvm'><name>db1</name>{uuid}{POLICY}<devices>{devices}</devices></domain>".encode()


def run_ms(command: list[str], path: str, xml: bytes) -> float:
    """Run a command once; return the ms until it ended.  Raises CalledProcessError if it failed."""
    started = time.perf_counter()
    environment = {"VMPLACE_HOOK_SOCKET": path}
    subprocess.run(command, input=xml, env=environment, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1e3


def percentiles(values: list[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the longest, in ms."""
    ordered = sorted(values)
    at = {"p50": len(ordered) // 2, "p99": int(len(ordered) * 0.99), "max": len(ordered) - 1}
    return {name: round(ordered[index], 2) for name, index in at.items()}


def own_work_ms(path: str, xml: bytes, runs: int) -> list[float]:
    """Return the ms of the hook's main function, read from and written to pipes, in a child process."""
    script = (
        "import sys, os, time, importlib.machinery as m, importlib.util as u\n"
        f"spec = u.spec_from_loader('hook', m.SourceFileLoader('hook', {str(HOOK)!r}))\n"
        "hook = u.module_from_spec(spec); spec.loader.exec_module(hook)\n"
        f"xml = {xml!r}; out = os.dup(1); sink = os.open('/dev/null', os.O_WRONLY); os.dup2(sink, 1)\n"
        f"for _ in range({runs}):\n"
        "  r, w = os.pipe(); os.write(w, xml); os.close(w); os.dup2(r, 0); os.close(r)\n"
        "  t = time.perf_counter(); hook.main(['db1', 'migrate', 'begin', '-'])\n"
        "  os.write(out, b'%f\\n' % ((time.perf_counter() - t) * 1e3))\n"
    )
    environment = {"VMPLACE_HOOK_SOCKET": path}
    done = subprocess.run(
        [PYTHON, "-IS", "-c", script], env=environment, check=True, capture_output=True, text=True
    )
    return [float(line) for line in done.stdout.split()]


def waits(times: int) -> dict[str, dict[str, float]]:
    """Return the figures of all cases; the cases take turns, so that all see the same machine."""
    xml = domain_xml()
    hook = [str(HOOK), "db1", "migrate", "begin", "-"]
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        there, slow, full, away = (str(Path(folder, name)) for name in ("there", "slow", "full", "away"))
        agents = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) for _ in range(3)]
        for agent, path in zip(agents, (there, slow, full), strict=True):
            agent.bind(path)
        _fill(full)
        cases = {
            "control_python": ([PYTHON, "-c", "pass"], away),
            "control_isolated": ([PYTHON, "-IS", "-c", "pass"], away),
            "hook_agent_there": (hook, there),
            "hook_agent_slow": (hook, slow),
            "hook_agent_hung": (hook, full),
            "hook_agent_away": (hook, away),
        }
        with _slow(agents[1]):
            for _ in range(times):
                _fill(slow)
                for name, (command, path) in cases.items():
                    found.setdefault(name, []).append(run_ms(command, path, xml))
                agents[0].recv(8192)
        found["hook_own_work"] = own_work_ms(away, xml, times)
    return {name: percentiles(values) for name, values in found.items()}


@contextmanager
def _slow(agent: socket.socket) -> Iterator[None]:
    """Have an agent take one datagram each SLOW_S, if one is there."""
    stop = threading.Event()

    def take() -> None:
        while not stop.wait(SLOW_S):
            with suppress(BlockingIOError):
                agent.recv(8192)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _fill(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        try:
            while True:
                sender.sendto(b"x", path)
        except BlockingIOError:
            return


def main() -> int:
    """Measure, and print the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("times", type=int, nargs="?", default=1000, help="how often each case is run")
    add_record_options(parser)
    options = parser.parse_args()
    return measure("hook", {"waits_ms": partial(waits, options.times)}, options)


if __name__ == "__main__":
    sys.exit(main())
