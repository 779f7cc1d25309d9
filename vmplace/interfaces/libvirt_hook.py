#!/bin/sh
""":"
/usr/bin/python3 -IS "$0" "$@" || cat >/dev/null
exit 0
: <<'# The end.'

libvirt's hook: /etc/libvirt/hooks/qemu.d/vmplace GUEST OPERATION SUB EXTRA, at each change of a domain.

At ``migrate`` and ``restore``, the only operations at which libvirt follows what a hook prints, numatune that
is strict is printed as restrictive, where the domain's own policy surely lets vmplace move memory.  It has to
say mode auto itself: without that vmplace.toml decides, which the hook does not read.  A key that is not
known, or a value that the agent could refuse, says no.  At each operation one datagram goes to the
agent, if it listens.  The hook must not call libvirt, and always exits 0: at any other code libvirt ends the
operation, at ``reconnect`` even the running guest.

A file that stands alone: Python's standard library from 3.7 on, and of that only what loads in a moment.
The shell runs the lines before "exit 0" alone, Python none of them: so the code is 0 even where Python is
missing, or too old.  To the shell the rest is a here-document: who checks a script's syntax, as Debian's
tools do, finds it well.
"""

from __future__ import annotations

# What signal and socket wrap: those load enum, selectors and more, and take longer than all else here.
import _signal  # type: ignore[import-not-found]
import _socket
import os
from xml.parsers import expat

NAMESPACE = "urn:vmplace:policy:1"
NOVA = "http://openstack.org/xmlns/libvirt/nova/1.1"
SOCKET = "/run/vmplace/hook.sock"
FILTERS = ("migrate", "restore")
MOST_BYTES = 1 << 20
MOST_DEPTH = 64
MOST_TEXT = 4096
LIMIT_S = 0.08
"""After so long it ends, whatever it waits for."""

_METADATA = ("domain", "metadata")
_POLICY = (*_METADATA, NAMESPACE + " policy")
_SPEC = NOVA + " extraSpec"
_NUMATUNE = ("domain", "numatune")
_UUID = ("domain", "uuid")
_TECHNIQUES = ("move", "interleave", "replicate", "gather", "vcpus")
_CHOICES = {
    "mode": ("manual", "advise", "auto"),
    "priority": ("normal", "protected"),
    "huge_pages": ("move", "leave"),
}
_NUMBERS = {"replica_mb": (0, 1 << 30), "move_mb_per_s": (1, 100000)}
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_NODE = "/sys/devices/system/node/node"


