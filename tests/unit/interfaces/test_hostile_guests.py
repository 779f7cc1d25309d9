"""Users who may run KVM guests neither end, nor silence, nor mislead the agent of all others.

They are real processes of another user (a real setuid), with real VMs, beside the agent's process.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.nobody import NOBODY, needs_nobody
from tests.unit.topology.test_guests_kvm import CHILD
from vmplace.held import HELD
from vmplace.interfaces.client import NoAgentError, ask

pytestmark = [needs_nobody, pytest.mark.kvm]
ROOT = Path(__file__).parents[3]
SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin") or "python3"
FORGED = b"\x0b100000000000-500000000000 rw-p 00000000 00:00 0 "
QEMU = "qemu-system-x86_64"
MAPPED = {
    "forged page size": b"x\x0bKernelPageSize: evil",
    "forged range": b"x" + FORGED,
    "all line ends": b"x\x0b\x0c\r\x1c\x1d\x1e\xc2\x85\xe2\x80\xa8VmFlags: lo",
    "no Unicode": b"pub/dev/vfio/\xff\xfe",
    "escapes": b"\x1b]0;pwned\x07\x1b[2J",
}
SAID = {
    "many CPUs": ["-numa", "node,cpus=0-9999999999"],
    "deep JSON": ["-object", '{"qom-type":' + "[" * 20_000],
    "forged log": ["-name", 'guest=a\n<3>order=undo guest=all reason="asked by root"\x1b]0;pwned\x07'],
    "long name": ["-name", "guest=" + "n" * 100_000],
    "huge number": ["-m", "9" * 5000],
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder where anybody may read and write; the tests' own is root's."""
    made = Path(tempfile.mkdtemp(prefix="vmplace-hostile-", dir="/tmp"))
    made.chmod(0o755)
    for source in (CHILD, Path(__file__).with_name("hostile_guest.py")):
        shutil.copy(source, made)
        (made / source.name).chmod(0o644)
    (made / "files").mkdir(mode=0o777)
    (made / "files").chmod(0o777)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def run() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    started = []

    def start(argv: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(argv, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def hostile(
    run: Callable[..., Any], folder: Path, *, mapped: bytes = b"", said: list[str] | None = None
) -> int:
    """Start a hostile guest of another user; return its pid."""
    argv = [QEMU, str(folder / "hostile_guest.py"), str(folder / CHILD.name), "private", "1", "CPU {}/KVM"]
    environ = {b"PATH": b"/usr/bin:/bin"}
    if mapped:
        environ[b"HOSTILE_FILE"] = bytes(folder / "files") + b"/" + mapped
    process = run(
        argv + (said or []),
        executable=SYSTEM_PYTHON,
        env=environ,
        stdout=subprocess.PIPE,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[os.stat("/dev/kvm").st_gid],  # noqa: PTH116
    )
    assert process.stdout.readline(), "the guest did not start"
    return int(process.pid)


def is_answered(socket: Path) -> bool:
    """Tell whether the agent has begun to listen; its socket has a name a moment earlier."""
    with contextlib.suppress(NoAgentError):
        ask("status", path=socket, timeout_s=60)
        return True
    return False


@pytest.mark.slow
def test_the_agent_and_its_socket_answer_all_the_time(run: Callable[..., Any], folder: Path, tmp_path: Path):
    socket = tmp_path / "run/control.sock"
    config = tmp_path / "vmplace.toml"
    config.write_text(
        f'state_dir = "{tmp_path}/state"\nsocket = "{socket}"\nwindow_ms = 100\nlongest_rest_ms = 100\n'
        'numa_balancing = "leave"\nlibvirt = false\n'
    )
    victim = run([sys.executable, str(CHILD), "private", "1"], stdout=subprocess.PIPE)
    assert victim.stdout.readline()
    pids = [hostile(run, folder, mapped=name) for name in MAPPED.values()]
    pids += [hostile(run, folder, said=words) for words in SAID.values()]
    assert {int(Path(f"/proc/{pid}").stat().st_uid) for pid in pids} == {NOBODY}

    log = tmp_path / "log"
    with log.open("wb") as stderr:
        agent = run([sys.executable, "-m", "tests.unit.interfaces.found_agent", str(config)],
                    cwd=ROOT, stderr=stderr)  # fmt: skip
    until = time.monotonic() + 120
    while not is_answered(socket):
        assert agent.poll() is None and time.monotonic() < until, log.read_text(errors="replace")[-3000:]
        time.sleep(0.05)
    answers: list[dict[str, Any]] = []
    until = time.monotonic() + 120
    # Guests are looked up every 3 s.
    while len(answers) < 2 or (answers[-1]["windows"] < 5 or time.monotonic() < until - 110):
        assert agent.poll() is None, log.read_text(errors="replace")[-3000:]
        answers.append(ask("status", path=socket, timeout_s=60))
        assert time.monotonic() < until
        time.sleep(0.1)

    guests = {guest["pid"]: (name, guest) for name, guest in answers[-1]["guests"].items()}
    assert victim.pid in guests and guests[victim.pid][1]["state"] != "failed"
    reported = " ".join(answers[-1]["notes"])
    for pid, what in zip(pids, [*MAPPED, *SAID], strict=True):
        assert pid in guests or f"pid {pid}" in reported or str(pid) in reported, (
            f"{what}: neither a guest nor told"
        )
    # No range of 64 TiB came of a file's name, and no name of a guest is longer than a line.
    assert all(guest["memory_bytes"] < 1 << 30 for _, guest in guests.values())
    assert all(len(name) <= 80 and name.isprintable() for name, _ in guests.values())
    said = log.read_text(errors="surrogateescape")
    assert not re.search(r"^<\d>order=undo", said, re.M) and "\x1b" not in said
    assert max(map(len, said.splitlines())) < 2000
    status = Path(f"/proc/{agent.pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak and int(peak[1]) < 150_000


def configured(tmp_path: Path) -> tuple[Path, Path]:
    """Return a configuration, and its control socket."""
    socket, config = tmp_path / "run/control.sock", tmp_path / "vmplace.toml"
    config.write_text(
        f'state_dir = "{tmp_path}/state"\nsocket = "{socket}"\nwindow_ms = 100\nlongest_rest_ms = 100\n'
        'numa_balancing = "leave"\nlibvirt = false\n'
    )
    return config, socket


def timed(verb: str, socket: Path, **words: Any) -> tuple[dict[str, Any], float]:
    """Return the agent's answer, and the seconds that it took."""
    began = time.monotonic()
    answer = ask(verb, path=socket, timeout_s=120, **words)
    return answer, time.monotonic() - began


class Lockers:
    """An agent beside a guest that locks its mappings on command (holder.c), and another guest."""

    def __init__(self, run: Callable[..., Any], folder: Path, tmp_path: Path, does: str) -> None:
        source = ROOT / "tests/native/holder.c"
        subprocess.run(["gcc", "-O1", "-pthread", "-o", folder / "holder", source], check=True, timeout=120)
        self.holder = run(
            [folder / "holder"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=NOBODY, group=NOBODY,
            extra_groups=[os.stat("/dev/kvm").st_gid],  # noqa: PTH116
        )  # fmt: skip
        if not self.holder.stdout.readline():
            pytest.skip("nobody may not mount FUSE in a user namespace here")
        self.victim = run([sys.executable, str(CHILD), "private", "1"], stdout=subprocess.PIPE)
        assert self.victim.stdout.readline()
        config, self.socket = configured(tmp_path)
        self.log, self.manager = tmp_path / "log", ServiceManager(folder / "notify")
        with self.log.open("wb") as stderr:
            self.agent = run([sys.executable, "-m", "tests.unit.interfaces.found_agent", str(config), does],
                             cwd=ROOT, stderr=stderr, env={**os.environ, **self.manager.environ})  # fmt: skip
        # comm: what a process was started by, python or python3.
        comms = ((self.holder, "holder"), (self.victim, Path(sys.executable).name))
        self.name_of = {one: f"{comm}-{one.pid}" for one, comm in comms}
        self.wait_for(lambda: all(f"guest={name} pid=" in self.said() for name in self.name_of.values()))
        self.usual_s = max(timed("status", self.socket)[1] for _ in range(10))
        self.heard = 0

    def status(self) -> dict[str, Any]:
        return dict(ask("status", path=self.socket, timeout_s=60))

    def wait_for(self, happens: Callable[[], object]) -> None:
        until = time.monotonic() + 120
        while not happens():
            assert self.agent.poll() is None and time.monotonic() < until, self.said()[-3000:]
            time.sleep(0.1)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def hold(self) -> None:
        self.holder.stdin.write(b"h")
        self.holder.stdin.flush()
        assert self.holder.stdout.read(1) == b"h"
        self.heard = len(self.manager.beats)

    def answers_until(self, happens: Callable[[dict[str, Any]], object]) -> list[dict[str, Any]]:
        """Ask all the time until an answer tells so; return the answers, each of which came within a second.

        Or within ten times what they take on a machine that is busy.
        """
        answers: list[dict[str, Any]] = []

        def is_over() -> object:
            answer, took = timed("status", self.socket)
            assert took < max(1.0, 10 * self.usual_s)
            answers.append(answer)
            return happens(answer)

        self.wait_for(is_over)
        return answers

    def beats_on(self) -> bool:
        """Tell whether the loop was heard of again and again since the lock is held."""
        return len(self.manager.beats) >= self.heard + 3

    def waiting_threads(self) -> int:
        """Count the agent's threads that wait for a lock of the kernel, or for a disk."""
        states = []
        for path in Path(f"/proc/{self.agent.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                states.append(path.read_text(errors="replace").rpartition(")")[2].split()[0])
        return states.count("D")

    def left_behind(self) -> list[str]:
        """Return the states of the processes that wait with a call for the holder, as the kernel tells."""
        states = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                name, _, rest = path.read_text(errors="replace").partition("(")[2].rpartition(")")
                states += [rest.split()[0]] if name == f"vmpmove {self.holder.pid}" else []
        return states


class ServiceManager:
    """Hears the agent's beats, as systemd does."""

    WATCHDOG_S = 12

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.environ = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": str(self.WATCHDOG_S * 10**6)}
        self.beats: list[bytes] = []
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        while (word := self._socket.recv(100)) != b"STOPPING=1":
            self.beats += [word] if word == b"WATCHDOG=1" else []
        self._socket.close()


@pytest.mark.slow
def test_a_guest_that_takes_the_lock_of_its_mappings_stops_nobody_but_itself(
    run: Callable[..., Any], folder: Path, tmp_path: Path
):
    """It does so while it is read (holder.c): nothing of /proc/PID that tells of memory returns any more."""
    world = Lockers(run, folder, tmp_path, "reads")
    world.wait_for(lambda: world.status()["windows"] >= 3)
    world.hold()
    began = world.status()["windows"]
    answers = world.answers_until(lambda answer: answer["windows"] - began > 20 and world.beats_on())
    assert HELD in {answer["guests"][world.name_of[world.holder]]["problem"] for answer in answers}
    # One window waited for a second, and left a step behind, perhaps another for its descriptor; not each.
    assert 1 <= world.waiting_threads() <= 4
    assert answers[-1]["guests"][world.name_of[world.victim]]["problem"] is None
    # It holds the lock all the time: who waits for it has no answer.
    timed("undo", world.socket, guest=world.name_of[world.victim])
    world.agent.terminate()
    assert world.agent.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("does", ["moves", "undoes"])
def test_a_guest_that_takes_the_lock_while_its_pages_move_stops_nobody_but_itself(
    run: Callable[..., Any], folder: Path, tmp_path: Path, does: str
):
    """Its pages move for seconds, there or back, and then it takes the lock: that call never returns."""
    world = Lockers(run, folder, tmp_path, does)
    evil, good = world.name_of[world.holder], world.name_of[world.victim]
    orders: list[str] = []
    if does == "undoes":
        world.wait_for(lambda: f"guest={evil} moved_bytes=" in world.said())
        threading.Thread(target=lambda: orders.append(outcome_of(world.socket, evil)), daemon=True).start()
    world.wait_for(lambda: f"pid={world.holder.pid} long call" in world.said())
    before = len(world.said())
    world.hold()
    began = world.status()["windows"]
    # The other guest is planned for and looked up in each window; an agent that waits has none, nor beats.
    answers = world.answers_until(
        lambda one: one["windows"] - began >= 5 and one["guests"][evil]["problem"] and world.beats_on()
    )
    # It was in the middle of a call: one process waits with it, in a way that no kill ends.
    assert world.left_behind() == ["D"]
    assert HELD in world.said()[before:]
    problems = {name: one["problem"] for name, one in answers[-1]["guests"].items()}
    assert problems[good] is None and problems[evil] == HELD
    if does == "undoes":
        world.wait_for(lambda: orders)
        (refusal,) = orders
        assert HELD in refusal
    undone, _ = timed("undo", world.socket, guest=good)
    assert "96.0 MiB moved back" in str(undone)
    world.agent.terminate()
    assert world.agent.wait(60) == 0


def outcome_of(socket: Path, guest: str) -> str:
    """Order an undo; return the answer, or why there is none."""
    try:
        return str(ask("undo", path=socket, timeout_s=120, guest=guest))
    except Exception as err:
        return str(err)
