"""What reaches the agent by its datagram socket, from whom, and what it does then."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.unit.agent.agent_world import World, guest
from tests.unit.agent.test_loop import Running
from vmplace.agent.config import parse_config
from vmplace.agent.news import News, parse_news
from vmplace.errors import VmplaceError
from vmplace.interfaces.hook_socket import HookSocket
from vmplace.topology.guests_libvirt import EventWatch

UUID = "8f1d3c52-0000-0000-0000-000000000001"


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[list[News]]:
    news: list[News] = []
    hook = HookSocket(tmp_path / "hook.sock", news.append)
    hook.start()
    yield news
    hook.close()
    assert not (tmp_path / "hook.sock").exists()


def until(is_so: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(0.005)
    return is_so()


def send(path: Path, datagram: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(datagram, str(path))


def datagram(operation: str, name: str = "db1", uuid: str = UUID) -> bytes:
    return b"\0".join((b"1", operation.encode(), b"begin", b"-", name.encode(), uuid.encode()))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is heard")
def test_roots_datagrams_are_heard(tmp_path: Path, heard: list[News]):
    send(tmp_path / "hook.sock", b"\xff\xfe nonsense")
    send(tmp_path / "hook.sock", datagram("started"))
    assert until(lambda: bool(heard))
    assert heard == [News("started", "db1", UUID)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_nobody_else_is_heard(tmp_path: Path, heard: list[News]):
    path = tmp_path / "hook.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    # Even where the mode would let others in, their uid is what the kernel says.
    path.chmod(0o666)
    script = (
        "import os, socket, sys; os.setuid(65534); "
        "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), sys.argv[1])"
    )
    fd = os.open(tmp_path, os.O_PATH)
    where = f"/proc/self/fd/{fd}/hook.sock"
    subprocess.run([sys.executable, "-c", script, where, "x"], pass_fds=(fd,), check=False)
    os.close(fd)
    send(path, datagram("started"))
    assert until(lambda: bool(heard)) and len(heard) == 1


@pytest.mark.parametrize("text", [b"", b"1", b"2\0a\0b\0c\0d\0e", b"1\0" * 3, b"\0" * 9000])
def test_what_is_no_news_is_none(text):
    assert parse_news(text) is None


def test_names_that_do_not_print_are_shown_as_such():
    reported = parse_news(b"1\0start\ned\0b\0-\0a\x1b[31m\xff\0u")
    assert reported and reported.operation == "start?ed" and reported.guest == "a?[31m\ufffd"


def test_a_long_name_is_that_of_the_guest():
    name = "instance " * 20
    reported = parse_news(b"\0".join((b"1", b"migrate", b"", b"", name.encode(), b"")))
    assert reported and reported.guest == guest(name).name


def test_a_guest_that_migrates_is_left_alone_until_libvirt_says_it_is_over():
    world = World([replace(guest("db1"), uuid=UUID)])
    with Running(world) as running:
        running.agent.inbox.tell(News("event-migrating", "db1", UUID))
        running.pass_windows()
        world.applied.clear()
        world.nid_of["db1"] = 0
        world.migrating = frozenset({UUID})
        running.pass_windows()
        assert running.agent.status.guests["db1"].state == "migrating"
        assert running.order("apply", "db1") == ("nothing to move",)
        world.migrating = frozenset()
        running.agent.inbox.tell(News("event-state", "db1", UUID))
        running.pass_windows()
    assert world.applied == ["db1"]


def test_each_round_of_a_migration_holds_up_only_the_guest_that_migrates():
    world = World([guest("db1"), guest("web")])
    agent = world.agent()
    agent.run(windows=1)
    agent.inbox.tell(News("started", "new"))
    assert not agent.listener.is_interrupted()
    agent.inbox.tell(News("event-migrating", "web"))
    # It moves now, maybe.
    assert agent.listener.is_interrupted()
    agent.run(windows=2)
    agent.inbox.tell(News("event-migrating", "web"))
    assert not agent.listener.is_interrupted() and agent.inbox.has_news
    agent.inbox.tell(News("event-metadata", "db1"))
    assert agent.listener.is_interrupted()


def test_a_migration_is_not_over_because_guests_cannot_be_looked_up(monkeypatch: pytest.MonkeyPatch):
    world = World([replace(guest("db1"), uuid=UUID), guest("web")])
    world.migrating = frozenset({UUID})
    agent = world.agent()
    agent.run(windows=1)

    def fails() -> None:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(world, "guests", fails)
    agent.run(windows=3)
    assert agent.status.guests["db1"].state == "migrating"
    assert set(world.applied) == {"web"}


def test_a_guest_that_arrives_is_left_alone_from_its_first_window_on():
    world = World([])
    agent = world.agent()
    agent.inbox.tell(News("migrate", "db1"))
    agent.run(windows=1)
    world.running = [replace(guest("db1"), uuid=UUID)]
    agent.run(windows=2)
    assert world.applied == [] and agent.status.guests["db1"].state == "migrating"


def test_news_end_a_rest_but_not_a_window():
    world = World([guest("db1")])
    agent = world.agent(window_ms=200)
    agent.inbox.tell(News("started", "db1"))
    started = time.monotonic()
    agent.waits.rest(3600, until_asked=True)
    assert time.monotonic() - started < 60
    agent.run(windows=1)
    assert min(world.windows_s) >= 0.2


def test_a_hangup_has_the_file_read_again_and_tells_what_changed(tmp_path: Path):
    path = tmp_path / "vmplace.toml"
    path.write_text('window_ms = 20\n[guests.db1]\nmode = "advise"\n')
    world = World([guest("db1")])
    agent = world.agent()
    loaded = parse_config(path.read_text(), path)
    agent.refresh_stage._loaded, agent.refresh_stage._given = loaded, path
    agent.roster.reload(loaded, (0, 1))
    agent.run(windows=1)
    assert world.applied == []
    before = signal.getsignal(signal.SIGHUP)
    world.wakeup.reload_on_hangup()
    try:
        for windows, (text, reported, applied) in enumerate(
            (
                ("[guests.db1\n", "not read again", []),
                (
                    'window_ms = 30\n[guests.db1]\nmode = "auto"\n',
                    "guests.'db1'.mode: advise -> auto",
                    ["db1"],
                ),
            ),
            2,
        ):
            path.write_text(text)
            os.kill(os.getpid(), signal.SIGHUP)
            agent.run(windows=windows)
            assert any(reported in note for note in agent.status.notes), agent.status.notes
            assert world.applied == applied
    finally:
        signal.signal(signal.SIGHUP, before)
    assert "vmplace.toml: window_ms: 20 -> 30 after a restart" in agent.status.notes


def test_libvirts_events_wake_whoever_listens(tmp_path: Path):
    pytest.importorskip("libvirt")
    news: list[News] = []
    # The test driver has no events of other connections: that the process lives and ends with us is all.
    hook = HookSocket(
        tmp_path / "hook.sock", news.append, lambda path: EventWatch("test:///default", path, ("a",))
    )
    hook.start()
    assert until(lambda: hook._watcher is not None)
    watcher = hook._watcher
    assert watcher and watcher.is_alive()
    hook.close()
    assert not watcher.is_alive()


STATUS = """<domstatus state='running' reason='booted' pid='7'>
  {job}
  <domain type='kvm'><name>db1</name><metadata>{metadata}</metadata></domain>
