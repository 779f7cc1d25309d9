"""The hook under a real libvirtd: guests start whatever the agent does, and what it prints is followed."""

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.lab.libvirt_host import DOMAIN, LibvirtHost, libvirt_host, until
from tests.unit.agent.agent_world import World, guest
from tests.unit.agent.test_guest_policy import policy_xml
from tests.unit.agent.test_loop import Running
from vmplace.agent.discovered import Discovered
from vmplace.agent.news import News, parse_news
from vmplace.interfaces.cli import cli
from vmplace.interfaces.hook_socket import HookSocket
from vmplace.topology.domain_policy import NAMESPACE, NOVA
from vmplace.topology.domain_summaries import DomainSummaries
from vmplace.topology.guests_libvirt import EventWatch, Libvirt

SUMMARY = "A" * 40_000
LIVE, MIGRATE_TO = 1, "unix:///shared/migrate.sock"
"""The only flag: the peers are known to this process alone."""
NOBODY = "8f1d3c52-0000-0000-0000-000000000001"

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def host(shared: Path) -> Iterator[LibvirtHost]:
    with libvirt_host(shared) as running:
        yield running


@contextlib.contextmanager
def defined(host: LibvirtHost, words: dict[str, str] | None, name: str = "db1") -> Iterator[Any]:
    policy = "" if words is None else policy_xml(words)
    domain = host.connect().defineXML(DOMAIN.format(name=name, policy=policy))
    try:
        yield domain
    finally:
        # libvirtd may be another one by now.
        again = host.connect().lookupByName(name)
        if again.isActive():
            again.destroy()
        again.undefineFlags(1)  # with its managed save


