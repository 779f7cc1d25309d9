"""What does libvirt know of the guests: names, vNUMA cells, memory devices.

libvirt is optional, may be down, restart, or hang.  All calls run in a thread of their own, and the
agent waits for it only a moment: then the last answer counts, with the reason told.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, TypeVar

from vmplace.errors import GuestGoneError, UnsupportedHostError, VmplaceError
from vmplace.topology.description import GuestDescription
from vmplace.topology.domain_xml import parse_domain

T = TypeVar("T")

SYSTEM_URI = "qemu:///system"
ANSWER_S = 2.0
RETRY_S = 5.0


@dataclass(frozen=True)
class LibvirtAnswer:
    """The running domains by UUID.  ``problem`` says why the answer is old or empty, None if it is fresh.

    ``rejected`` holds the domains that cannot be read, with the reason.
    """

    descriptions: Mapping[str, GuestDescription] = field(default_factory=dict)
    problem: str | None = None
    rejected: Mapping[str, str] = field(default_factory=dict)


class Libvirt:
    """A connection that reconnects by itself and never holds up its caller for longer than a moment."""

    def __init__(
        self, uri: str = SYSTEM_URI, *, answer_s: float = ANSWER_S, retry_s: float = RETRY_S
    ) -> None:
        """Raises UnsupportedHostError where the libvirt module is not installed; connects later."""
        self._module = import_libvirt()
        self._uri = uri
        self._answer_s = answer_s
        self._retry_s = retry_s
        self._connection: Any = None
        self._retry_at = 0.0
        self._last = LibvirtAnswer()
        self._pending: Future[Any] | None = None
        self._requests: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        # A daemon thread: one that is stuck in a call must not keep the agent from ending.
        threading.Thread(target=self._serve, name="libvirt", daemon=True).start()

    def read(self) -> LibvirtAnswer:
        """Return the running domains; the last known ones with a ``problem`` while libvirt is away."""
        try:
            self._call(self._read_domains)
        except UnsupportedHostError as err:
            return replace(self._last, problem=str(err))
        return self._last

    def ask_monitor(self, uuid: str, command: str) -> str:
        """Return the answer of QEMU's human monitor; taints the domain.

        Raises UnsupportedHostError while libvirt is away or refuses, GuestGoneError without that domain.
        """
        answer: str = self._call(lambda: self._run_monitor_command(uuid, command))
        return answer

    def run(self, function: Callable[[Any], T]) -> T:
        """Return ``function(connection)``, run where it cannot hold up the caller.

        Raises as ``ask_monitor`` does.  The call may still take effect after it was given up.
        """
        answer: T = self._call(lambda: function(self._connect()))
        return answer

    def close(self) -> None:
        """End the thread as soon as its present call returns; does not wait for it."""
        self._requests.put(None)

    def _call(self, function: Callable[[], Any]) -> Any:
        if self._pending is not None and not self._pending.done():
            raise UnsupportedHostError("libvirt does not answer", hint="systemctl status libvirtd")
        future: Future[Any] = Future()
        self._pending = future
        self._requests.put((function, future))
        try:
            return future.result(self._answer_s)
        except FutureTimeoutError:
            raise UnsupportedHostError("libvirt does not answer", hint="systemctl status libvirtd") from None

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            function, future = request
            try:
                future.set_result(function())
            except self._module.libvirtError as err:
                future.set_exception(self._translate(err))
            except Exception as err:
                # Whatever it is, the caller waits for it, and the next caller for this thread.
                future.set_exception(err)
        self._connection = None

    def _translate(self, err: Any) -> VmplaceError:
        if err.get_error_code() == self._module.VIR_ERR_NO_DOMAIN:
            return GuestGoneError(str(err))
        self._drop_dead_connection()
        return UnsupportedHostError(f"libvirt: {err}", hint="systemctl status libvirtd")

    def _connect(self) -> Any:
        self._drop_dead_connection()
        if self._connection is None:
            # A libvirtd that is starting up takes seconds to refuse; do not ask it in every window.
            if time.monotonic() < self._retry_at:
                raise UnsupportedHostError("libvirt is away", hint="systemctl start libvirtd")
            self._retry_at = time.monotonic() + self._retry_s
            self._connection = self._module.open(self._uri)
            self._retry_at = 0.0
        return self._connection

    def _drop_dead_connection(self) -> None:
        try:
            if self._connection is None or self._connection.isAlive():
                return
        except self._module.libvirtError:
            # Its own answer for a connection that is closed already.
            pass
        self._connection = None

    def _lookup(self, uuid: str) -> Any:
        return self._connect().lookupByUUIDString(uuid)

    def _read_domains(self) -> None:
        """Keep what libvirt says; an answer that came too late for its caller serves the next one."""
        descriptions, rejected = {}, {}
        for domain in self._connect().listAllDomains(self._module.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
            try:
                descriptions[domain.UUIDString()] = parse_domain(domain.XMLDesc(0))
            except VmplaceError as err:
                rejected[domain.name()] = str(err)
            except self._module.libvirtError as err:
                # The domain ended since the list was made.
                if err.get_error_code() != self._module.VIR_ERR_NO_DOMAIN:
                    raise
        self._last = LibvirtAnswer(descriptions, None, rejected)

    def _run_monitor_command(self, uuid: str, command: str) -> str:
        import libvirt_qemu

        hmp = libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP
        answer: str = libvirt_qemu.qemuMonitorCommand(self._lookup(uuid), command, hmp)
        return answer


def import_libvirt() -> ModuleType:
    """Return the libvirt module; raises UnsupportedHostError where it is not installed."""
    try:
        import libvirt
    except ImportError as err:
        raise UnsupportedHostError(
            "Python has no libvirt module", hint="apt install python3-libvirt, or pip install libvirt-python"
        ) from err
    # The default handler prints each error to stderr.
    libvirt.registerErrorHandler(lambda *_: None, None)
    module: ModuleType = libvirt
    return module
