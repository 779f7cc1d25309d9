"""libvirt may be absent, down or stuck: the caller learns it within a moment and goes on."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vmplace.errors import GuestGoneError, UnsupportedHostError
from vmplace.topology import guests_libvirt
from vmplace.topology.capabilities import probe_libvirt
from vmplace.topology.guest_finder import GuestFinder
from vmplace.topology.guests_libvirt import REFRESH_S, RETRY_S, Libvirt, asked
from vmplace.topology.memory_budget import WORKERS_BYTES

needs_libvirt = pytest.mark.skipif(
    importlib.util.find_spec("libvirt") is None, reason="Python has no libvirt module"
)
TEST_DRIVER = "test:///default"


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return the questions that were asked, as they come."""
    asked: list[tuple[str, ...]] = []
    start = guests_libvirt.Question

    def counted(uri: str, *question: str) -> object:
        asked.append(question)
        return start(uri, *question)

    monkeypatch.setattr(guests_libvirt, "Question", counted)
    return asked


@needs_libvirt
def test_domains_of_the_test_driver():
    answer = Libvirt(TEST_DRIVER, answer_s=20).read()
    assert answer.problem is None
    assert [domain.name for domain in answer.descriptions.values()] == ["test"]


@needs_libvirt
def test_libvirt_is_no_part_of_the_asking_process():
    # This process may have it: other tests set things in the test driver themselves.
    script = (
        "from vmplace.topology.guests_libvirt import Libvirt; from pathlib import Path; "
        f"assert Libvirt({TEST_DRIVER!r}, answer_s=20).read().descriptions; "
        "print(Path('/proc/self/maps').read_text())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "libc" in done.stdout and "libvirt" not in done.stdout


@needs_libvirt
def test_a_domain_without_a_kvm_process_is_reported():
    scan = GuestFinder(Libvirt(TEST_DRIVER, answer_s=20)).find()
    assert "domain test: no process that runs it with KVM is to be seen" in [s.reason for s in scan.skipped]


@needs_libvirt
def test_it_is_asked_when_guests_come_and_else_now_and_then(workers: list[tuple[str, ...]]):
    clock = Clock()
    libvirt = Libvirt(TEST_DRIVER, answer_s=20, clock=clock)
    test = frozenset(libvirt.read().descriptions)
    libvirt.read()
    assert len(workers) == 1
    libvirt.read(test)
    assert len(workers) == 2
    clock.now += REFRESH_S - 1
    libvirt.read(test)
    assert len(workers) == 2
    clock.now += 1
    libvirt.read(test)
    assert len(workers) == 3


@needs_libvirt
def test_nobody_waits_for_a_routine_answer(stuck_uri: str):
    clock = Clock()
    libvirt = Libvirt(TEST_DRIVER, answer_s=20, clock=clock)
    known = libvirt.read(test := frozenset(libvirt.read().descriptions))
    libvirt._uri = stuck_uri
    clock.now += REFRESH_S
    began = time.monotonic()
    assert libvirt.read(test) == known and not libvirt.has_answered
    assert time.monotonic() - began < 10
    # A guest that came is one of which nothing is known.
    assert libvirt.read(test | {"newcomer"}).problem == "libvirt does not answer"
    clock.now += 20
    assert libvirt.read(test).problem == "libvirt does not answer"
    libvirt.close()


@needs_libvirt
def test_a_guest_that_libvirt_does_not_list_yet_is_asked_for_again(workers: list[tuple[str, ...]]):
    clock = Clock()
    libvirt = Libvirt(TEST_DRIVER, answer_s=20, clock=clock)
    for _ in range(2):
        libvirt.read(frozenset({"still starting"}))
    assert len(workers) == 1
    clock.now += RETRY_S
    libvirt.read(frozenset({"still starting"}))
    assert len(workers) == 2


@needs_libvirt
def test_libvirtd_that_is_down_is_a_problem_not_a_failure(tmp_path: Path, workers: list[tuple[str, ...]]):
    clock = Clock()
    libvirt = Libvirt(f"qemu+unix:///system?socket={tmp_path}/none", answer_s=20, clock=clock)
    for _ in range(2):
        answer = libvirt.read()
        assert answer.descriptions == {}
        assert "Failed to connect" in (answer.problem or "")
    assert len(workers) == 1
    clock.now += RETRY_S
    libvirt.read()
    assert len(workers) == 2


def short_of_memory(monkeypatch: pytest.MonkeyPatch, name: str, most: int = 1) -> None:
    """Have a function of the module fail for want of memory, as RLIMIT_DATA may have it, ``most`` times."""
    real, failed = getattr(guests_libvirt, name), list[int]()

    def short(*args: object) -> object:
        if len(failed) < most:
            failed.append(1)
            raise MemoryError
        return real(*args)

    monkeypatch.setattr(guests_libvirt, name, short)


@needs_libvirt
@pytest.mark.parametrize("name", ["parse_json", "domain_policy"])
def test_an_answer_for_which_memory_does_not_suffice_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, name: str
):
    clock = Clock()
    libvirt = Libvirt("test:///default", answer_s=20, clock=clock)
    short_of_memory(monkeypatch, name)
    with pytest.raises(MemoryError):
        libvirt.read()
    assert libvirt.read().problem
    clock.now += RETRY_S
    answer = libvirt.read()
    assert (list(answer.names.values()), answer.problem) == (["test"], None)


PEAK = """
import resource, subprocess, sys
answer = subprocess.run([sys.executable, "-P", *sys.argv[1:]], capture_output=True, check=True).stdout
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, len(answer))
"""


