"""Read and change what a domain's XML says of vmplace, through libvirt's API; for commands alone."""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from xml.parsers import expat
from xml.sax.saxutils import escape

from vmplace.agent.guest_policy import KEYS
from vmplace.agent.policy_text import stated_policies
from vmplace.errors import ConfigError, GuestGoneError, VmplaceError, WrongUsageError
from vmplace.interfaces.libvirt_hook import relaxed
from vmplace.interfaces.options import NothingError
from vmplace.outside import printable
from vmplace.topology.domain_policy import (
    MAX_BYTES,
    NAMESPACE,
    NOVA,
    PREFIX,
    DomainPolicy,
    DomainXmlError,
    Word,
    domain_policy,
    parse_domain_policy,
)
from vmplace.topology.guests_libvirt import Answer, asked

PLACES = {"live": "the running XML", "config": "the XML for its next start"}
"""The two that a domain has, in libvirt_worker.py's words and for people."""


@dataclass(frozen=True)
class DomainXml:
    """One domain: its XML as it runs (empty: it does not), and as it starts next (empty: never again)."""

    name: str
    live: str
    config: str

    def said(self, *, config: bool = False) -> DomainPolicy:
        """Return what its XML says: the running one's, unless ``config`` or it does not run."""
        return self.said_at("config" if config or not self.live else "live")

    def said_at(self, place: str) -> DomainPolicy:
        """Return what the XML of that place says, a key of PLACES."""
        return domain_policy(self.live if place == "live" else self.config)

    def cure(self, place: str) -> str:
        """Return how to mend the XML of that place, which cannot be read."""
        name, space = quote(self.name), _wrong_namespace(self.live if place == "live" else self.config)
        edit = f"mend it: virsh edit {name}"
        if space == NAMESPACE:
            return f"{edit}; or take it out: vmplace policy set {name} --remove"
        # What Nova says of its instance is more than a policy.
        if space in {"", NOVA} or printable(space) != space:
            return edit
        flags = (" --live" if self.live else "") + (" --config" if self.config else "")
        return f"{edit}; or take it out: virsh metadata {name} {quote(space)} --remove{flags}"

    def where(self, *, live: bool, config: bool) -> str:
        """Return which of the two a change is for, in libvirt_worker.py's word; raises VmplaceError."""
        if not live and not config:
            live, config = bool(self.live), bool(self.config)
        if live and not self.live:
            raise VmplaceError(f"{self.name} does not run", hint="leave --live out")
        if config and not self.config:
            raise VmplaceError(f"{self.name} is transient: it has no next start", hint="leave --config out")
        return "both" if live and config else "live" if live else "config"


def read_domain(uri: str, name: str) -> DomainXml:
    """Return the domain of that name; raises NothingError without one, VmplaceError while libvirt is away."""
    answer = _asked(uri, "domain", name)
    return DomainXml(answer.domains[0][1], answer.domains[0][2], answer.text)


