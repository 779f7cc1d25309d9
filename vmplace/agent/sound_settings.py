"""Which settings hold for an undo if vmplace.toml has a mistake?  Those that are sound by themselves.

An undo must not wait for somebody who corrects the file: the journal has what was before.
"""

from pathlib import Path
from typing import Any

import msgspec

from vmplace.agent.config import DEFAULT_CONFIG, MOST_BYTES, read_config
from vmplace.agent.config_sections import Config
from vmplace.errors import ConfigError, OutsideError
from vmplace.outside import lines, parse_toml, read_text


def sound_settings(path: Path | None = None) -> tuple[Config, ConfigError | None]:
    """Return the settings, and what is wrong with the file, if something is.

    Raises ConfigError where the file ``path`` was asked for and is no TOML: it may name any journal.
    """
    try:
        return read_config(path).config, None
    except ConfigError as err:
        try:
            tree = _tree(path)
        except (OSError, ValueError):
            raise err from None
        return msgspec.convert(_sound(tree), Config), err


def _tree(path: Path | None) -> dict[str, Any]:
    """Return what stands in the file; of the usual one, if it is no TOML, lines that are; else ValueError."""
    try:
        text = read_text(path or DEFAULT_CONFIG, MOST_BYTES)
    except OutsideError:
        if path is not None:
            raise
        return {}
    try:
        return parse_toml(text)
    except ValueError:
        if path is not None:
            raise
    tree: dict[str, Any] = {}
    for line in lines(text):
        if line.lstrip().startswith("["):
            break
        if _is_toml(line):
            tree |= parse_toml(line)
    return tree


def _is_toml(line: str) -> bool:
    try:
        parse_toml(line)
    except ValueError:
        return False
    return True


def _sound(tree: dict[str, Any]) -> dict[str, Any]:
    """Return what of the settings is sound by itself, of a table that is not, those of its keys that are."""
    kept: dict[str, Any] = {}
    for key, value in tree.items():
        if _is_sound({key: value}):
            kept[key] = value
        elif isinstance(value, dict):
            kept[key] = {one: each for one, each in value.items() if _is_sound({key: {one: each}})}
    return {key: value for key, value in kept.items() if _is_sound({key: value})}


def _is_sound(tree: dict[str, Any]) -> bool:
    try:
        msgspec.convert(tree, Config)
    except msgspec.ValidationError:
        return False
    return True
