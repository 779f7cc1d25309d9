"""What does libvirt say?  Asked in a process of its own, which ends with the answer.

libvirt's libraries would be a quarter of the agent's memory, and a call to a libvirtd that hangs cannot be
taken back; a process can be killed.  Run as a file, for it needs nothing of the package:

    python3 -P libvirt_worker.py URI domains
    python3 -P libvirt_worker.py URI monitor UUID COMMAND
    python3 -P libvirt_worker.py URI domain NAME            its XML, and that of its next start
    python3 -P libvirt_worker.py URI set NAME WHERE NAMESPACE PREFIX    metadata from stdin; empty: out
    python3 -P libvirt_worker.py URI summaries NAMESPACE    of live domains: [[UUID, element], …] from stdin
    python3 -P libvirt_worker.py URI secure NAME            the XML of its next start, with its secrets
    python3 -P libvirt_worker.py URI define NAME            the XML of its next start from stdin

A domain whose QEMU hangs holds up whoever asks for it for 30 s: each is waited for DOMAIN_S.

Prints one JSON object (guests_libvirt.Answer), or {"error": …, "gone": whether the domain ended}.  And, until
its stdin ends, sends a datagram (agent/news.py) for each event that a policy or a migration may follow from:

    python3 -P libvirt_worker.py URI watch SOCKET RUN NAMESPACE...

libvirt has no event for a migration that begins: its first one comes with the first round, when QEMU logs
dirty pages already.  But libvirtd writes a job into the domain's status file, RUN/NAME.xml, before it does
anything for it; that is watched, and rounds are listened to only where it cannot be.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

LIFE_S = 30
"""The longest that a worker waits for libvirt; one whose agent was killed ends then, too."""
MOST_BYTES = MOST_XML_BYTES = 16 << 20
"""Of what is read; and of all domains' XML together, which JSON makes three times as long at the most."""
DOMAIN_S = 1.5
MOST_STUCK = 3
"""libvirtd works on five calls of a connection at once (max_client_requests); those that hang count."""
ALIVE_S, ALIVE_TRIES = 5, 3
ROUND_S = 1.0
"""Between reports of a migration that goes on."""
MIGRATION = re.compile(rb"<job [^>]*async='migration (?:out|in)'")
IN_CLOSE_WRITE, IN_MOVED_TO, IN_DELETE, INOTIFY_EVENT = 0x8, 0x80, 0x200, struct.Struct("iIII")
RUN = Path("/run/libvirt/qemu")
CHANGES = frozenset({"monitor", "set", "summaries", "secure", "define"})
"""Questions that libvirt does not allow who may only read: they change something, or tell secrets."""


class StuckError(Exception):
    """libvirt does not answer for one domain."""


class Rounds:
    """Which rounds of a migration are reported: one a second, as the last ones come while it stands still."""

    def __init__(self) -> None:
        self._next_s: dict[str, float] = {}

    def are_due(self, name: str, now_s: float) -> bool:
        """Tell whether a round of this domain is to be reported now."""
        self._next_s = {other: next_s for other, next_s in self._next_s.items() if next_s > now_s}
        is_due = name not in self._next_s
        self._next_s.setdefault(name, now_s + ROUND_S)
        return is_due

    def end(self, name: str) -> None:
        """Forget a domain whose migration may be over: the first round of the next one is to be reported."""
        self._next_s.pop(name, None)


class CrowdedError(Exception):
    """It does not answer for MOST_STUCK: further calls would only wait for these."""


class Bounded:
    """Calls, each for one domain and for DOMAIN_S at most; one that hangs goes on in a thread of its own."""

    def __init__(self) -> None:
        self.stuck = 0

    def call(self, function: Callable[[], Any]) -> Any:
        """Return what ``function`` returns; raises what it raises, StuckError, CrowdedError."""
        if self.stuck >= MOST_STUCK:
            raise CrowdedError
        ended: list[Callable[[], Any]] = []
        thread = threading.Thread(target=lambda: ended.append(_outcome(function)), daemon=True)
        thread.start()
        thread.join(DOMAIN_S)
        if not ended:
            self.stuck += 1
            raise StuckError
        return ended[0]()


def _outcome(function: Callable[[], Any]) -> Callable[[], Any]:
    """Call ``function``; return what returns or raises the same."""
    try:
        value = function()
    except Exception as err:
        error = err

        def fail() -> Any:
            raise error

        return fail
    return lambda: value


