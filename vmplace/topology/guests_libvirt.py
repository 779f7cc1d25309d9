"""What does libvirt know of the guests: names, vNUMA cells, memory devices.

libvirt is optional, may be down, restart, or hang.  So a process of its own asks it (``libvirt_worker``),
when guests came or went and every now and then.  The agent waits for the answer only a moment; after that the
last answer counts, with the reason in a note.
"""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from vmplace.errors import GuestGoneError, OutsideError, UnsupportedHostError, VmplaceError
from vmplace.outside import lines, parse_json, printable
from vmplace.topology.description import GuestDescription
from vmplace.topology.domain_owner import RUN
from vmplace.topology.domain_policy import DomainPolicy, domain_policy
from vmplace.topology.domain_xml import parse_domain

SYSTEM_URI = "qemu:///system"
ANSWER_S = 2.0
REFRESH_S = 30.0
RETRY_S = 5.0
"""After an answer that lacks something; twice as long after each that still does, up to REFRESH_S."""
MOST_BYTES = 64 << 20
SILENCE = "libvirt does not answer"
UNREAD = "libvirt's answer could not be read"
CURE = "systemctl status libvirtd, or virtqemud"
FORK_CURE = "free memory, or raise TasksMax of the agent's unit"


class Answer(msgspec.Struct, frozen=True):
    """What libvirt_worker.py prints: domains as (UUID, name, XML), some text, or an error.

    ``stuck``: UUIDs of domains that libvirt did not answer for; ``unreached`` were not asked for.
    """

    domains: tuple[tuple[str, str, str], ...] = ()
    migrating: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    text: str = ""
    error: str | None = None
    gone: bool = False


@dataclass(frozen=True)
class LibvirtAnswer:
    """The running domains by UUID.  ``problem`` says why the answer is old or empty, None if it is fresh.

    ``rejected`` holds the domains that cannot be read, with the reason; ``names`` those of all, by UUID;
    ``policies`` what the XML of each says of vmplace, by UUID; ``migrating`` the UUIDs of those that leave
    or arrive.
    """

    descriptions: Mapping[str, GuestDescription] = field(default_factory=dict)
    problem: str | None = None
    rejected: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, DomainPolicy] = field(default_factory=dict)
    migrating: frozenset[str] = frozenset()


