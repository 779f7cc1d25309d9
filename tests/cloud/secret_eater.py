"""A server that stands in for Keystone, Placement and the API server, and keeps all that it receives."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

ROOT_ID = "6f1a0b52-0c4e-4c38-9d0f-6a5f3c1d2e4b"
REFUSALS = {
    401: ("Unauthorized", "The request you have made requires authentication."),
    403: ("Forbidden", "You are not authorized to perform the requested action."),
}
Answer = int | str
"""A status, "garbage", or "echo": a page before the service that prints what it was asked."""


class SecretEater(http.server.ThreadingHTTPServer):
    """Answers as ``keystone`` and ``service`` say; ``received``: headers and bodies of all requests."""

    def __init__(self, token: str, keystone: Answer, service: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token, self.keystone, self.service = token, keystone, service
        self.received = ""
        self.url = f"http://127.0.0.1:{self.server_port}"

    def signed_in(self) -> dict[str, Any]:
        """Return what Keystone tells of a token: whose it is, and where Placement answers."""
        endpoint = {"id": "e", "interface": "public", "region": None, "region_id": None, "url": self.url}
        service = {"id": "s", "type": "placement", "name": "placement", "endpoints": [endpoint]}
        named = {"id": "1", "name": "admin", "domain": {"id": "default", "name": "Default"}}
        times = {"issued_at": "2026-01-01T00:00:00.000000Z", "expires_at": "2099-01-01T00:00:00.000000Z"}
        return {"token": {**times, "methods": ["password"], "user": named, "project": named,
                          "roles": [{"id": "r", "name": "admin"}], "catalog": [service]}}  # fmt: skip


class _Handler(http.server.BaseHTTPRequestHandler):
    server: SecretEater

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        asked = f"{self.headers}{body}"
        self.server.received += asked
        if self.path == "/v3":
            self._send(200, self._version("v3.14", f"{self.server.url}/v3"))
        elif self.path == "/":
            self._send(200, {"versions": [self._version("v1.0", self.server.url)["version"]]})
        elif self.path.startswith("/v3/"):
            self._send_as(self.server.keystone, asked, self.server.signed_in(), 201)
        else:
            self._send_as(self.server.service, asked, self._found(), 200)

    do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - as the library wants it

    @staticmethod
    def _version(name: str, url: str) -> dict[str, Any]:
        links = [{"rel": "self", "href": url}]
        return {"version": {"id": name, "status": "stable", "links": links, "min_version": "1.0",
                            "max_version": "1.39"}}  # fmt: skip

    def _found(self) -> dict[str, Any]:
        """Return all that Placement or the API server would tell, in one."""
        root = {"uuid": ROOT_ID, "name": "host", "generation": 0}
        inventories = {"CUSTOM_VMPLACE_PLACE": {"total": 10_000}}
        return {
            "resource_providers": [root], "resource_provider_generation": 0, "inventories": inventories,
            "traits": ["CUSTOM_VMPLACE_NODE"], "items": [], "metadata": {"resourceVersion": "1"},
        }  # fmt: skip

    def _send_as(self, answer: Answer, asked: str, found: dict[str, Any], status: int) -> None:
        if answer == "garbage":
            self._send(status, "<html>}{ no service")
        elif answer == "echo":
            self._send(500, asked)
        elif answer in REFUSALS:
            title, message = REFUSALS[int(answer)]
            error = {"code": answer, "title": title, "message": message, "detail": message}
            self._send(int(answer), {"error": error, "errors": [error], "message": message})
        else:
            self._send(status, found)

    def _send(self, status: int, body: "dict[str, Any] | str") -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if isinstance(body, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 201:
            self.send_header("X-Subject-Token", self.server.token)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def secret_eater(token: str, keystone: Answer = 200, service: Answer = 200) -> Iterator[SecretEater]:
    """Run the server; who signs in gets ``token``."""
    with SecretEater(token, keystone, service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