def _fill(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as full, contextlib.suppress(BlockingIOError):
        full.setblocking(False)
        while True:
            full.sendto(b"x", str(path))


@contextlib.contextmanager
def agent_that_is(state: str, path: Path) -> Iterator[list[bytes]]:
    """Have an agent that is there, away, hung or slow; yield what it hears."""
    path.unlink(missing_ok=True)
    heard: list[bytes] = []
    if state == "away":
        yield heard
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(0.1)
        done = threading.Event()

        def listen() -> None:
            while not done.is_set():
                with contextlib.suppress(TimeoutError):
                    heard.append(sock.recv(8192))
                time.sleep(0.5 if state == "slow" else 0)

        thread = threading.Thread(target=listen)
        if state == "hung":
            _fill(path)
        else:
            thread.start()
        try:
            yield heard
        finally:
            done.set()
            if state != "hung":
                thread.join()
    path.unlink()


@contextlib.contextmanager
def ended(watch: EventWatch) -> Iterator[None]:
    try:
        yield
    finally:
        watch.end()


def mode_of(domain: Any, flags: int = 0) -> str:
    found = re.search(r"<memory mode='(\w+)'", domain.XMLDesc(flags))
    assert found
    return found[1]


@pytest.mark.parametrize("state", ["there", "away", "hung", "slow"])
def test_every_operation_goes_on_whatever_the_agent_does(host: LibvirtHost, state: str):
    with agent_that_is(state, host.hook_socket) as heard, defined(host, {"mode": "auto"}) as domain:
        domain.create()
        assert domain.isActive()
        domain.suspend()
        domain.resume()
        domain.managedSave(0)
        domain.create()
        assert domain.isActive() and mode_of(domain) == "restrictive"
        # What the hook exits with at reconnect decides whether the guest lives.
        again = host.restart().lookupByName("db1")
        # Waits until libvirtd has its hand on the guest again.
        again.suspend()
        again.resume()
        assert again.isActive()
        again.destroy()
        again.create()
        assert again.isActive()
    reported = [news.operation for news in map(parse_news, heard) if news]
    if state == "there":
        wanted = ["prepare", "start", "started", "stopped", "release", "restore", "reconnect"]
        assert set(wanted) <= set(reported)
        assert {news.guest for news in map(parse_news, heard) if news} == {"db1"}


@pytest.mark.parametrize("state", ["away", "hung", "slow"])
def test_guests_arrive_whatever_the_agents_do(host: LibvirtHost, shared: Path, state: str):
    """There and back, and after a migration that was ended midway; saved to a file, too."""
    with (
        libvirt_host(shared, "host2") as other,
        agent_that_is(state, host.hook_socket),
        agent_that_is(state, other.hook_socket),
        defined(host, {"mode": "auto"}) as domain,
    ):
        here, there = host.connect(), other.connect()
        domain.create()
        _end_midway(domain, there)
        assert domain.isActive() and not there.listAllDomains() and mode_of(domain) == "strict"
        moved = domain.migrate(there, LIVE, None, MIGRATE_TO, 0)
        # Strict, if the hook was ended before it had answered.
        assert moved.isActive() and mode_of(moved) == "restrictive"
        back = moved.migrate(here, LIVE, None, MIGRATE_TO, 0)
        assert back.isActive() and mode_of(back) == "restrictive"
        back.save("/shared/db1.saved")
        here.restore("/shared/db1.saved")
        assert back.isActive() and mode_of(back) == "restrictive"


def _end_midway(domain: Any, there: Any) -> None:
    """Begin a migration at 1 MiB/s, and end it once memory is on its way."""
    failures: list[Exception] = []

    def migrate() -> None:
        try:
            domain.migrate(there, LIVE, None, MIGRATE_TO, 1)
        except Exception as err:
            failures.append(err)

    thread = threading.Thread(target=migrate)
    thread.start()
    until(lambda: domain.jobStats().get("memory_processed", 0) > 0, "memory is on its way")
    domain.abortJob()
    thread.join()
    assert "canceled" in str(failures[0])


@pytest.mark.parametrize(
    "words", [None, {"techniques": "move"}, {"mode": "auto", "techniques": "replicate"}, {"mode": "atuo"}]
)
def test_without_leave_strict_stays_strict(host: LibvirtHost, words: dict[str, str] | None):
    with defined(host, words) as domain:
        domain.create()
        domain.managedSave(0)
        domain.create()
        assert mode_of(domain) == "strict"


def test_policy_apply_makes_the_next_start_restrictive(host: LibvirtHost):
    with defined(host, {"mode": "auto"}) as domain:
        domain.create()
        uri = ["--libvirt-uri", host.uri]
        done = CliRunner().invoke(cli, ["policy", "apply", "--config", "db1", "--json", *uri])
        assert json.loads(done.stdout)["changed"] is True, done.exception
        assert (mode_of(domain), mode_of(domain, 2)) == ("strict", "restrictive")
        domain.destroy()
        domain.create()
        assert mode_of(domain) == "restrictive"


def test_doctor_names_strict_guests_and_the_cure(host: LibvirtHost):
    with defined(host, {"mode": "auto"}) as domain:
        domain.create()
        reported = CliRunner().invoke(cli, ["doctor", "--json", "--libvirt-uri", host.uri]).stdout
    (bound,) = (one for one in json.loads(reported)["capabilities"] if "other nodes" in one["name"])
    assert bound["answer"] is False and "db1 (nodes 0)" in bound["why"] and "policy apply" in bound["cure"]


class LibvirtWorld(World):
    """A world whose policies are those that a real libvirtd tells."""

    libvirt: Libvirt

    def guests(self) -> Discovered:
        reported = self.libvirt.read(frozenset(one.uuid or "" for one in self.running))
        return Discovered(tuple(self.running), policies=reported.policies, migrating=reported.migrating)

    def has_news(self) -> bool:
        return False

    def look_again(self, *, asking: bool = False) -> None:
        if asking:
            self.libvirt.ask_again()


def test_a_policy_set_through_libvirt_is_followed_within_a_window(host: LibvirtHost):
    """Also after libvirtd was restarted; nothing is looked up by itself in that time (REFRESH_S)."""
    uri = ["--libvirt-uri", host.uri]
    with defined(host, {"mode": "advise"}) as domain:
        domain.create()
        world = LibvirtWorld([replace(guest("db1"), uuid=domain.UUIDString())])
        world.libvirt = Libvirt(host.uri, answer_s=30)
        news: list[News] = []
        with Running(world) as running:

            def tell(one: News) -> None:
                news.append(one)
                running.agent.inbox.tell(one)

            hook = HookSocket(
                host.hook_socket, tell, lambda path: EventWatch(host.uri, path, (NAMESPACE, NOVA))
            )
            hook.start()
            try:
                _wait_for_watch(host, news)
                for mode in ("manual", "auto"):
                    assert running.agent.status.guests["db1"].mode != mode
                    set_ = CliRunner().invoke(cli, ["policy", "set", "db1", f"mode={mode}", *uri])
                    assert set_.exit_code == 0, set_.exception
                    until(lambda: running.agent.status.guests["db1"].mode == mode, mode, 20)  # noqa: B023
                assert "event-metadata" in {one.operation for one in news}
                host.restart()
                news.clear()
                _wait_for_watch(host, news)
                CliRunner().invoke(cli, ["policy", "set", "db1", "mode=advise", *uri])
                until(lambda: running.agent.status.guests["db1"].mode == "advise", "advise", 20)
            finally:
                hook.close()


def _wait_for_watch(host: LibvirtHost, news: list[News]) -> None:
    """Wait until events are heard: change another domain until its event comes."""
    with defined(host, None, name="wakeup") as wakeup:

        def rung() -> bool:
            wakeup.setMetadata(2, f"<policy xmlns='{NAMESPACE}'/>", "vmplace", NAMESPACE, 2)
            time.sleep(0.2)
            return any(one.guest == "wakeup" for one in news)

        until(rung, "events are heard")


def test_a_guest_that_migrates_is_frozen_on_both_hosts_and_arrives_restrictive(
    host: LibvirtHost, shared: Path
):
    states = {"source": False, "target": False}
    summaries = DomainSummaries(host.uri)
    with (
        libvirt_host(shared, "host2") as other,
        agent_that_is("there", host.hook_socket) as heard_here,
        agent_that_is("there", other.hook_socket) as heard,
        defined(host, {"mode": "auto"}) as domain,
        ended(EventWatch(host.uri, host.hook_socket, (), host.status)),
    ):
        there = other.connect()
        domain.create()
        # Not while it is written.
        summaries.write({domain.UUIDString(): SUMMARY, NOBODY: SUMMARY})
        summaries.finish(30)
        heard_here.clear()
        watched, done = [Libvirt(host.uri, answer_s=30), Libvirt(other.uri, answer_s=30)], threading.Event()

        def watch() -> None:
            while not done.is_set():
                for name, libvirt in zip(states, watched, strict=True):
                    libvirt.ask_again()
                    states[name] |= bool(libvirt.read().migrating)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            # 1 MiB/s.
            moved = domain.migrate(there, LIVE, None, MIGRATE_TO, 1)
        finally:
            done.set()
            thread.join()
        assert moved.isActive() and mode_of(moved) == "restrictive"
        operations = [one.operation for one in map(parse_news, heard) if one]
        assert operations[0] == "migrate"
        # The source's agent hears of it before anything else, the first round included.
        reported = [news.operation for news in map(parse_news, heard_here) if news]
        assert reported[0] == "event-migrating" and "event-state" in reported
        answer = Libvirt(other.uri, answer_s=30).read()
        assert not answer.migrating
        (said,) = answer.policies.values()
        assert said.placement == SUMMARY and said.has_policy
        again = DomainSummaries(other.uri)
        again.write({moved.UUIDString(): ""})
        again.finish(30)
        (said,) = Libvirt(other.uri, answer_s=30).read().policies.values()
        assert said.placement == ""
        moved.destroy()
    assert states == {"source": True, "target": True}
