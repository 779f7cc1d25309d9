"""What does a domain's XML say about how vmplace may treat the guest?  Words and where they stand.

Two places: ``<policy>`` of vmplace's namespace under ``<metadata>``, and the extra specs of the flavour
that Nova writes there, ``vmplace:KEY``.  And the nodes that ``<numatune>`` binds memory to, which limit any
policy.
The XML comes from whoever defines domains: no document type, and limits to size and depth.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from vmplace.errors import VmplaceError
from vmplace.outside import printable
from vmplace.topology.cpulist import parse_cpulist
from vmplace.topology.stray_policy import StrayPolicies

NAMESPACE = "urn:vmplace:policy:1"
PREFIX = "vmplace"
NOVA = "http://openstack.org/xmlns/libvirt/nova/1.1"
MAX_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_TEXT = 4096
"""Characters of one value; none that makes sense is longer."""
MAX_WORDS = 256
PLACEMENT = "urn:vmplace:placement:1"
"""Namespace of the summary that agents hand over from host to host (model/handover.py)."""
MAX_PLACEMENT = 64 << 10
MOST_NID = 1023
"""MAX_NUMNODES of x86 is 1024."""
BINDING = frozenset({"strict", "restrictive"})
"""Modes of numatune in which memory may be on no other nodes."""
NUMATUNE, QEMU = "<numatune>", "QEMU's policy=bind"
"""Who binds memory to nodes."""

BLANKS = " \t\r\n"
"""What XML takes for white space."""

_METADATA = ("domain", "metadata")
_POLICY = (f"{NAMESPACE} policy",)
_PARENTS = frozenset({(), _METADATA})
"""Where a policy stands: alone, or in a domain, of which there may be ``<metadata>`` alone."""
_POLICIES = frozenset((*parent, *_POLICY) for parent in _PARENTS)
_SPEC = f"{NOVA} extraSpec"
_INSTANCE = (*_METADATA, f"{NOVA} instance")
_FLAVOUR = (*_INSTANCE, f"{NOVA} flavor")
_NAMES = {
    (*_INSTANCE, f"{NOVA} name"): "name",
    (*_INSTANCE, f"{NOVA} owner", f"{NOVA} project"): "project",
}
_PLACEMENT = (*_METADATA, f"{PLACEMENT} placement")


class DomainXmlError(VmplaceError):
    """The XML cannot be read, or the policy in it is no list of words; ``line`` counts from 1.

    ``namespace``: of the element of ``<metadata>`` in which the mistake is, empty elsewhere.
    """

    def __init__(self, message: str, line: int, hint: str, namespace: str = "") -> None:
        super().__init__(message, hint=hint)
        self.line, self.namespace = line, namespace


@dataclass(frozen=True)
class Word:
    """One thing that is said, as it is written."""

    key: str
    text: str
    line: int


@dataclass(frozen=True)
class Numatune:
    """What ``<numatune>`` binds: nodes by vNUMA cell (None: other memory); ``is_strict`` if any is strict.

    ``by``: who binds it, if not ``<numatune>``.
    """

    nids: Mapping[int | None, tuple[int, ...]] = field(default_factory=dict)
    is_strict: bool = False
    by: str = NUMATUNE

    def allowed(self) -> tuple[int, ...] | None:
        """Return all nodes that any of the memory may be on, None for no limit."""
        if None not in self.nids:
            return None
        return tuple(sorted({nid for nids in self.nids.values() for nid in nids}))

    @property
    def elsewhere(self) -> str:
        """Return why memory may not be on a node, in words."""
        return f"{self.by} binds it to other nodes"

    def of_cell(self, cell: int | None) -> tuple[int, ...] | None:
        """Return the nodes that memory of this cell may be on, None for no limit."""
        return self.nids.get(cell, self.nids.get(None))


@dataclass(frozen=True)
class CloudNames:
    """What Nova or Kubernetes call a guest and whose it is, as far as they say; printable and short.

    ``name``: the instance's, in Kubernetes within ``namespace``.  ``project``, ``flavour``: Nova's names.
    """

    namespace: str = ""
    name: str = ""
    project: str = ""
    flavour: str = ""

    def __post_init__(self) -> None:
        """Make all of them printable, wherever they came from."""
        for key in ("namespace", "name", "project", "flavour"):
            object.__setattr__(self, key, printable(" ".join(getattr(self, key).split())))


@dataclass(frozen=True)
class DomainPolicy:
    """What one domain's XML says; ``has_policy``: there is a policy element, be it empty.

    ``annotations``: what an orchestrator says instead of XML (stated_guests.py).  ``placement``: what another
    host's agent handed over, as it is written; no part of the policy.  ``names`` are for people,
    and the flavour's for vmplace.toml.  ``is_known``: it is what may hold a policy, and no other XML.
    """

    words: tuple[Word, ...] = ()
    nova: tuple[Word, ...] = ()
    has_policy: bool = False
    numatune: Numatune = Numatune()
    error: str | None = None
    placement: str = field(default="", compare=False)
    annotations: tuple[Word, ...] = ()
    names: CloudNames = CloudNames()
    is_known: bool = field(default=True, compare=False)


def parse_domain_policy(text: str) -> DomainPolicy:
    """Parse a domain's XML, its metadata, or a policy element alone; raises DomainXmlError."""
    return _Reader().read(text)