@needs_libvirt
def test_two_workers_take_no_more_than_the_budget_counts(tmp_path: Path):
    domains = "".join(
        f"<domain type='test'><name>d{number}</name><uuid>6695eb01-f6a4-8304-79aa-{number:012x}</uuid>"
        f"<memory>1024</memory><os><type>hvm</type></os><description>{'x' * 12_000}</description></domain>"
        for number in range(200)
    )
    (tmp_path / "node.xml").write_text(f"<node>{domains}</node>")
    argv = [sys.executable, "-c", PEAK, guests_libvirt.__file__.replace("guests_libvirt", "libvirt_worker")]
    reported = subprocess.run(
        [*argv, f"test://{tmp_path}/node.xml", "domains"], capture_output=True, text=True, check=True
    )
    peak_bytes, answer_bytes = map(int, reported.stdout.split())
    assert answer_bytes > 200 * 12_000
    # The kernel counts the libraries, of which most of a worker is, once.
    assert peak_bytes + answer_bytes < WORKERS_BYTES < 2 * peak_bytes


@needs_libvirt
def test_what_libvirt_never_tells_is_asked_for_less_and_less_often(
    tmp_path: Path, workers: list[tuple[str, ...]]
):
    clock = Clock()
    libvirt = Libvirt(f"qemu+unix:///system?socket={tmp_path}/none", answer_s=20, clock=clock)
    for second in range(120):
        clock.now = float(second)
        libvirt.read()
    assert len(workers) == 6
    libvirt.read(frozenset({"a guest that came"}))
    assert len(workers) == 7


@pytest.fixture
def stuck_uri(tmp_path: Path) -> object:
    """Return the URI of a daemon that accepts, reads, and says nothing, as a stopped libvirtd does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "stuck"))
        server.listen()
        yield f"qemu+unix:///system?socket={tmp_path}/stuck"


@needs_libvirt
def test_libvirtd_that_never_answers_holds_nobody_up(stuck_uri: str):
    libvirt = Libvirt(stuck_uri, answer_s=0.3)
    started = time.monotonic()
    assert [libvirt.read().problem for _ in range(3)] == ["libvirt does not answer"] * 3
    # A worker ends by itself after LIFE_S, 30 s.
    assert time.monotonic() - started < 20
    with pytest.raises(UnsupportedHostError, match="does not answer"):
        libvirt.ask_monitor("any", "info version")
    libvirt.close()


@needs_libvirt
def test_the_last_answer_counts_while_libvirt_is_stuck(stuck_uri: str):
    libvirt = Libvirt(TEST_DRIVER, answer_s=20)
    fresh = libvirt.read()
    libvirt._uri, libvirt._answer_s = stuck_uri, 0.1
    newcomer = frozenset({"newcomer"})
    stale = libvirt.read(newcomer)
    assert (stale.descriptions, stale.problem) == (fresh.descriptions, "libvirt does not answer")
    worker = libvirt._worker
    assert worker is not None
    # What the worker's own alarm does in the end.
    worker._process.kill()
    worker._process.wait()
    stale = libvirt.read(newcomer)
    assert (stale.descriptions, stale.problem) == (fresh.descriptions, "libvirt does not answer")
    assert libvirt._worker is None


@needs_libvirt
def test_an_answer_that_came_late_serves_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    os.mkfifo(tmp_path / "may-begin")
    (tmp_path / "python").write_text(f'#!/bin/sh\ncat {tmp_path}/may-begin\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    libvirt = Libvirt(TEST_DRIVER, answer_s=0)
    finder = GuestFinder(libvirt)
    assert not finder.has_news
    assert libvirt.read().problem == "libvirt does not answer"
    (tmp_path / "may-begin").write_text("")
    deadline = time.monotonic() + 60
    while not finder.has_news and time.monotonic() < deadline:
        time.sleep(0.05)
    assert libvirt.read().problem is None and not finder.has_news
    assert [domain.name for domain in libvirt.read().descriptions.values()] == ["test"]


@needs_libvirt
def test_the_monitor_of_a_domain_that_is_gone():
    with pytest.raises(GuestGoneError):
        Libvirt(TEST_DRIVER, answer_s=20).ask_monitor("0" * 32, "info version")


@needs_libvirt
@pytest.mark.parametrize(
    "uri", ["nonsense", "qemu+unix:///system?socket=/nowhere", guests_libvirt.SYSTEM_URI]
)
def test_who_gave_a_uri_is_asked_to_look_at_it_and_both_daemons_are_named(
    uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    if uri == guests_libvirt.SYSTEM_URI:
        # As on a host whose libvirt is down: this one's may run.
        (tmp_path / "libvirt.py").write_text("raise SystemExit('no libvirt')\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UnsupportedHostError) as caught:
        asked(uri, "domain", "db1", patience_s=20)
    cure = caught.value.hint or ""
    assert (uri in cure) is (uri != guests_libvirt.SYSTEM_URI)
    assert "libvirtd" in cure and "virtqemud" in cure
    assert cure in (probe_libvirt(uri)[0].cure or "")


def test_a_host_without_the_module(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "libvirt", None)
    with pytest.raises(UnsupportedHostError) as caught:
        Libvirt()
    assert "apt install python3-libvirt" in (caught.value.hint or "")


def test_a_worker_that_cannot_run_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(guests_libvirt, "find_libvirt", lambda: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    assert "libvirt cannot be asked" in (Libvirt(TEST_DRIVER).read().problem or "")
