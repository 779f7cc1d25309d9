"""What scrapes cost the agent: whoever reaches the port may scrape as often as he likes."""

import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vmplace.interfaces import metrics_exporter
from vmplace.interfaces.client import NoAgentError, RefusedError
from vmplace.interfaces.metrics_exporter import FRESH_S, MOST_CLIENTS, AgentCollector, server


@pytest.mark.parametrize("err", [NoAgentError("no agent"), RefusedError("busy", kind="busy")])
def test_scrapes_of_one_second_are_one_question_to_the_agent(
    err: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ask(*_: object, **__: object) -> None:
        asked.append(now[0])
        raise err

    monkeypatch.setattr(metrics_exporter, "ask", ask)
    now = [0.0]
    collector = AgentCollector(None, lambda: now[0])
    for tenths in range(25):
        now[0] = tenths / 10 * FRESH_S
        names = {one.name for one in collector.collect()}
        assert "vmplace_up" in names
    assert asked == [0.0, FRESH_S, 2 * FRESH_S]


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Yield the port of an exporter without an agent."""
    with server("127.0.0.1", 0, tmp_path / "none") as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found.server_port
        found.shutdown()
        thread.join()


def until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def scraped(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text: bytes = answer.read()
    return text


def test_who_has_asked_makes_room_for_nobody(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the agent takes its time, others connect and say nothing."""
    asked, answers = threading.Event(), threading.Event()

    def ask(*_: object, **__: object) -> None:
        asked.set()
        answers.wait(60)
        raise NoAgentError("no agent")

    monkeypatch.setattr(metrics_exporter, "ask", ask)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(scraped(port)))
    thread.start()
    assert asked.wait(60)
    idle = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(2 * MOST_CLIENTS)]
    assert idle[0].recv(1) == b""
    answers.set()
    thread.join()
    assert b"vmplace_up 0" in found[0]
    for one in idle:
        one.close()


def test_clients_that_ask_for_nothing_keep_no_scrape_out(port: int) -> None:
    before = threading.active_count()
    idle = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(3 * MOST_CLIENTS)]
    assert b"vmplace_up 0" in scraped(port)
    for one in idle[:MOST_CLIENTS]:
        # Who came first made room for who came last.
        assert one.recv(1) == b""
    # A thread each; some of those that made room may be about to end.
    until(lambda: threading.active_count() - before <= MOST_CLIENTS, "threads end")
    assert b"vmplace_up 0" in scraped(port)
    for one in idle:
        one.close()
