"""The protocol of the control socket: one line of JSON each way, then the connection ends.

Request:   ``{"version": 1, "command": "show", "guest": "db1"}``
Response:  ``{"version": 1, "ok": true, "data": ...}``, or ``ok`` false with ``error``, ``hint`` and ``kind``.

Keys may be added within a version; a reader ignores those it does not know.
"""

from typing import Annotated, Any, Literal

import msgspec

from vmplace.outside import printable
from vmplace.topology.guest import MOST_VCPU_ID

VERSION = 1
MAX_REQUEST_BYTES = 4096

Kind = Literal["request", "denied", "busy", "guest", "failed"]

LOOKS = frozenset({"status", "show", "plan", "why", "policy", "fit", "advise"})
"""Commands that whoever may connect may give."""
ACTS = frozenset({"apply", "undo", "pause", "resume", "make-room"})
"""Commands for root only."""


class Size(msgspec.Struct, frozen=True):
    """The size of a guest that is to be placed."""

    vcpus: Annotated[int, msgspec.Meta(ge=1, le=MOST_VCPU_ID + 1)]
    memory_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] = 0


class Request(msgspec.Struct, frozen=True):
    """What a client asks; ``size`` is for "fit", "advise" and "make-room".

    With ``as_text``, who looks gets the lines that ``--json`` prints: ``text`` in place of ``data``.
    """

    command: str
    guest: str | None = None
    size: Size | None = None
    as_text: bool = False
    version: int = VERSION


class Response(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the agent answers; ``kind`` tells programs what sort of error it is."""

    ok: bool
    data: Any = None
    text: str | None = None
    error: str | None = None
    hint: str | None = None
    kind: Kind | None = None
    version: int = msgspec.field(default_factory=lambda: VERSION)


def refusal(kind: Kind, error: str, hint: str | None = None) -> Response:
    """Return the answer that says no."""
    return Response(False, error=error, hint=hint, kind=kind)


def indented(data: Any) -> str:
    """Return the lines that ``--json`` prints."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def as_text(response: Response) -> Response:
    """Return an answer with its data as lines; as it is where there are none."""
    if not response.ok:
        return response
    try:
        return Response(True, text=indented(response.data))
    except Exception:
        # ``encoded`` reports what cannot be encoded.
        return response


def encoded(response: Response) -> bytes:
    """Return the line that says ``response``, whatever is in it; what cannot be said is refused instead."""
    for is_printed in (False, True):
        try:
            return msgspec.json.encode(_printed(response) if is_printed else response) + b"\n"
        except Exception as err:
            # The agent's side alone: a command starts without it.
            import logging

            what = printable(f"{type(err).__name__}: {err}", 200)
            logging.getLogger(__name__).error("an answer cannot be encoded: %s", what)
    reported = refusal("failed", "the answer cannot be encoded", "see the agent's log")
    return msgspec.json.encode(reported) + b"\n"


def _printed(response: Response) -> Response:
    """Return the response with "?" for what is no Unicode, such as parts of file names that are no UTF-8."""
    return msgspec.structs.replace(
        response,
        data=_plain(response.data),
        error=_plain(response.error),
        hint=_plain(response.hint),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def parse_request(line: bytes) -> Request | Response:
    """Parse one line; return a refusal for what is no request of this version."""
    try:
        request: Request = msgspec.json.decode(line, type=Request)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        return refusal(
            "request", f"not a request: {err}", 'send one line: {"version": 1, "command": "status"}'
        )
    if request.version != VERSION:
        hint = "use the vmplace command of the same release"
        return refusal("request", f"version {request.version} is not supported, only {VERSION}", hint)
    if request.command not in LOOKS | ACTS:
        known = ", ".join(sorted(LOOKS | ACTS))
        return refusal("request", f"unknown command {request.command[:40]!r}", f"known: {known}")
    return request