</domstatus>
"""
LEAVING = "<job type='none' async='migration out' phase='begin3' flags='0x900'/>"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is heard")
def test_a_migration_is_reported_as_soon_as_libvirtd_notes_its_job(tmp_path: Path):
    pytest.importorskip("libvirt")
    news: list[News] = []
    run = tmp_path / "run"
    run.mkdir()

    def write(job: str, metadata: str = "") -> None:
        # As virFileRewrite() does.
        (run / "db1.xml.new").write_text(STATUS.format(job=job, metadata=metadata))
        (run / "db1.xml.new").rename(run / "db1.xml")

    def watching(path: Path) -> EventWatch:
        return EventWatch("test:///default", path, (), run)

    hook = HookSocket(tmp_path / "hook.sock", news.append, watching)
    hook.start()
    try:

        def is_reported() -> bool:
            write(LEAVING)
            time.sleep(0.05)
            return bool(news)

        # Until it watches.
        assert until(is_reported)
        write(LEAVING.replace("begin3", "perform3"))
        write("<job type='modify' async='none'/>", metadata=LEAVING)
        assert until(lambda: len(news) >= 2)
        write("<job type='none' async='migration in' phase='prepare'/>")
        assert until(lambda: len(news) >= 3)
        (run / "db1.pid").write_text("7")
        # It left with the job in its file, and comes back.
        (run / "db1.xml").unlink()
        assert until(lambda: len(news) >= 4)
        write("<job type='none' async='migration in' phase='prepare'/>")
        assert until(lambda: len(news) >= 5)
    finally:
        hook.close()
    reported = [(one.operation, one.guest) for one in news]
    begins, ends = ("event-migrating", "db1"), ("event-state", "db1")
    assert reported == [begins, ends, begins, ends, begins]


def test_a_libvirtd_that_is_away_is_asked_for_less_and_less_often(tmp_path: Path):
    class Ended:
        def is_alive(self) -> bool:
            return now in alive

        def end(self) -> None: ...

    now, started, alive = 1000.0, list[float](), range(0)

    def watching(path: Path) -> EventWatch:
        started.append(now)
        return cast(EventWatch, Ended())

    hook = HookSocket(tmp_path / "hook.sock", lambda news: None, watching, clock=lambda: now)
    try:
        for second in range(3600):
            now = 1000.0 + second
            hook._keep_watching()
        assert len(started) < 55 and started[1] - started[0] <= 10
        # It came up, lived for an hour, and was restarted.
        alive = range(4600, 8200)
        for second in range(3600, 7260):
            now = 1000.0 + second
            hook._keep_watching()
        assert [at for at in started if at >= 4690] == [8200.0, 8205.0, 8215.0, 8235.0]
    finally:
        hook.close()


def test_a_second_agent_does_not_take_the_firsts_place(tmp_path: Path, heard: list[News]):
    with pytest.raises(VmplaceError, match="another agent listens"):
        HookSocket(tmp_path / "hook.sock", lambda news: None)
    send(tmp_path / "hook.sock", datagram("migrate"))
    assert until(lambda: len(heard) == 1)


def test_the_socket_of_a_killed_agent_is_replaced(tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as killed:
        killed.bind(str(tmp_path / "hook.sock"))
    HookSocket(tmp_path / "hook.sock", lambda news: None).close()