def main(uri: str, question: str, *words: str) -> dict[str, Any]:
    """Return the answer to one question."""
    if question != "watch":
        signal.alarm(LIFE_S)
    import libvirt

    # The default handler prints each error to stderr.
    libvirt.registerErrorHandler(lambda *_: None, None)
    if question == "watch":
        libvirt.virEventRegisterDefaultImpl()
    try:
        # The agent's own questions go by a connection that could change nothing.
        opened = libvirt.open if question in CHANGES else libvirt.openReadOnly
        connection = opened(uri)
        return QUESTIONS[question](connection, *words)
    except libvirt.libvirtError as err:
        return {"error": f"libvirt: {err}", "gone": err.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN}
    except CrowdedError:
        return {"error": f"libvirt does not answer for {MOST_STUCK} domains, or more"}


def read_domains(connection: Any) -> dict[str, Any]:
    """Return the running domains; one that ended since the list was made is left out.

    One that libvirt does not answer for passes for one that migrates: nothing is done to it.  Metadata may be
    of megabytes: of more than MOST_XML_BYTES, the longest are left out, and these domains alone.
    """
    import libvirt

    domains: list[tuple[str, str, str]] = []
    migrating, bounded, room = [], Bounded(), MOST_XML_BYTES
    for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
        try:
            # First: the XML of one that arrives is given only once it has.
            if _is_migrating_or_stuck(domain, bounded):
                migrating.append(domain.UUIDString())
            domains.append((domain.UUIDString(), domain.name(), domain.XMLDesc(0)))
            room -= len(domains[-1][2].encode(errors="replace"))
            while room < 0:
                room += _cut_longest(domains)
        except libvirt.libvirtError as err:
            if err.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise
    return {"domains": domains, "migrating": migrating}


def _cut_longest(domains: list[tuple[str, str, str]]) -> int:
    """Leave the longest XML out; return its bytes."""
    at = max(range(len(domains)), key=lambda index: len(domains[index][2]))
    uuid, name, text = domains[at]
    domains[at] = uuid, name, ""
    return len(text.encode(errors="replace"))


def _is_migrating_or_stuck(domain: Any, bounded: Bounded) -> bool:
    import libvirt

    try:
        return bool(bounded.call(partial(is_migrating, domain)))
    except StuckError:
        return True
    except CrowdedError:
        # Others' QEMUs hang, which is no reason to know nothing of this one: libvirtd writes it down, too.
        return has_migration(RUN / f"{domain.name()}.xml")
    except libvirt.libvirtError as err:
        # Another's job on it does not end.
        if err.get_error_code() == libvirt.VIR_ERR_OPERATION_TIMEOUT:
            return True
        raise


def is_migrating(domain: Any) -> bool:
    """Tell whether a migration of it is under way, on either host."""
    import libvirt

    state, reason = domain.state()
    if (state, reason) in {
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY),
        (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY),
    }:
        return True
    try:
        job = domain.jobStats()
    except libvirt.libvirtError as err:
        return _arrives(err)
    kinds = (libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN, libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT)
    return job.get("type") != libvirt.VIR_DOMAIN_JOB_NONE and job.get("operation") in kinds


def has_job(domain: Any) -> bool:
    """Tell whether a job is under way, such as a migration or a dump, until whose end nothing changes."""
    import libvirt

    try:
        return bool(domain.jobStats().get("type") != libvirt.VIR_DOMAIN_JOB_NONE)
    except libvirt.libvirtError as err:
        return _arrives(err)


def _arrives(err: Any) -> bool:
    """Tell whether jobStats failed as for a domain that arrives."""
    import libvirt

    # "migration statistics are available only on the source host"; drivers without jobs say NO_SUPPORT.
    return bool(err.get_error_code() == libvirt.VIR_ERR_OPERATION_UNSUPPORTED)


def ask_monitor(connection: Any, uuid: str, command: str) -> dict[str, Any]:
    """Return the answer of QEMU's human monitor; taints the domain."""
    import libvirt_qemu

    hmp = libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP
    return {"text": libvirt_qemu.qemuMonitorCommand(connection.lookupByUUIDString(uuid), command, hmp)}