def changed_policies(
    domain: DomainXml, where: str, changes: Mapping[str, str], unset: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return what each policy is to be, by place: each with the same changes, and with its own other keys.

    Raises VmplaceError where one cannot be read: it would be lost.
    """
    present = {place: _present(domain, place) for place in PLACES if where in {place, "both"}}
    stated = {key for words in present.values() for key in words}
    for key in (*changes, *(key for key in unset if key not in stated)):
        if key not in KEYS:
            raise WrongUsageError(f"key {key!r} is not known", hint=f"known: {', '.join(KEYS)}")
    wanted = {}
    for place, words in present.items():
        named = "" if all(words == other for other in present.values()) else PLACES[place]
        wanted[place] = _changed(words, changes, unset, named)
    return wanted


def write_policies(uri: str, domain: DomainXml, wanted: Mapping[str, Mapping[str, str]]) -> None:
    """Set the policies by place, that of the next start first; one that is so already is not written."""
    stale = [place for place in ("config", "live") if place in wanted]
    stale = [place for place in stale if wanted[place] != words_of(domain.said_at(place).words)]
    if len(stale) == len(PLACES) and wanted["live"] == wanted["config"]:
        _write(uri, domain, policy_element(wanted["live"]), "both")
        return
    for place in stale:
        try:
            _write(uri, domain, policy_element(wanted[place]), place)
        except VmplaceError as err:
            if place == stale[0]:
                raise
            message = f"{err}; {PLACES[stale[0]]} is changed already, {PLACES[place]} is not"
            raise VmplaceError(message, hint=err.hint) from err


def remove_policy(uri: str, domain: DomainXml, where: str) -> bool:
    """Take the domain's policy element out; return whether there was one."""
    places = {"live": domain.live, "config": domain.config}
    _write(uri, domain, "", where)
    return any(NAMESPACE in _sizes(text) for place, text in places.items() if where in {place, "both"})


def check_readable(domain: DomainXml, where: str) -> None:
    """Raise VmplaceError if the XML cannot be read, although its policy was taken out."""
    for place, name in PLACES.items():
        if where in {place, "both"} and (error := domain.said_at(place).error):
            raise VmplaceError(f"{name} is still wrong: {error}", hint=domain.cure(place))


def difference(live: Mapping[str, str], config: Mapping[str, str]) -> str:
    """Return what the next start's policy says otherwise than the running one, for people."""
    keys = [key for key in {**config, **live} if config.get(key) != live.get(key)]
    return "; ".join(f"{_shown(key, config)} (now: {_shown(key, live)})" for key in keys)


def _shown(key: str, words: Mapping[str, str]) -> str:
    return printable(f"{key}={words[key]}" if key in words else f"no {key}")


def _present(domain: DomainXml, place: str) -> dict[str, str]:
    """Return the keys of one place; raises VmplaceError where they cannot be read."""
    said = domain.said_at(place)
    if said.error:
        raise VmplaceError(said.error, hint=domain.cure(place))
    return words_of(said.words)


def _changed(
    present: dict[str, str], changes: Mapping[str, str], unset: Sequence[str], named: str
) -> dict[str, str]:
    """Return what a policy is to be; ``named``: how messages call it.

    Raises WrongUsageError for a mistake in what is asked for, ConfigError for one that was there before.
    """
    wanted = {key: text for key, text in {**present, **changes}.items() if key not in unset}
    if (wrong := _mistake(wanted, named)) is not None:
        kept = {key: text for key, text in wanted.items() if key not in changes}
        if (before := _mistake(kept, named or "the policy in its XML")) is not None:
            raise before
        raise WrongUsageError(str(wrong), hint=wrong.hint) from wrong
    return wanted


def _mistake(words: Mapping[str, str], named: str) -> ConfigError | None:
    said = tuple(Word(key, text, 0) for key, text in words.items())
    try:
        stated_policies(DomainPolicy(said, has_policy=True), "")
    except ConfigError as err:
        return ConfigError(str(err), place=named, hint=err.hint)
    return None


def _write(uri: str, domain: DomainXml, element: str, where: str) -> None:
    _asked(uri, "set", domain.name, where, NAMESPACE, PREFIX, text=element)


def policy_element(words: Mapping[str, str]) -> str:
    """Return the element as libvirt takes it: the namespace is its own argument there."""
    return "<policy>" + "".join(f"<{key}>{escape(text)}</{key}>" for key, text in words.items()) + "</policy>"


def relax_config(uri: str, name: str, *, is_dry: bool) -> bool:
    """Make strict numatune restrictive for the next start; return whether there was anything to change."""
    try:
        changed = relaxed(_asked(uri, "secure", name).text.encode())
    except ValueError as err:
        raise VmplaceError(
            f"the XML of {name} cannot be changed: {err}",
            hint=f'by hand: `virsh edit {name}`, and mode="restrictive" in <numatune>',
        ) from err
    if changed is None:
        return False
    if not is_dry:
        _asked(uri, "define", name, text=changed.decode())
    return True


def words_of(words: tuple[Word, ...]) -> dict[str, str]:
    """Return words by key."""
    return {word.key: word.text for word in words}


def _wrong_namespace(text: str) -> str:
    """Return the namespace of what is wrong, or too much, in ``<metadata>``; empty if it is not there."""
    try:
        parse_domain_policy(text)
    except DomainXmlError as err:
        if len(text.encode("utf-8", "surrogatepass")) <= MAX_BYTES:
            return err.namespace
    sizes = _sizes(text)
    return max(sizes, key=lambda space: sizes[space], default="")


def _sizes(text: str) -> Counter[str]:
    """Return the bytes of the elements of ``<metadata>``, by namespace; those before a mistake in it."""
    sizes: Counter[str] = Counter()
    path: list[str] = []
    parser = expat.ParserCreate(namespace_separator=" ")

    def count(sign: int) -> None:
        if len(path) == 3 and path[:2] == ["domain", "metadata"]:
            sizes[path[2].rpartition(" ")[0]] += sign * parser.CurrentByteIndex

    def start(name: str, _: object) -> None:
        path.append(name)
        count(-1)

    def end(_: str) -> None:
        count(1)
        path.pop()

    parser.StartElementHandler, parser.EndElementHandler = start, end
    with contextlib.suppress(expat.ExpatError, UnicodeError):
        parser.Parse(text, True)
    return sizes


def _asked(uri: str, question: str, *words: str, text: str = "") -> Answer:
    try:
        return asked(uri, question, *words, text=text)
    except GuestGoneError as err:
        raise NothingError(f"no domain {words[0]!r}: {err}", hint="`virsh list --all` lists them") from err