class Libvirt:
    """Keeps what libvirt said and never holds up its caller for longer than a moment."""

    def __init__(
        self,
        uri: str = SYSTEM_URI,
        *,
        answer_s: float = ANSWER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises UnsupportedHostError where the libvirt module is not installed; asks later."""
        find_libvirt()
        self._uri = uri
        self._answer_s = answer_s
        self._clock = clock
        self._worker: Question | None = None
        self._asked_for: frozenset[str] | None = None
        self._asked_at = 0.0
        self._retry_s = RETRY_S
        self._is_routine = False
        self._last = LibvirtAnswer()

    def read(self, uuids: frozenset[str] = frozenset()) -> LibvirtAnswer:
        """Return the running domains; the last known ones with a ``problem`` while libvirt is away.

        ``uuids`` are those of the guests that run: libvirt is asked at once when they changed.  If all is
        known, and only old, nobody waits for the answer: a later ``read`` takes it up.
        """
        patience_s = 0.0
        try:
            if self._worker is None and self._is_due(uuids):
                is_known, lacks = uuids == self._asked_for, self._lacks(uuids)
                self._retry_s = min(self._retry_s * 2, REFRESH_S) if is_known and lacks else RETRY_S
                self._is_routine = is_known and not lacks
                self._asked_for, self._asked_at = uuids, self._clock()
                patience_s = 0.0 if self._is_routine else self._answer_s
                self._worker = Question(self._uri, "domains")
            if self._worker is not None:
                answer = self._worker.result(patience_s)
                self._worker = None
                self._last = _answer_of(answer)
        except TimeoutError:
            if uuids == self._asked_for and self._may_take_longer:
                return self._last
            return replace(self._last, problem=SILENCE)
        except VmplaceError as err:
            self._worker, self._last = None, replace(self._last, problem=str(err))
        except BaseException:
            # Such as for want of memory.  The rest of the answer is lost: libvirt is asked again.
            self._worker, self._last = None, replace(self._last, problem=UNREAD)
            raise
        return self._last

    def ask_again(self) -> None:
        """Ask at the next ``read``, whatever is known: something changed."""
        self._asked_for = None

    @property
    def has_answered(self) -> bool:
        """Tell whether an answer that is wanted, and came late, waits for the next ``read``."""
        return self._worker is not None and not self._may_take_longer and self._worker.has_ended

    @property
    def _may_take_longer(self) -> bool:
        """Tell whether nobody waits for the answer yet."""
        return self._is_routine and self._clock() - self._asked_at < self._answer_s

    def ask_monitor(self, uuid: str, command: str) -> str:
        """Return the answer of QEMU's human monitor; taints the domain.

        Raises UnsupportedHostError while libvirt is away or refuses, GuestGoneError without that domain.
        """
        worker = Question(self._uri, "monitor", uuid, command)
        try:
            return worker.result(self._answer_s).text
        except TimeoutError:
            worker.kill()
            raise UnsupportedHostError(SILENCE, hint=cure_for(self._uri)) from None

    def close(self) -> None:
        """Stop asking."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _is_due(self, uuids: frozenset[str]) -> bool:
        age_s = self._clock() - self._asked_at
        if uuids != self._asked_for:
            return True
        return age_s >= (self._retry_s if self._lacks(uuids) else REFRESH_S)

    def _lacks(self, uuids: frozenset[str]) -> bool:
        """Tell whether the last answer lacks something that may come soon."""
        # A guest that is starting has a process before libvirt lists it.
        last = self._last
        return last.problem is not None or not uuids <= last.descriptions.keys() or bool(last.migrating)


def asked(uri: str, *question: str, text: str = "", patience_s: float = 10.0) -> Answer:
    """Return the answer to one question of libvirt_worker.py, which reads ``text``.

    Raises UnsupportedHostError while libvirt is away or refuses, GuestGoneError without that domain.
    """
    find_libvirt()
    worker = Question(uri, *question, text=text)
    try:
        return worker.result(patience_s)
    except TimeoutError:
        worker.kill()
        raise UnsupportedHostError(SILENCE, hint=cure_for(uri)) from None


class EventWatch:
    """A process that tells a datagram socket of libvirt's events; ends with the connection, and with us."""

    def __init__(self, uri: str, socket_path: Path, namespaces: Iterable[str], run: Path = RUN) -> None:
        """``run``: where libvirtd keeps its domains' status.

        Raises UnsupportedHostError if no process can be started.
        """
        script = str(Path(__file__).with_name("libvirt_worker.py"))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", script, uri, "watch", str(socket_path), str(run), *namespaces],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as err:
            raise UnsupportedHostError(f"libvirt's events cannot be watched: {err}", hint=FORK_CURE) from err

    def is_alive(self) -> bool:
        """Tell whether it still watches."""
        return self._process.poll() is None

    def end(self) -> None:
        """End it."""
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Question:
    """One question that is being asked of a libvirt_worker.py of its own."""

    def __init__(self, uri: str, *question: str, text: str = "") -> None:
        """``text`` is its stdin.  Raises UnsupportedHostError if no process can be started."""
        self._cure = cure_for(uri)
        script = str(Path(__file__).with_name("libvirt_worker.py"))
        # An answer of megabytes would fill a pipe that nobody reads.
        self._output = os.fdopen(os.memfd_create("libvirt"), "w+b")
        stdin = os.fdopen(os.memfd_create("libvirt"), "w+b")
        stdin.write(text.encode(errors="replace"))
        stdin.seek(0)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", script, uri, *question],
                stdin=stdin,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,  # Ctrl-C is the agent's alone
            )
        except OSError as err:
            raise UnsupportedHostError(f"libvirt cannot be asked: {err}", hint=FORK_CURE) from err
        finally:
            stdin.close()

    def result(self, patience_s: float) -> Answer:
        """Return the answer.

        Raises TimeoutError while there is none, GuestGoneError or UnsupportedHostError if it is a refusal.
        """
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        return _checked(self._process.returncode, self._read_output(), self._cure)

    @property
    def has_ended(self) -> bool:
        """Tell whether ``result`` has something to return or to raise at once."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End it; SIGKILL, for libvirt may hold other signals up."""
        self._process.kill()
        self._process.wait()
        self._output.close()

    def _read_output(self) -> str:
        with self._output:
            self._output.seek(0)
            answer = self._output.read(MOST_BYTES + 1)
        if len(answer) > MOST_BYTES:
            raise OutsideError("libvirt's answer is too long")
        return answer.decode(errors="replace")


def cure_for(uri: str) -> str:
    """Return what to do where libvirt cannot be asked at a URI."""
    if uri == SYSTEM_URI:
        return CURE
    return f"is {printable(uri, 200)!r} right, and does `virsh -c` reach it?  There: {CURE}"


def _checked(returncode: int, output: str, cure: str = CURE) -> Answer:
    """Return the object that a worker printed; raises for one that failed."""
    if returncode < 0:
        raise UnsupportedHostError(SILENCE, hint=cure)
    try:
        answer = parse_json(output, Answer)
    except OutsideError:
        said = lines(output.strip())[-1:] or [f"exit code {returncode}"]
        raise UnsupportedHostError(f"libvirt cannot be asked: {printable(said[0], 300)}", hint=cure) from None
    if answer.error is None:
        return answer
    if answer.gone:
        raise GuestGoneError(printable(answer.error, 300))
    raise UnsupportedHostError(printable(answer.error, 300), hint=cure)


def _answer_of(answer: Answer) -> LibvirtAnswer:
    """Return the domains of a worker's answer."""
    descriptions, rejected, policies = {}, {}, {}
    names = {uuid: name for uuid, name, _ in answer.domains}
    for uuid, name, text in answer.domains:
        policies[uuid] = domain_policy(text)
        try:
            descriptions[uuid] = parse_domain(text)
        except VmplaceError as err:
            rejected[printable(name)] = str(err)
    return LibvirtAnswer(descriptions, None, rejected, names, policies, frozenset(answer.migrating))


def find_libvirt() -> None:
    """Raise UnsupportedHostError where the libvirt module is not installed."""
    if importlib.util.find_spec("libvirt") is None:
        raise UnsupportedHostError(
            "Python has no libvirt module",
            hint="apt install python3-libvirt; in a virtual environment"
            " apt install libvirt-dev pkg-config, and pip install libvirt-python",
        )