def read_domain(connection: Any, name: str) -> dict[str, Any]:
    """Return the XML of one domain: as it runs, and as it starts next (empty for a transient one)."""
    import libvirt

    domain = connection.lookupByName(name)
    config = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE) if domain.isPersistent() else ""
    live = domain.XMLDesc(0) if domain.isActive() else ""
    return {"domains": [(domain.UUIDString(), domain.name(), live)], "text": config}


def set_metadata(connection: Any, name: str, where: str, namespace: str, prefix: str) -> dict[str, Any]:
    """Set one element of the domain's metadata to what stdin says, ``live``, ``config`` or ``both``."""
    import libvirt

    flags = {
        "live": libvirt.VIR_DOMAIN_AFFECT_LIVE,
        "config": libvirt.VIR_DOMAIN_AFFECT_CONFIG,
        "both": libvirt.VIR_DOMAIN_AFFECT_LIVE | libvirt.VIR_DOMAIN_AFFECT_CONFIG,
    }[where]
    text = sys.stdin.read(MOST_BYTES)
    element = libvirt.VIR_DOMAIN_METADATA_ELEMENT
    domain = connection.lookupByName(name)
    domain.setMetadata(element, text or None, prefix if text else None, namespace, flags)
    return {}


def set_summaries(connection: Any, namespace: str) -> dict[str, Any]:
    """Set one element of the live metadata of several domains, in turn; tell what went wrong.

    ``stuck`` are those that libvirt does not answer for, ``unreached`` all that come after too many of these.
    """
    import libvirt

    wrong, stuck, unreached, bounded = [], [], [], Bounded()
    for uuid, text in json.loads(sys.stdin.read(MOST_BYTES)):
        try:
            bounded.call(partial(_set_summary, connection, namespace, uuid, text))
        except StuckError:
            stuck.append(uuid)
        except CrowdedError:
            unreached.append(uuid)
        except libvirt.libvirtError as err:
            # It ended, is shut off, or had none to take out.
            if err.get_error_code() not in {
                libvirt.VIR_ERR_NO_DOMAIN,
                libvirt.VIR_ERR_OPERATION_INVALID,
                libvirt.VIR_ERR_NO_DOMAIN_METADATA,
            }:
                wrong.append(f"{uuid}: {err}")
    return {"text": "; ".join(wrong), "stuck": stuck, "unreached": unreached}


def _set_summary(connection: Any, namespace: str, uuid: str, text: str) -> None:
    import libvirt

    element, live = libvirt.VIR_DOMAIN_METADATA_ELEMENT, libvirt.VIR_DOMAIN_AFFECT_LIVE
    domain = connection.lookupByUUIDString(uuid)
    # libvirt would have us wait for a job's end.
    if not has_job(domain):
        domain.setMetadata(element, text or None, "placement" if text else None, namespace, live)


def read_secure(connection: Any, name: str) -> dict[str, Any]:
    """Return the XML of a domain's next start, with its secrets: what a new definition must keep."""
    import libvirt

    flags = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE
    return {"text": connection.lookupByName(name).XMLDesc(flags)}


def define(connection: Any, name: str) -> dict[str, Any]:
    """Define the domain anew for its next start, with what stdin says."""
    text = sys.stdin.read(MOST_BYTES)
    connection.lookupByName(name)
    connection.defineXML(text)
    return {}


def watch(connection: Any, socket_path: str, run: str, *namespaces: str) -> dict[str, Any]:
    """Tell the socket of each event until stdin ends, or the connection does."""
    import libvirt

    send = _sender(socket_path)
    rounds = Rounds()

    def tell(domain: Any, event: str) -> None:
        send(event, domain.name(), domain.UUIDString())

    def on_metadata(_c: Any, domain: Any, _type: int, namespace: str | None, _o: Any) -> None:
        if namespace in namespaces:
            tell(domain, "event-metadata")

    def on_iteration(_c: Any, domain: Any, *_: Any) -> None:
        if rounds.are_due(domain.name(), time.monotonic()):
            tell(domain, "event-migrating")

    def on_lifecycle(_c: Any, domain: Any, event: int, detail: int, _o: Any) -> None:
        if not _is_step_of_migration(event, detail):
            on_other(_c, domain)

    def on_other(_c: Any, domain: Any, *_: Any) -> None:
        rounds.end(domain.name())
        tell(domain, "event-state")

    wanted: dict[int, Callable[..., None]] = {
        libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE: on_metadata,
        libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE: on_lifecycle,
        libvirt.VIR_DOMAIN_EVENT_ID_JOB_COMPLETED: on_other,
    }
    if not _watch_jobs(Path(run), send):
        # Each wakes this process, and the last ones while the guest stands still.
        wanted[libvirt.VIR_DOMAIN_EVENT_ID_MIGRATION_ITERATION] = on_iteration
    _register(connection, wanted)
    _run_events(connection)
    return {}


