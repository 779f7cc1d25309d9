"""Parse a policy in XML: the same keys and values as in vmplace.toml, as text.

Lists are written ``0-1,3`` (nodes), ``move replicate`` (words) and ``Mon-Fri 22:00-06:00; Sat 00:00-24:00``
(times).  A key that this version does not know is reported and ignored; one that looks misspelt is an error.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from vmplace.agent.guest_policy import GONE_KEYS, KEYS, NOTHING, ContradictionError, GuestPolicy, check
from vmplace.agent.key_text import description, toml_words
from vmplace.errors import ConfigError
from vmplace.outside import printable
from vmplace.policy.schedule import parse_stretch
from vmplace.topology.domain_policy import MOST_NID, DomainPolicy, Word, parse_nodeset

_DIGITS = re.compile(r"[0-9]+")
MOST_DIGITS = 12
IN_TEXT = {
    "allowed_nids": "such as 0,1 or 0-1",
    "preferred_nids": "such as 0,1 or 0-1",
    "techniques": "such as move replicate",
    "schedule": 'with ";" between them',
}
"""How lists are written, where TOML has brackets."""
MISSPELT = 0.7
"""difflib's ratio from which an unknown word is taken for a misspelt key, not for one of a later version."""


@dataclass(frozen=True)
class StatedPolicies:
    """What a domain's XML says: ``xml`` in its policy element, ``nova`` in its flavour; ``ignored`` words.

    ``annotations``: what an orchestrator says of a guest that has no XML here.
    """

    xml: GuestPolicy = NOTHING
    nova: GuestPolicy = NOTHING
    annotations: GuestPolicy = NOTHING
    ignored: tuple[str, ...] = ()


def stated_policies(said: DomainPolicy, place: str) -> StatedPolicies:
    """Return what the words mean; ``place`` is for messages.  Raises ConfigError with line and cure."""
    if said.error:
        raise ConfigError(said.error, place=place)
    ignored: list[str] = []
    xml = _policy_of(said.words, place, "<vmplace:{}>", ignored)
    nova = _policy_of(said.nova, place, "extra spec vmplace:{}", ignored)
    annotations = _policy_of(said.annotations, place, "annotation vmplace.io/{}", ignored)
    return StatedPolicies(xml, nova, annotations, tuple(ignored))


def _policy_of(words: Iterable[Word], place: str, form: str, ignored: list[str]) -> GuestPolicy:
    values: dict[str, object] = {}
    lines: dict[str, int] = {}
    for word in words:
        if word.key in KEYS:
            values[word.key] = _value(word, place)
            lines[word.key] = word.line
        else:
            _note_unknown(word, place, form, ignored)
    policy = GuestPolicy(**values)  # type: ignore[arg-type]
    try:
        check(policy)
    except ContradictionError as err:
        raise ConfigError(str(err), place=_at(place, lines[err.key]), hint=err.hint) from None
    return policy


def _note_unknown(word: Word, place: str, form: str, ignored: list[str]) -> None:
    name = form.format(word.key[:40])
    if word.key in GONE_KEYS:
        ignored.append(f"{_at(place, word.line)}: {name} is gone: {GONE_KEYS[word.key]}; take it out")
        return
    close = difflib.get_close_matches(word.key[:40].lower().replace("-", "_"), KEYS, n=1, cutoff=MISSPELT)
    if close:
        hint = f"did you mean {form.format(close[0])}?"
        raise ConfigError(f"{name} is not known", place=_at(place, word.line), hint=hint)
    ignored.append(f"{_at(place, word.line)}: {name} is not known to this version, and ignored")


def _at(place: str, line: int) -> str:
    return f"{place}:{line}" if place else ""


def wanted(key: str) -> str | None:
    """Return what a key takes, as it is written in XML."""
    return description(GuestPolicy, key, IN_TEXT.get(key))


def _value(word: Word, place: str) -> object:
    """Return the value of a known key; raises ConfigError."""
    place, hint = _at(place, word.line), wanted(word.key)
    try:
        native = FORMS.get(word.key, str)(word.text)
        checked = msgspec.convert({word.key: native}, GuestPolicy)
    except msgspec.ValidationError as err:
        reported = toml_words(str(err).partition(" - at `$")[0])
        raise ConfigError(f"{word.key}: {reported}", place=place, hint=hint) from None
    except ValueError as err:
        raise ConfigError(f"{word.key}: {err}", place=place, hint=hint) from None
    return getattr(checked, word.key)


def _number(text: str) -> int:
    """Return a whole number: what int() takes beside digits is none here."""
    if not _DIGITS.fullmatch(text):
        raise ValueError(f"{printable(text)!r} is no whole number")
    if len(text) > MOST_DIGITS:
        raise ValueError(f"{printable(text)!r} has more than {MOST_DIGITS} digits")
    return int(text)


def _nids(text: str) -> tuple[int, ...]:
    """Return the nodes of a set without gaps between its commas, as the schema has it."""
    parts = [part.strip() for part in text.split(",")]
    if text and not all(parts):
        raise ValueError("nothing stands before or after a comma")
    for part in parts:
        try:
            parse_nodeset(part)
        except ValueError:
            raise ValueError(f"{printable(part)!r} is no node (0 to {MOST_NID}), and no range") from None
    nids = parse_nodeset(text)
    if not nids:
        raise ValueError("it names no node")
    return nids


def _times(text: str) -> list[str]:
    times = [part.strip() for part in text.split(";") if part.strip()]
    for one in times:
        parse_stretch(one)
    if not times:
        raise ValueError("it names no time")
    return times


FORMS: dict[str, Callable[[str], object]] = {
    "allowed_nids": _nids,
    "preferred_nids": _nids,
    "techniques": lambda text: text.replace(",", " ").split(),
    "replica_mb": _number,
    "move_mb_per_s": _number,
    "schedule": _times,
}


def shown(key: str, value: object) -> str:
    """Return the value of a key for people, None included: nobody states one."""
    if value is None:
        return "none" if key == "preferred_nids" else "no limit"
    return text_of(value)


def text_of(value: object) -> str:
    """Return a value of a policy as it is written in XML."""
    if isinstance(value, (tuple, list)):
        times = any(":" in str(part) for part in value)
        return ("; " if times else "," if isinstance(value[0], int) else " ").join(map(str, value))
    return str(value)