class Domain:
    """What the hook uses of a domain's XML; raises ValueError or ExpatError for what is none."""

    def __init__(self, data: bytes) -> None:
        """Read all of it once."""
        self.uuid = ""
        self.words: dict[str, str] = {}
        self.specs: dict[str, str] = {}
        self.has_policy = False
        self.bindings: list[tuple[int, dict[str, str]]] = []
        self._path: tuple[str, ...] = ()
        self._prefixed: set[str] = set()
        self._key = ""
        self._text: list[str] | None = None
        self._size = 0
        self._is_doubtful = False
        self._parser = parser = expat.ParserCreate(None, " ")
        parser.XmlDeclHandler = self._declared
        parser.StartDoctypeDeclHandler = self._refused
        parser.StartNamespaceDeclHandler = self._prefix
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._data
        data.decode("utf-8")
        parser.Parse(data, True)

    def _declared(self, _version: str, encoding: str | None, _standalone: int) -> None:
        if encoding is not None and encoding.lower() not in ("utf-8", "us-ascii"):
            raise ValueError("another encoding")

    def _refused(self, *_: object) -> None:
        raise ValueError("a document type")

    def _prefix(self, prefix: str | None, space: str) -> None:
        if (prefix or "").lower() == "vmplace":
            self._prefixed.add(space)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        where, self._path = self._path, (*self._path, name)
        if len(self._path) > MOST_DEPTH or self._text is not None:
            raise ValueError("nested too deeply")
        if self._path == _POLICY:
            if self.has_policy or attributes:
                raise ValueError("no policy of ours")
            self.has_policy = True
        elif where == _POLICY:
            space, _, key = name.rpartition(" ")
            if space != NAMESPACE or key in self.words or attributes:
                raise ValueError("no policy of ours")
            self._begin(key)
        elif where == _METADATA and self._is_stray(name):
            raise ValueError("no policy of ours")
        elif name == _SPEC and where[:2] == _METADATA:
            self._begin(attributes.get("name", ""))
        elif where == _NUMATUNE and name in ("memory", "memnode"):
            self._is_doubtful |= name == "memnode" and not attributes.get("cellid", "").isdecimal()
            self.bindings.append((self._parser.CurrentByteIndex, attributes))
        elif self._path == _UUID:
            self._begin(name)

    def _begin(self, key: str) -> None:
        self._key, self._text, self._size = key, [], 0

    def _is_stray(self, name: str) -> bool:
        """Tell whether it was meant for a policy, as topology/stray_policy.py does."""
        space, _, word = name.rpartition(" ")
        is_ours = space.lower().startswith("urn:vmplace") or space in self._prefixed
        return space.lower().startswith("urn:vmplace:policy") or (word.lower() == "policy" and is_ours)

    def _data(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)
            self._size += len(text)
            if self._size > MOST_TEXT:
                raise ValueError("too long")
        elif self._path == _POLICY and text.strip(" \t\r\n"):
            raise ValueError("no policy of ours")

    def _end(self, name: str) -> None:
        if self._text is not None:
            text = " ".join("".join(self._text).split())
            if self._path == _UUID:
                self.uuid = text
            elif name != _SPEC:
                self.words[self._key] = text
            elif self._key.startswith("vmplace:"):
                # The agent reads each of two, and takes the last.
                self._is_doubtful |= self._key[8:] in self.specs
                self.specs[self._key[8:]] = text
            self._text = None
        self._path = self._path[:-1]

    def may_be_relaxed(self) -> bool:
        """Tell whether its own policy says that vmplace moves memory, and nothing in it is in doubt."""
        if not (self.has_policy or self.specs) or self._is_doubtful:
            return False
        said = dict(self.specs)
        said.update(self.words)
        bound: set[object] = set()
        try:
            # Each place by itself, too: what another one says instead mends no mistake.
            _, _, values = _values(self.specs), _values(self.words), _values(said)
            for _, attributes in self.bindings:
                bound |= _nodes(attributes.get("nodeset", ""))
        except ValueError:
            return False
        is_within = not bound or bool(values.get("allowed_nids", bound) & bound)
        return is_within and values.get("mode") == {"auto"} and "move" in values["techniques"]


def _values(words: dict[str, str]) -> dict[str, set[object]]:
    """Return what words say, and which techniques if none does; raises ValueError for what is in doubt.

    Keys that are known, each once: so these are never more than the agent takes.
    """
    values: dict[str, set[object]] = {"techniques": {"move"}}
    for key, text in words.items():
        values[key] = _value(key, text)
    if "move" not in values["techniques"] and values["techniques"] & {"interleave", "gather"}:
        raise ValueError("these need move")
    preferred = values.get("preferred_nids", set())
    if not preferred <= values.get("allowed_nids", preferred):
        raise ValueError("preferred, and not allowed")
    return values


def _value(key: str, text: str) -> set[object]:
    """Return what a key says, in the forms of agent/policy_text.py that are plain; raises ValueError."""
    if key in _NUMBERS:
        return {_number(text, *_NUMBERS[key])}
    if key == "schedule":
        return {_time(one) for one in _at_most(64, text.split(";"))}
    if key in ("allowed_nids", "preferred_nids"):
        said = _nodes(text)
        known = {node for node in said if os.access(_NODE + str(node), os.F_OK)}
    elif key == "techniques":
        said = set(_at_most(len(_TECHNIQUES), text.replace(",", " ").split()))
        known = set(_TECHNIQUES)
    else:
        said, known = {text}, set(_CHOICES.get(key, ()))
    if not said or not said <= known:
        raise ValueError("not known")
    return said


def _at_most(most: int, parts: list[str]) -> list[str]:
    if len(parts) > most:
        raise ValueError("too many")
    return parts


def _number(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and least <= int(text) <= most):
        raise ValueError("no number")
    return int(text)


def _nodes(text: str) -> set[object]:
    """Return the nodes of ``0,2-3``, in which none is there twice."""
    nodes: set[object] = set()
    for part in _at_most(1024, text.split(",")):
        first, dash, last = part.strip().partition("-")
        begin = _number(first, 0, 1023)
        listed = range(begin, _number(last if dash else first, begin, 1023) + 1)
        if not nodes.isdisjoint(listed):
            raise ValueError("twice")
        nodes.update(listed)
    return nodes


