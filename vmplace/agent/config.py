"""What did the operator ask for?  Reads /etc/vmplace/vmplace.toml (sample: vmplace.toml.example).

A wrong key or value is reported with file, line, column and the cure.  A wrong global setting stops the
start; a wrong section of guests or flavours leaves only the guests it is for alone.  A key that stands in
none of these sections, as nobody knows whom it is for, stops the start, too.
"""

import difflib
import fnmatch
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar, get_type_hints

import msgspec

from vmplace.agent.config_sections import Config, GuestSection
from vmplace.agent.guest_policy import (
    GONE_KEYS,
    KEYS,
    NOTHING,
    ContradictionError,
    GuestPolicy,
    check,
    merged,
    settings_of,
)
from vmplace.agent.key_text import description, toml_words
from vmplace.agent.toml_places import Path as KeyPath
from vmplace.agent.toml_places import key_places
from vmplace.errors import ConfigError, OutsideError, cure_of_reading
from vmplace.outside import TOML_CURE, lines, parse_toml, printable, read_bytes, toml_cure
from vmplace.policy.plan import GuestSettings, Mode

DEFAULT_CONFIG = Path("/etc/vmplace/vmplace.toml")
SAMPLE = Path(__file__).with_name("vmplace.toml.example")
MOST_BYTES = 1 << 20
OF_GUESTS = "it is a key of guests: put it under [defaults], or under [guests.NAME]"


@dataclass(frozen=True)
class GuestRule:
    """One section of ``table``; ``error`` holds what is wrong with it, and then its guests are left alone.

    ``policy`` is what the section says, ``settings`` what follows from it and from ``[defaults]``.
    """

    pattern: str
    settings: GuestSettings
    error: ConfigError | None = None
    policy: GuestPolicy = NOTHING
    origin: str = "any"
    table: Literal["guests", "flavours"] = "guests"

    def is_for(self, guest: str, origin: str) -> bool:
        """Tell whether the section is about a guest of this name and origin."""
        is_name = self.table == "guests" and fnmatch.fnmatchcase(guest, self.pattern)
        return is_name and self.origin in ("any", origin)

    def is_for_flavour(self, name: str) -> bool:
        """Tell whether the section is about guests of this flavour."""
        return self.table == "flavours" and name != "" and fnmatch.fnmatchcase(name, self.pattern)

    def granted(self, origin: str) -> "GuestRule":
        """Return the rule as a guest of this origin gets it.

        A guest that libvirt does not vouch for chooses its own name.  So it may choose what it gives up, but
        not that others make way for it, unless the section is for such guests by its word.
        """
        if origin != "kvm" or self.origin == "kvm" or not self.settings.protected:
            return self
        return replace(self, settings=replace(self.settings, protected=False))


@dataclass(frozen=True)
class LoadedConfig:
    """A valid configuration and the guest rules in the order of the file."""

    config: Config
    rules: tuple[GuestRule, ...] = ()
    path: Path | None = None

    def rule(self, guest: str, origin: str = "libvirt") -> GuestRule:
        """Return the first rule that is for the guest; guests that no rule is for have the defaults."""
        matches = (rule.granted(origin) for rule in self.rules if rule.is_for(guest, origin))
        return next(matches, GuestRule("", settings_of(self.config.defaults)).granted(origin))

    def flavour_rule(self, name: str) -> GuestRule:
        """Return the first rule for guests of a flavour; one that says nothing if there is none."""
        matches = (rule for rule in self.rules if rule.is_for_flavour(name))
        return next(matches, GuestRule("", settings_of(self.config.defaults), table="flavours"))


def read_config(path: Path | None = None) -> LoadedConfig:
    """Read ``path``, or the default file; only the default file may be absent (all defaults then).

    Raises ConfigError for anything wrong outside of the guest sections.
    """
    chosen = path or DEFAULT_CONFIG
    try:
        text = read_bytes(chosen, MOST_BYTES).decode()
    except FileNotFoundError as err:
        if path is None:
            return LoadedConfig(Config())
        raise ConfigError("no such file", place=str(chosen), hint="give --config the path of one") from err
    except (OSError, UnicodeDecodeError, OutsideError) as err:
        raise ConfigError(f"cannot be read: {err}", place=str(chosen), hint=_reading_cure(err)) from err
    return parse_config(text, chosen)


def _reading_cure(err: Exception) -> str:
    if isinstance(err, OutsideError):
        return f"take out what is no setting: {SAMPLE} lists them"
    return cure_of_reading(err)


