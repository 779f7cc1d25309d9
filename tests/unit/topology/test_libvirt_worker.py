"""What the worker that writes summaries does with domains that libvirt would have it wait for."""

import importlib.util
import io
import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vmplace.topology import libvirt_worker

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libvirt") is None, reason="Python has no libvirt module"
)
NAMESPACE = "urn:vmplace:placement:1"
WELL = {"text": "", "stuck": [], "unreached": []}


HUNG: set[int] = set()
"""The threads that wait in libvirt until a domain's ``end``."""


class Patient(threading.Thread):
    """Waits for an answer for as long as it takes, and not at all for one that never comes."""

    def join(self, timeout: float | None = None) -> None:
        assert timeout == libvirt_worker.DOMAIN_S
        while self.is_alive() and self.ident not in HUNG:
            super().join(0.01)


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine has a domain that is well answer late, and none of them may pass for one that hangs."""
    monkeypatch.setattr(libvirt_worker, "threading", SimpleNamespace(Thread=Patient))
    HUNG.clear()


def set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass
class Domain:
    """A domain in the middle of a job, as the QEMU driver tells of it; no libvirtd runs here.

    Until ``end`` is set it hangs, as libvirt does while another job on the domain does not end.
    """

    job: dict[str, int]
    texts: list[str | None] = field(default_factory=list)
    end: threading.Event = field(default_factory=set_event)

    def jobStats(self) -> dict[str, int]:  # noqa: N802
        if not self.end.is_set():
            HUNG.add(threading.get_ident())
            self.end.wait(60)
        return self.job

    def state(self) -> tuple[int, int]:
        return (1, 1)

    def name(self) -> str:
        return "a"

    def UUIDString(self) -> str:  # noqa: N802
        return f"u{id(self)}"

    def XMLDesc(self, flags: int) -> str:  # noqa: N802
        return "<domain/>"

    def setMetadata(self, *words: Any) -> None:  # noqa: N802
        self.texts.append(words[1])


class Connection:
    def __init__(self, **domains: Domain) -> None:
        self._domains = domains

    def lookupByUUIDString(self, uuid: str) -> Domain:  # noqa: N802
        return self._domains[uuid]

    def listAllDomains(self, flags: int) -> list[Domain]:  # noqa: N802
        return list(self._domains.values())


def test_a_domain_with_a_job_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    import libvirt

    busy = Domain({"type": libvirt.VIR_DOMAIN_JOB_UNBOUNDED})
    idle = Domain({"type": libvirt.VIR_DOMAIN_JOB_NONE})
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps([["busy", "<a/>"], ["idle", "<a/>"]])))
    connection = Connection(busy=busy, idle=idle)
    assert libvirt_worker.set_summaries(connection, NAMESPACE) == WELL
    assert busy.texts == [] and idle.texts == ["<a/>"]


@contextmanager
def hanging(monkeypatch: pytest.MonkeyPatch, *at: int) -> Iterator[tuple[Connection, list[Domain]]]:
    """Yield a connection with ten domains, those at these places hung."""
    import libvirt

    domains = [Domain({"type": libvirt.VIR_DOMAIN_JOB_NONE}) for _ in range(10)]
    for place in at:
        domains[place].end = threading.Event()
    reported = [(f"d{i}", f"<a>{i}</a>") for i in range(10)]
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(reported)))
    try:
        yield Connection(**{f"d{i}": one for i, one in enumerate(domains)}), domains
    finally:
        for one in domains:
            one.end.set()


def test_a_domain_that_hangs_holds_up_no_other(monkeypatch: pytest.MonkeyPatch):
    with hanging(monkeypatch, 0) as (connection, domains):
        reported = libvirt_worker.set_summaries(connection, NAMESPACE)
        assert reported == {"text": "", "stuck": ["d0"], "unreached": []}
        assert [bool(one.texts) for one in domains] == [False] + [True] * 9


def test_those_behind_too_many_that_hang_are_reported(monkeypatch: pytest.MonkeyPatch):
    with hanging(monkeypatch, 1, 2, 3) as (connection, domains):
        reported = libvirt_worker.set_summaries(connection, NAMESPACE)
        assert (reported["stuck"], reported["unreached"]) == (
            ["d1", "d2", "d3"],
            [f"d{i}" for i in range(4, 10)],
        )
        assert domains[0].texts


def test_of_a_domain_that_hangs_nothing_is_done_and_the_others_are_reported(monkeypatch: pytest.MonkeyPatch):
    with hanging(monkeypatch, 5) as (connection, domains):
        reported = libvirt_worker.read_domains(connection)
        assert len(reported["domains"]) == 10 and reported["migrating"] == [domains[5].UUIDString()]


def test_the_test_driver_which_has_no_jobs_is_written_to(monkeypatch: pytest.MonkeyPatch):
    import libvirt

    connection = libvirt.open("test:///default")
    domain = connection.lookupByName("test")
    element = libvirt.VIR_DOMAIN_METADATA_ELEMENT
    reported = json.dumps([[domain.UUIDString(), "<placement>A</placement>"]])
    monkeypatch.setattr("sys.stdin", io.StringIO(reported))
    assert libvirt_worker.set_summaries(connection, NAMESPACE) == WELL
    assert "A" in domain.metadata(element, NAMESPACE, libvirt.VIR_DOMAIN_AFFECT_LIVE)


def test_domains_with_megabytes_of_metadata_cost_no_other_its_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Domain, "XMLDesc", lambda self, flags: "é" * self.job["letters"])
    sizes = [100, *[2 << 20] * 20, 50]
    connection = Connection(**{f"d{at}": Domain({"letters": size}) for at, size in enumerate(sizes)})
    texts = [text for _, _, text in libvirt_worker.read_domains(connection)["domains"]]
    assert [len(texts[0]), len(texts[-1])] == [100, 50] and len(texts) == len(sizes)
    assert len(json.dumps(texts)) < 64 << 20


def test_domains_that_hang_leave_the_others_known():
    hung = [Domain({}, end=threading.Event()) for _ in range(libvirt_worker.MOST_STUCK + 2)]
    well = Domain({"type": 0})
    named = {f"d{at}": domain for at, domain in enumerate([*hung, well])}
    answer = libvirt_worker.read_domains(Connection(**named))
    assert len(answer["domains"]) == len(named)
    assert well.UUIDString() not in answer["migrating"]
    for domain in hung:
        domain.end.set()


@pytest.mark.parametrize("question", [one for one in libvirt_worker.QUESTIONS if one != "watch"])
def test_a_question_is_asked_by_a_connection_that_can_change_nothing(
    monkeypatch: pytest.MonkeyPatch, question: str
):
    import libvirt

    opened: list[str] = []
    for name in ("open", "openReadOnly"):
        monkeypatch.setattr(libvirt, name, lambda uri, name=name: opened.append(name))
    monkeypatch.setattr(signal, "alarm", lambda _: 0)
    monkeypatch.setitem(libvirt_worker.QUESTIONS, question, lambda *_: {})
    assert libvirt_worker.main("test:///default", question) == {}
    # QEMU's monitor, metadata and definitions are refused to a connection that may only read.
    changes = {"monitor", "set", "summaries", "secure", "define"}
    assert opened == ["open" if question in changes else "openReadOnly"]


class Listened:
    """A connection that remembers who wants which events."""

    def __init__(self) -> None:
        self.callbacks: dict[int, Any] = {}

    def domainEventRegisterAny(self, _domain: None, number: int, callback: Any, _opaque: None) -> None:  # noqa: N802
        self.callbacks[number] = callback


@pytest.mark.parametrize(
    ("event", "detail", "is_reported"),
    [
        ("SUSPENDED", "SUSPENDED_MIGRATED", False),
        ("STARTED", "STARTED_MIGRATED", False),
        ("SUSPENDED", "SUSPENDED_PAUSED", True),
        ("STARTED", "STARTED_BOOTED", True),
        ("RESUMED", "RESUMED_MIGRATED", True),
        ("STOPPED", "STOPPED_MIGRATED", True),
    ],
)
def test_what_a_guest_does_while_it_stands_still_to_migrate_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str, detail: str, is_reported: bool
):
    import libvirt

    event_number, detail_number = (getattr(libvirt, f"VIR_DOMAIN_EVENT_{name}") for name in (event, detail))
    monkeypatch.setattr(libvirt_worker, "_watch_jobs", lambda *_: True)
    monkeypatch.setattr(libvirt_worker, "_run_events", lambda _: None)
    connection = Listened()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "heard"))
        heard.settimeout(0.0)
        libvirt_worker.watch(connection, str(tmp_path / "heard"), str(tmp_path))
        lifecycle = connection.callbacks[libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE]
        lifecycle(connection, Domain({}), event_number, detail_number, None)
        if is_reported:
            assert heard.recv(8192).split(b"\0")[1] == b"event-state"
        else:
            with pytest.raises(BlockingIOError):
                heard.recv(8192)


def test_rounds_of_a_migration_are_reported_once_a_second():
    """Those that follow at once, while the guest stands still, would cost it CPU."""
    rounds = libvirt_worker.Rounds()
    assert [rounds.are_due("a", now_s) for now_s in (10.0, 10.9, 11.0, 11.1, 12.5)] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert rounds.are_due("b", 12.6)
    # A retry's first round is news, however soon it comes.
    rounds.end("b")
    assert rounds.are_due("b", 12.7)


@pytest.mark.parametrize("can_watch", [True, False])
def test_rounds_are_listened_to_only_where_no_status_file_tells_of_a_migration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_watch: bool
):
    import libvirt

    monkeypatch.setattr(libvirt_worker, "_watch_jobs", lambda *_: can_watch)
    monkeypatch.setattr(libvirt_worker, "_run_events", lambda _: None)
    connection = Listened()
    libvirt_worker.watch(connection, str(tmp_path / "heard"), str(tmp_path))
    assert (libvirt.VIR_DOMAIN_EVENT_ID_MIGRATION_ITERATION in connection.callbacks) != can_watch
    assert libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE in connection.callbacks


def test_a_folder_that_cannot_be_watched_leaves_nothing_open(tmp_path: Path):
    assert not libvirt_worker._watch_jobs(tmp_path / "none", lambda *_: None)
