"""systemd hears from the loop in time, and only from one that goes on."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent.agent_world import World, guest
from vmplace.agent.heartbeat import Heartbeat
from vmplace.agent.loop import Agent


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


def heard(manager: socket.socket) -> list[str]:
    words = []
    while True:
        try:
            words.append(manager.recv(100).decode())
        except BlockingIOError:
            return words


def heartbeat(manager: socket.socket, watchdog_us: int, pid: int | None = None) -> Heartbeat:
    reported = {"NOTIFY_SOCKET": str(manager.getsockname()), "WATCHDOG_USEC": str(watchdog_us)}
    return Heartbeat.from_environment(reported | ({} if pid is None else {"WATCHDOG_PID": str(pid)}))


def test_a_loop_says_that_it_is_ready_alive_and_stopping(manager: socket.socket):
    world = World([guest("db1")])
    dry = world.agent(window_ms=200)
    agent = Agent(dry.roster._loaded, dry.state.parts, world.wakeup, heartbeat(manager, 200_000))
    agent.run(windows=1)
    words = heard(manager)
    assert (words[0], words[-1]) == ("READY=1", "STOPPING=1")
    # A window of 200 ms is slept in pieces of at most 50 ms, a quarter of the watchdog's patience.
    assert words.count("WATCHDOG=1") >= 2


def test_a_beat_that_follows_another_at_once_is_not_sent(manager: socket.socket):
    now = 0.0
    heart = Heartbeat(str(manager.getsockname()), 40.0, lambda: now)
    for at_s in (0.0, 1.0, 9.0, 10.0, 11.0, 20.0):
        now = at_s
        heart.beat()
    assert heard(manager) == ["WATCHDOG=1"] * 3


@pytest.mark.parametrize("pid", [1, None, os.getpid()], ids=["another", "any", "own"])
def test_only_the_process_that_is_watched_beats(manager: socket.socket, pid: int | None):
    heart = heartbeat(manager, 1_000_000, pid)
    heart.beat()
    assert heard(manager) == ([] if pid == 1 else ["WATCHDOG=1"])


def test_without_a_manager_nothing_is_sent_and_a_lost_one_is_no_failure(tmp_path: Path):
    for heart in (Heartbeat.from_environment({}), Heartbeat(str(tmp_path / "gone"), 1.0)):
        heart.ready()
        heart.beat()
        heart.stopping()
