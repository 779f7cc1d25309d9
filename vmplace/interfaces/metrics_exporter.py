"""What of ``vmplace metrics`` needs prometheus-client: the text of the metrics, and the server of it."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from socket import AF_INET6, SHUT_RDWR, socket
from typing import Any, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import ThreadingWSGIServer, generate_latest, make_wsgi_app
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from vmplace.interfaces.client import NoAgentError, RefusedError, ask
from vmplace.interfaces.metrics import families, families_without_agent

ASK_S = 5.0
FRESH_S = 1.0
"""An answer of the agent serves all scrapes of that time: anybody who reaches the port may scrape."""


MOST_CLIENTS = 32


class AgentCollector(Collector):
    """Ask the agent for a scrape; while none answers, say that it is down."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._one_asks = threading.Lock()
        self._status: Mapping[str, Any] | None = None
        self._fresh_until_s = float("-inf")

    def collect(self) -> Iterator[Metric]:
        """Yield the agent's metrics, at most FRESH_S old."""
        with self._one_asks:
            if self._clock() >= self._fresh_until_s:
                self._status = self._asked()
                self._fresh_until_s = self._clock() + FRESH_S
            status = self._status
        yield from families_without_agent() if status is None else families(status)

    def _asked(self) -> Mapping[str, Any] | None:
        try:
            status: Mapping[str, Any] = ask("status", path=self._path, timeout_s=ASK_S)
        except (NoAgentError, RefusedError):
            # A busy agent is not to be asked again for each scrape.
            return None
        return status


def registry(path: Path | None) -> CollectorRegistry:
    """Return a registry with the agent's metrics alone: not those of this process."""
    # No describe: the families are known only once an agent answers.
    found = CollectorRegistry(auto_describe=False)
    found.register(AgentCollector(path))
    return found


def exposed(path: Path | None) -> bytes:
    """Return the metrics in Prometheus' text format."""
    return generate_latest(registry(path))


def server(address: str, port: int, path: Path | None) -> WSGIServer:
    """Return a server of /metrics that listens; raises OSError where it cannot."""
    kind = _Server6 if ":" in address else _Server
    return make_server(address, port, make_wsgi_app(registry(path)), kind, _QuietHandler)


class _QuietHandler(WSGIRequestHandler):
    """Log no scrapes: there is one every few seconds."""

    timeout = 10
    """Seconds for a client to say what it wants."""

    def parse_request(self) -> bool:
        """Take in what is asked: who has asked makes room for nobody."""
        is_asked = super().parse_request()
        cast("_Server", self.server).heard(self.connection)
        return is_asked

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class _Server(ThreadingWSGIServer):
    """Waits for ``MOST_CLIENTS`` at once to ask: beyond that, who has been silent longest makes room."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._silent: dict[socket, None] = {}
        self._one_changes = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve in a thread; a client that dawdles for the whole of its time must not keep others out."""
        with self._one_changes:
            self._silent[request] = None
            longest = next(iter(self._silent)) if len(self._silent) > MOST_CLIENTS else None
            if longest is not None:
                with suppress(OSError):
                    longest.shutdown(SHUT_RDWR)
                del self._silent[longest]
        super().process_request(request, client_address)

    def heard(self, request: Any) -> None:
        """Note that a client has asked."""
        with self._one_changes:
            self._silent.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection."""
        with self._one_changes:
            self._silent.pop(request, None)
            super().shutdown_request(request)


class _Server6(_Server):
    address_family = AF_INET6
