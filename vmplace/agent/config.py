"""What did the operator ask for?  Reads /etc/vmplace/vmplace.toml (sample: vmplace.toml.example).

A wrong key or value is reported with file, line, column and the cure.  A wrong global setting stops the
start; a wrong section of guests or flavours leaves only the guests it is for alone.  A key that stands in
none of these sections, as nobody knows whom it is for, stops the start, too.
"""

import fnmatch
import re
import tomllib
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from vmplace.agent.config_mistakes import MOST_MISTAKES, Teller, iter_mistakes, joined, sections_inside
from vmplace.agent.config_sections import Config, GuestSection
from vmplace.agent.guest_policy import NOTHING, GuestPolicy, merged, settings_of
from vmplace.agent.toml_places import key_places
from vmplace.errors import ConfigError, OutsideError, cure_of_reading
from vmplace.outside import TOML_CURE, lines, parse_toml, printable, read_bytes, toml_cure
from vmplace.policy.plan import GuestSettings, Mode

DEFAULT_CONFIG = Path("/etc/vmplace/vmplace.toml")
SAMPLE = Path(__file__).with_name("vmplace.toml.example")
MOST_BYTES = 1 << 20


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
    tell = Teller(path, key_places(text))
    if found := list(islice(iter_mistakes(tree, tell), MOST_MISTAKES)):
        raise joined(found)
    config = tell.converted(tree, Config, ())
    guests = (
        _wrong_rules("guests", pattern, one, tell) or (_guest_rule(pattern, one, config.defaults, tell),)
        for pattern, one in config.guests.items()
    )
    flavours = (
        _wrong_rules("flavours", pattern, one, tell) or (_flavour_rule(pattern, one, config.defaults, tell),)
        for pattern, one in config.flavours.items()
    )
    return LoadedConfig(config, tuple(chain(*guests, *flavours)), path)


def _wrong_rules(
    table: Literal["guests", "flavours"], pattern: str, section: object, tell: Teller
) -> tuple[GuestRule, ...]:
    """Return rules that leave guests alone for whom sections inside of another may have been meant."""
    inside = sections_inside(table, pattern, section, tell)
    if not inside:
        return ()
    wrong = {pattern: joined(list(islice(inside.values(), MOST_MISTAKES))), **inside}
    return tuple(GuestRule(name, GuestSettings(Mode.MANUAL), err, table=table) for name, err in wrong.items())


def _guest_rule(pattern: str, section: object, defaults: GuestPolicy, tell: Teller) -> GuestRule:
    try:
        parsed = tell.converted(section, GuestSection, ("guests", pattern))
        policy = GuestPolicy(**parsed.stated())  # type: ignore[arg-type]
        with tell.contradictions(("guests", pattern)):
            settings = settings_of(merged((policy, defaults)))
    except ConfigError as err:
        return GuestRule(pattern, GuestSettings(Mode.MANUAL), err)
    return GuestRule(pattern, settings, policy=policy, origin=parsed.origin)


def _flavour_rule(pattern: str, section: object, defaults: GuestPolicy, tell: Teller) -> GuestRule:
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