def _register(connection: Any, callbacks: dict[int, Callable[..., None]]) -> None:
    import libvirt

    for number, callback in callbacks.items():
        # Not all drivers have all events; what is not reported is found at the next look.
        with contextlib.suppress(libvirt.libvirtError):
            connection.domainEventRegisterAny(None, number, callback, None)


def _sender(socket_path: str) -> Callable[..., None]:
    """Return what tells the socket of an event of a guest."""
    import socket

    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def send(event: str, name: str, uuid: str = "") -> None:
        fields = (b"1", event.encode(), b"-", b"-", os.fsencode(name), uuid.encode())
        # An agent that is busy looks by itself now and then; one that is gone needs nothing.
        with contextlib.suppress(OSError):
            sender.sendto(b"\0".join(fields), socket_path)

    return send


def _is_step_of_migration(event: int, detail: int) -> bool:
    """Tell whether a guest stands still as it migrates: a look would take CPU from what it waits for."""
    import libvirt

    return (event, detail) in {
        (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_SUSPENDED_MIGRATED),
        (libvirt.VIR_DOMAIN_EVENT_STARTED, libvirt.VIR_DOMAIN_EVENT_STARTED_MIGRATED),
    }


def _watch_jobs(run: Path, send: Callable[[str, str], None]) -> bool:
    """Have the beginning and the end of each migration reported, by the status files in ``run``.

    Return whether they can be watched.
    """
    import libvirt

    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    # A guest that left is gone with its file, whatever job that named.
    changes = IN_CLOSE_WRITE | IN_MOVED_TO | IN_DELETE
    if fd < 0:
        return False
    if libc.inotify_add_watch(fd, os.fsencode(run), changes) < 0:
        os.close(fd)
        return False
    migrating: set[str] = set()

    def on_change(*_: Any) -> None:
        for name in dict.fromkeys(_changed_files(fd)):
            domain, suffix = name[:-4], name[-4:]
            if suffix != ".xml" or has_migration(run / name) == (domain in migrating):
                continue
            migrating.symmetric_difference_update({domain})
            send("event-migrating" if domain in migrating else "event-state", domain)

    libvirt.virEventAddHandle(fd, libvirt.VIR_EVENT_HANDLE_READABLE, on_change, None)
    return True


def _changed_files(fd: int) -> Iterator[str]:
    data = os.read(fd, 1 << 16)
    at = 0
    while at < len(data):
        *_, length = INOTIFY_EVENT.unpack_from(data, at)
        at += INOTIFY_EVENT.size + length
        yield os.fsdecode(data[at - length : at].rstrip(b"\0"))


def has_migration(status: Path) -> bool:
    """Tell whether libvirtd's status of a domain, if there is one, has a migration under way."""
    try:
        with status.open("rb") as file:
            # What follows is the domain's own XML, which says what its owner likes.
            return bool(MIGRATION.search(file.read(MOST_BYTES).partition(b"<domain ")[0]))
    except OSError:
        return False


def _run_events(connection: Any) -> None:
    import libvirt

    ended: list[object] = []
    with contextlib.suppress(libvirt.libvirtError):
        connection.setKeepAlive(ALIVE_S, ALIVE_TRIES)
    wanted = libvirt.VIR_EVENT_HANDLE_READABLE | libvirt.VIR_EVENT_HANDLE_HANGUP
    libvirt.virEventAddHandle(0, wanted, lambda *_: ended.append(0), None)
    # A timer that does nothing ends each wait, so that a dead connection is seen.
    libvirt.virEventAddTimeout(1000 * ALIVE_S, lambda *_: None, None)
    while not ended and connection.isAlive():
        libvirt.virEventRunDefaultImpl()


QUESTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "domains": read_domains,
    "monitor": ask_monitor,
    "domain": read_domain,
    "set": set_metadata,
    "summaries": set_summaries,
    "secure": read_secure,
    "define": define,
    "watch": watch,
}

if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
    sys.stdout.flush()
    # Threads that wait for a domain that hangs are not waited for.
    os._exit(0)