def _time(text: str) -> str:
    """Return ``Mon-Fri,Sun 22:00-06:00`` if that is what it is."""
    *days, hours = text.split()
    begin, end = map(_minute, hours.split("-"))
    named = days[0].replace("-", ",").split(",") if days else []
    if len(days) > 1 or not set(named) <= set(_DAYS) or begin in (end, 1440):
        raise ValueError("no time")
    return text


def _minute(text: str) -> int:
    if len(text) != 5 or text[2] != ":":
        raise ValueError("no time")
    return _number(str(_number(text[:2], 0, 24) * 60 + _number(text[3:], 0, 59)), 0, 1440)


def relaxed(data: bytes) -> bytes | None:
    """Return the XML with restrictive for strict, None if there is nothing to change; the nodes stay.

    Raises ValueError or ExpatError for XML that is not libvirt's.
    """
    bindings = Domain(data).bindings
    modes = [attributes.get("mode", "strict") for _, attributes in bindings]
    fixed = all("nodeset" in attributes for _, attributes in bindings)
    # libvirt takes restrictive for all of them or for none, and nodes of its own choice it may choose anew.
    if "strict" not in modes or not fixed or set(modes) - {"strict", "restrictive"}:
        return None
    # From the end: what is before it keeps its place.
    for index, attributes in reversed(bindings):
        if attributes.get("mode", "strict") == "strict":
            data = _restrictive(data, index)
    return data


def _restrictive(data: bytes, index: int) -> bytes:
    """Return the XML with attribute mode of the tag that begins at ``index`` set to restrictive."""
    at = index + 1
    while data[at : at + 1] not in (b" ", b"\t", b"\r", b"\n", b"/", b">"):
        at += 1
    name_end = at
    while data[at : at + 1] not in (b"/", b">"):
        equals = data.index(b"=", at)
        name = data[at:equals].strip()
        begin = equals + 1
        while data[begin : begin + 1] not in (b'"', b"'"):
            begin += 1
        end = data.index(data[begin : begin + 1], begin + 1)
        if name == b"mode":
            return data[: begin + 1] + b"restrictive" + data[end:]
        at = end + 1
        while data[at : at + 1] in (b" ", b"\t", b"\r", b"\n"):
            at += 1
    return data[:name_end] + b" mode='restrictive'" + data[name_end:]


def _read() -> bytes | None:
    """Return what libvirt writes to stdin, None if it is too much; that is read all the same."""
    parts: list[bytes] = []
    size = 0
    while True:
        part = os.read(0, 1 << 16)
        if not part:
            return b"".join(parts) if size <= MOST_BYTES else None
        size += len(part)
        if size <= MOST_BYTES:
            parts.append(part)


def _tell(words: list[str], uuid: str) -> None:
    """Tell the agent, if it listens: one that is away or full is not waited for."""
    fields = [b"1"]
    # GUEST OPERATION SUB EXTRA; first the operation, as the agent reads it.
    for word in (words[1], words[2], words[3], words[0], uuid):
        fields.append(os.fsencode(word)[:1024])
    path = os.environ.get("VMPLACE_HOOK_SOCKET", SOCKET)
    sender = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)
    sender.sendto(b"\0".join(fields), path)


def _print(data: bytes) -> None:
    # Half an answer is a broken domain: what was begun is finished, libvirt reads it.
    _signal.setitimer(_signal.ITIMER_REAL, 0)
    while data:
        data = data[os.write(1, data) :]


def main(words: list[str]) -> None:
    """Do what is to be done for one call; may raise anything."""
    data = _read()
    words = [*words, "", "", "", ""][:4]
    domain = None
    try:  # noqa: SIM105 - contextlib takes longer to load than all else here
        domain = Domain(data) if data else None
    except (ValueError, expat.ExpatError):
        # Whatever it is, libvirt gave it, and goes on with it.
        pass
    try:  # noqa: SIM105
        _tell(words, domain.uuid if domain else "")
    except OSError:
        pass
    if domain is not None and data and words[1] in FILTERS and domain.may_be_relaxed():
        changed = relaxed(data)
        if changed is not None:
            _print(changed)


if __name__ == "__main__":
    import sys

    try:
        _signal.signal(_signal.SIGALRM, lambda *_: os._exit(0))
        _signal.setitimer(_signal.ITIMER_REAL, LIMIT_S)
        main(sys.argv[1:])
    except BaseException:  # noqa: S110 - whatever it is, it must not end the operation
        pass
    finally:
        os._exit(0)
# The end.