def domain_policy(text: str) -> DomainPolicy:
    """Return the same, with what is wrong in ``error``."""
    try:
        return parse_domain_policy(text)
    except DomainXmlError as err:
        return DomainPolicy(error=f"line {err.line} of the domain's XML: {err} ({err.hint})")


def parse_nodeset(text: str) -> tuple[int, ...]:
    """Parse ``0-3,8,^2``, as libvirt writes sets of nodes; raises ValueError."""
    return parse_cpulist(text, MOST_NID)


class _Reader:
    """Follows expat through the XML; elements are paths of names, with their namespaces."""

    def __init__(self) -> None:
        self._parser = expat.ParserCreate(namespace_separator=" ")
        # Else each line comes by itself: a policy of empty lines would take half a minute.
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype
        self._strays = StrayPolicies()
        self._parser.StartNamespaceDeclHandler = self._strays.declare
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._data
        self._path: tuple[str, ...] = ()
        self._words: list[Word] = []
        self._nova: list[Word] = []
        self._has_policy = False
        self._is_known = False
        self._text: list[str] | None = None
        self._line = 0
        self._key = ""
        self._bound: dict[int | None, tuple[int, ...]] = {}
        self._is_strict = False
        self._placement: list[str] = []
        self._placement_size = 0
        self._names: dict[str, str] = {}

    def read(self, text: str) -> DomainPolicy:
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > MAX_BYTES:
            hint = "take out of <metadata> what does not belong there"
            raise DomainXmlError(f"it has {len(data)} bytes, more than {MAX_BYTES}", 1, hint)
        try:
            self._parser.Parse(data.decode("utf-8"), True)
        except expat.ExpatError as err:
            hint = "`xmllint --noout FILE` shows the place"
            raise DomainXmlError(f"no XML: {expat.ErrorString(err.code)}", err.lineno, hint) from err
        except UnicodeError as err:
            raise DomainXmlError("no text in UTF-8", 1, "`iconv -f utf-8 FILE` shows the place") from err
        return DomainPolicy(
            tuple(self._words),
            tuple(self._nova),
            self._has_policy,
            Numatune(self._bound, self._is_strict),
            placement="".join(self._placement) if self._placement_size <= MAX_PLACEMENT else "",
            names=CloudNames(**self._names),
            is_known=self._is_known,
        )

    def _wrong(self, message: str, hint: str) -> DomainXmlError:
        return DomainXmlError(message, self._parser.CurrentLineNumber, hint, self._namespace())

    def _namespace(self) -> str:
        """Return the namespace of the element of ``<metadata>`` that is open, empty elsewhere."""
        is_metadata = self._path[:2] == _METADATA and len(self._path) > len(_METADATA)
        return self._path[2].rpartition(" ")[0] if is_metadata else ""

    def _refuse_doctype(self, *_: object) -> None:
        raise self._wrong("it has a document type, which libvirt never writes", "take <!DOCTYPE …> out")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._path:
            self._is_known = name in ("domain", "metadata", *_POLICY)
        self._path = _METADATA if (*self._path, name) == ("metadata",) else (*self._path, name)
        if len(self._path) > MAX_DEPTH:
            raise self._wrong(f"elements are nested deeper than {MAX_DEPTH}", "take out what nests so deeply")
        where = self._path[:-1]
        if self._text is not None:
            hint = "write the value as text, such as <vmplace:mode>auto</vmplace:mode>"
            raise self._wrong(f"there is an element inside of {self._key!r}", hint)
        if self._path in _POLICIES:
            self._start_policy(attributes)
        elif where in _POLICIES:
            self._start_word(name, attributes)
        elif where in _PARENTS and self._strays.is_stray(name, is_alone=not where):
            self._refuse_stray(name)
        elif name == _SPEC and where[:2] == _METADATA:
            self._begin(attributes.get("name", ""))
        elif where == ("domain", "numatune"):
            self._bind(name, attributes)
        elif self._path == _FLAVOUR:
            self._names["flavour"] = attributes.get("name", "")[:MAX_TEXT]

    def _start_policy(self, attributes: dict[str, str]) -> None:
        if self._has_policy:
            raise self._wrong("there are two policies", "keep one <vmplace:policy>")
        if attributes:
            hint = (
                f"write <vmplace:{next(iter(attributes))}>…</vmplace:{next(iter(attributes))}> inside of it"
            )
            raise self._wrong("<vmplace:policy> has attributes", hint)
        self._has_policy = True

    def _refuse_stray(self, name: str) -> None:
        space, _, word = name.rpartition(" ")
        hint = f'write <vmplace:policy xmlns:vmplace="{NAMESPACE}">, and each key inside of it'
        reported = f'<{printable(word)}> of the namespace "{printable(space)}" is no policy of vmplace'
        raise self._wrong(reported, hint)

    def _start_word(self, name: str, attributes: dict[str, str]) -> None:
        space, _, key = name.rpartition(" ")
        if space != NAMESPACE:
            hint = f'elements of a policy are of the namespace "{NAMESPACE}": write <vmplace:{key}>'
            raise self._wrong(f"<{key}> is not of vmplace's namespace", hint)
        if attributes:
            hint = "write the value as text, such as <vmplace:mode>auto</vmplace:mode>"
            raise self._wrong(f"<vmplace:{key}> has attributes", hint)
        if any(word.key == key for word in self._words):
            raise self._wrong(f"<vmplace:{key}> is there twice", "keep one of them")
        self._begin(key)

    def _begin(self, key: str) -> None:
        self._text, self._key, self._line = [], key, self._parser.CurrentLineNumber

    def _data(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)
            if sum(map(len, self._text)) > MAX_TEXT:
                raise self._wrong(f"{self._key!r} is longer than {MAX_TEXT} letters", "see its form")
        elif self._path in _POLICIES:
            self._refuse_text(text)
        elif key := _NAMES.get(self._path):
            self._names[key] = (self._names.get(key, "") + text)[:MAX_TEXT]
        elif self._path == _PLACEMENT:
            # Whatever it is, it is no reason not to read the policy.
            self._placement_size += len(text)
            if self._placement_size <= MAX_PLACEMENT:
                self._placement.append("".join(text.split()))

    def _refuse_text(self, text: str) -> None:
        """Refuse what stands in a policy beside its elements: whoever wrote it meant something by it."""
        loose = text.lstrip(BLANKS)
        if loose:
            # It comes as a whole, when the parser is past its end.
            line = self._parser.CurrentLineNumber - loose.count("\n")
            hint = "put each value into the element of its key: <vmplace:mode>manual</vmplace:mode>"
            meant = loose.strip(BLANKS)
            # What cannot be seen, such as a no-break space, by its number.
            shown = repr(meant) if meant.isprintable() else ascii(meant)
            message = f"<vmplace:policy> has loose text {printable(shown)}"
            raise DomainXmlError(message, line, hint, self._namespace())

    def _end(self, name: str) -> None:
        self._path = self._path[:-1]
        if self._text is None:
            return
        word = Word(self._key, " ".join("".join(self._text).split()), self._line)
        self._text = None
        if len(self._words) + len(self._nova) >= MAX_WORDS:
            raise self._wrong(f"a policy has more than {MAX_WORDS} words", "take out what is not needed")
        if name != _SPEC:
            self._words.append(word)
        elif self._key.startswith(f"{PREFIX}:"):
            self._nova.append(Word(word.key[len(PREFIX) + 1 :], word.text, word.line))

    def _bind(self, name: str, attributes: dict[str, str]) -> None:
        """Take in ``<memory>`` or ``<memnode>`` of numatune."""
        mode, nodeset = attributes.get("mode", "strict"), attributes.get("nodeset")
        if name not in {"memory", "memnode"} or mode not in BINDING or nodeset is None:
            return
        try:
            cell = int(attributes["cellid"]) if name == "memnode" else None
            self._bound[cell] = parse_nodeset(nodeset)
        except (ValueError, KeyError):
            raise self._wrong(f"<{name}> of <numatune> has no nodes that can be read", "mend it") from None
        self._is_strict |= mode == "strict"
