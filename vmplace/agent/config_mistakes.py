"""What is wrong in vmplace.toml (config.py): all that one look finds, each with its place and its cure."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from vmplace.agent.config_sections import Config, GuestSection
from vmplace.agent.guest_policy import GONE_KEYS, KEYS, ContradictionError, GuestPolicy, check
from vmplace.agent.key_text import description, toml_words
from vmplace.agent.toml_places import Path as KeyPath
from vmplace.errors import ConfigError, ConfigMistakesError
from vmplace.outside import printable

MOST_MISTAKES = 20
"""Reported at once."""
MOST_LABELS = 32
"""Names in each other, of a guest whose name has dots: what is nested deeper is nobody's name."""
OF_GUESTS = "it is a key of guests: put it under [defaults], or under [guests.NAME]"

S = TypeVar("S", bound=msgspec.Struct)


class Teller:
    """Turn msgspec's complaints into errors with a place and a cure."""

    def __init__(self, path: Path, places: Mapping[KeyPath, tuple[int, int]]) -> None:
        self._path = path
        self._places = places

    def converted(self, tree: object, to: type[S], under: KeyPath) -> S:
        """Return ``tree`` as ``to``; raises ConfigError.  ``under`` is the path of ``tree`` in the file."""
        try:
            return msgspec.convert(tree, to)
        except msgspec.ValidationError as err:
            mistakes = self.mistakes(tree, to, under) if isinstance(tree, dict) else ()
            found = list(islice(mistakes, MOST_MISTAKES))
            raise joined(found or [self._explained(str(err), to, under)]) from err

    def mistakes(
        self, tree: dict[str, Any], to: type[msgspec.Struct], under: KeyPath
    ) -> Iterator[ConfigError]:
        """Yield what is wrong with each of the keys by itself."""
        for key, value in tree.items():
            inner = _field_type(to, key)
            if inner is not None and isinstance(value, dict):
                yield from self.mistakes(value, inner, (*under, key))
                continue
            try:
                msgspec.convert({key: value}, to)
            except msgspec.ValidationError as err:
                yield self._explained(str(err), to, under)

    @contextmanager
    def contradictions(self, under: KeyPath) -> Iterator[None]:
        """Tell a contradiction with its place; ``under`` is the path of the policy in the file."""
        try:
            yield
        except ContradictionError as err:
            raise self.error((*under, err.key), str(err), err.hint) from None

    def error(self, key: KeyPath, message: str, hint: str | None) -> ConfigError:
        """Return the error at ``key``, or at the nearest table around it that stands in the text."""
        while key and key not in self._places:
            key = key[:-1]
        line, column = self._places.get(key, (1, 1))
        return ConfigError(message, place=f"{self._path}:{line}:{column}", hint=hint)

    def _explained(self, reported: str, to: type[msgspec.Struct], under: KeyPath) -> ConfigError:
        what, _, where = reported.partition(" - at `$")
        inner = _key_path(where.rstrip("`"))
        struct, names = to, [key for key in inner if isinstance(key, str)]
        while names and isinstance(field := _field_type(struct, names[0]), type):
            struct = field
            del names[0]
        unknown = re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL)
        if unknown and unknown[1] in GONE_KEYS:
            place = (*under, *inner, unknown[1])
            return self.error(place, f"{unknown[1]} is gone: {GONE_KEYS[unknown[1]]}", "remove the line")
        if unknown:
            hint = OF_GUESTS if unknown[1] in KEYS else _nearest(unknown[1], list(struct.__struct_fields__))
            return self.error((*under, *inner, unknown[1]), f"unknown key {unknown[1]!r}", hint)
        key = ".".join(names[-1:]) or ".".join(str(part) for part in (*under, *inner))
        message = f"{key}: {toml_words(what)}"
        return self.error((*under, *inner), message, description(struct, names[-1] if names else None))


def _key_path(text: str) -> KeyPath:
    """Parse msgspec's ``.budget.nids[1]``."""
    parts = re.findall(r"\.(\w+)|\[(\d+)\]", text)
    return tuple(name or int(index) for name, index in parts)


