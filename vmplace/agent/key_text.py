"""Errors of msgspec in words for people: TOML's names of types, and what a key takes."""

import re
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import msgspec


def toml_words(reported: str) -> str:
    """Return msgspec's message with TOML's names of the types."""
    names = {"object": "table", "str": "text", "int": "whole number", "float": "number", "bool": "true/false"}
    plain = reported.replace("`", "").replace(" | null", "").replace("null", "nothing")
    return re.sub(r"\b(object|str|int|float|bool)\b", lambda m: names[m[1]], plain[0].lower() + plain[1:])


def description(struct: type[msgspec.Struct], name: str | None) -> str | None:
    """Return what a key wants, from its annotation."""
    if name is None:
        return None
    wanted = _descriptions(get_type_hints(struct, include_extras=True).get(name))
    return f"{name} is {wanted[0]}" if wanted else None


def _descriptions(annotation: Any) -> list[str]:
    is_meta: Callable[[object], bool] = lambda part: isinstance(part, msgspec.Meta)  # noqa: E731
    args = get_args(annotation)
    own = [part.description for part in args if is_meta(part) and part.description]
    return own or [text for part in args for text in _descriptions(part)]