def parse_config(text: str, path: Path) -> LoadedConfig:
    """Parse the text of a configuration file; ``path`` is for messages."""
    try:
        tree = parse_toml(text)
    except tomllib.TOMLDecodeError as err:
        raise _syntax_error(err, text, path) from err
    except OutsideError as err:
        raise ConfigError(str(err), place=str(path), hint=TOML_CURE) from err
    # TOML counts \r\n as one line end, and so does the scan: the \r is white space.
    tell = _Teller(path, key_places(text))
    config = tell.converted(tree, Config, ())
    _check_names(config, tell)
    for mistake in _iter_stray_keys(config, tell):
        raise mistake
    with tell.contradictions(("defaults",)):
        check(config.defaults)
    guests = (_guest_rule(pattern, one, config.defaults, tell) for pattern, one in config.guests.items())
    flavours = (
        _flavour_rule(pattern, one, config.defaults, tell) for pattern, one in config.flavours.items()
    )
    return LoadedConfig(config, (*guests, *flavours), path)


def _check_names(config: Config, tell: "_Teller") -> None:
    from vmplace.policy.registry import GONE, POLICY_NAMES
    from vmplace.sampling.registry import ADDED, EXACT, SENSORS, is_source

    if config.policy in GONE:
        raise tell.error(("policy",), f"policy {config.policy!r} is gone: auto decides", "remove the line")
    sources = ["auto", *SENSORS, "+".join((EXACT, *ADDED))]
    for key, value, known, is_known in (
        ("policy", config.policy, list(POLICY_NAMES), config.policy in POLICY_NAMES),
        ("source", config.source, sources, config.source == "auto" or is_source(config.source)),
    ):
        if not is_known:
            raise tell.error((key,), f"{key} {value!r} does not exist", _nearest(value, known))


def _iter_stray_keys(config: Config, tell: "_Teller") -> Iterator[ConfigError]:
    """Yield what stands in no section of guests or flavours: nobody knows whom it was meant for."""
    for table, sections in (("guests", config.guests), ("flavours", config.flavours)):
        for name, section in sections.items():
            if not isinstance(section, dict):
                hint = f'put keys under [defaults], or under [{table}."NAME"]'
                yield tell.error((table, name), f"{table}.{name} is no section", hint)
                continue
            for key in (key for key, value in section.items() if isinstance(value, dict)):
                hint = f'if the name has a dot, write [{table}."{name}.{key}"]'
                yield tell.error((table, name, key), f"{table}.{name}.{key} is a section in another", hint)


def _guest_rule(pattern: str, section: object, defaults: GuestPolicy, tell: "_Teller") -> GuestRule:
    try:
        parsed = tell.converted(section, GuestSection, ("guests", pattern))
        policy = GuestPolicy(**parsed.stated())  # type: ignore[arg-type]
        with tell.contradictions(("guests", pattern)):
            settings = settings_of(merged((policy, defaults)))
    except ConfigError as err:
        return GuestRule(pattern, GuestSettings(Mode.MANUAL), err)
    return GuestRule(pattern, settings, policy=policy, origin=parsed.origin)


def _flavour_rule(pattern: str, section: object, defaults: GuestPolicy, tell: "_Teller") -> GuestRule:
    try:
        policy = tell.converted(section, GuestPolicy, ("flavours", pattern))
        with tell.contradictions(("flavours", pattern)):
            settings = settings_of(merged((policy, defaults)))
    except ConfigError as err:
        return GuestRule(pattern, GuestSettings(Mode.MANUAL), err, table="flavours")
    return GuestRule(pattern, settings, policy=policy, table="flavours")


def _syntax_error(err: tomllib.TOMLDecodeError, text: str, path: Path) -> ConfigError:
    reported = str(err)
    where = re.search(r" \(at line (\d+), column (\d+)\)$", reported)
    rows = lines(text) or [""]
    line, column = (int(where[1]), int(where[2])) if where else (len(rows), len(rows[-1]) + 1)
    message = printable(re.sub(r" \(at [^)]*\)$", "", reported), 300)
    return ConfigError(f"not valid TOML: {message}", place=f"{path}:{line}:{column}", hint=toml_cure(err))


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


S = TypeVar("S", bound=msgspec.Struct)


class _Teller:
    """Turn msgspec's complaints into errors with a place and a cure."""

    def __init__(self, path: Path, places: Mapping[KeyPath, tuple[int, int]]) -> None:
        self._path = path
        self._places = places

    def converted(self, tree: object, to: type[S], under: KeyPath) -> S:
        """Return ``tree`` as ``to``; raises ConfigError.  ``under`` is the path of ``tree`` in the file."""
        try:
            return msgspec.convert(tree, to)
        except msgspec.ValidationError as err:
            raise self._explained(str(err), tree, to, under) from err

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

    def _explained(
        self, reported: str, tree: object, to: type[msgspec.Struct], under: KeyPath
    ) -> ConfigError:
        what, _, where = reported.partition(" - at `$")
        inner = _key_path(where.rstrip("`"))
        struct, names = to, [key for key in inner if isinstance(key, str)]
        while names and isinstance(field := _field_type(struct, names[0]), type):
            struct = field
            del names[0]
        unknown = re.fullmatch(r"Object contains unknown field `(.*)`", what)
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


def _field_type(struct: type[msgspec.Struct], name: str) -> type[msgspec.Struct] | None:
    found = get_type_hints(struct).get(name)
    return found if isinstance(found, type) and issubclass(found, msgspec.Struct) else None