@cache
def _field_type(struct: type[msgspec.Struct], name: str) -> type[msgspec.Struct] | None:
    found = get_type_hints(struct).get(name)
    return found if isinstance(found, type) and issubclass(found, msgspec.Struct) else None


def joined(mistakes: list[ConfigError]) -> ConfigError:
    """Return one error for all of these, in the order of the file."""
    by_place = {one.place: one for one in reversed(mistakes)}
    in_order = sorted(by_place.values(), key=lambda one: tuple(map(int, one.place.rsplit(":", 2)[1:])))
    return in_order[0] if len(in_order) == 1 else ConfigMistakesError(in_order)


def iter_mistakes(tree: dict[str, Any], tell: Teller) -> Iterator[ConfigError]:
    """Yield what is wrong outside of the sections of guests and flavours, and if so, in these, too."""
    is_right = True
    for mistake in chain(
        tell.mistakes(tree, Config, ()),
        _iter_names(tree, tell),
        _iter_stray_keys(tree, tell),
        _iter_contradictions(tree, tell),
    ):
        is_right = False
        yield mistake
    if is_right:
        return
    for table, section in (("guests", GuestSection), ("flavours", GuestPolicy)):
        for pattern, one in _sections(tree, table):
            if isinstance(one, dict):
                yield from sections_inside(table, pattern, one, tell).values()
                keys = {key: value for key, value in one.items() if not isinstance(value, dict)}
                yield from tell.mistakes(keys, section, (table, pattern))


def _sections(tree: dict[str, Any], table: str) -> Iterable[tuple[str, Any]]:
    sections = tree.get(table)
    return sections.items() if isinstance(sections, dict) else ()


def _iter_contradictions(tree: dict[str, Any], tell: Teller) -> Iterator[ConfigError]:
    try:
        with tell.contradictions(("defaults",)):
            check(msgspec.convert(tree.get("defaults", {}), GuestPolicy))
    except ConfigError as err:
        yield err
    except msgspec.ValidationError:
        # Its keys are wrong by themselves.
        return


def _iter_names(tree: dict[str, Any], tell: Teller) -> Iterator[ConfigError]:
    from vmplace.policy.registry import GONE, POLICY_NAMES
    from vmplace.sampling.registry import ADDED, EXACT, SENSORS, is_source

    policy, source = tree.get("policy", "auto"), tree.get("source", "auto")
    sources = ["auto", *SENSORS, "+".join((EXACT, *ADDED))]
    if isinstance(policy, str) and policy in GONE:
        yield tell.error(("policy",), f"policy {policy!r} is gone: auto decides", "remove the line")
    elif isinstance(policy, str) and policy not in POLICY_NAMES:
        yield tell.error(
            ("policy",), f"policy {policy!r} does not exist", _nearest(policy, list(POLICY_NAMES))
        )
    if isinstance(source, str) and source != "auto" and not is_source(source):
        yield tell.error(("source",), f"source {source!r} does not exist", _nearest(source, sources))


def _iter_stray_keys(tree: dict[str, Any], tell: Teller) -> Iterator[ConfigError]:
    """Yield what stands in no section of guests or flavours: nobody knows whom it was meant for."""
    for table in ("guests", "flavours"):
        for name, section in _sections(tree, table):
            if not isinstance(section, dict):
                hint = f'put keys under [defaults], or under [{table}."NAME"]'
                yield tell.error((table, name), f"{table}.{printable(name)} is no section", hint)


def sections_inside(table: str, pattern: str, section: object, tell: Teller) -> Mapping[str, ConfigError]:
    """Return what sections inside of this one may have been meant for, and the mistake that each is."""
    found = dict[str, ConfigError]()
    left: list[tuple[KeyPath, object]] = [((pattern,), section)]
    while left:
        names, one = left.pop()
        for key, value in one.items() if isinstance(one, dict) and len(names) < MOST_LABELS else ():
            if isinstance(value, dict):
                inner = (*names, key)
                name = ".".join(map(str, inner))
                shown = printable(name)
                hint = f'if the name has a dot, write [{table}."{shown}"]'
                found[name] = tell.error((table, *inner), f"{table}.{shown} is a section in another", hint)
                left.append((inner, value))
    return found


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
