"""Errors of msgspec in words for people: TOML's names of types, and what a key takes."""

import re
from typing import Any, get_args, get_type_hints

import msgspec


def toml_words(reported: str) -> str:
    """Return msgspec's message with TOML's names of the types."""
    names = {"object": "table", "str": "text", "int": "whole number", "float": "number", "bool": "true/false"}
    plain = reported.replace("`", "").replace(" | null", "").replace("null", "nothing")
    return re.sub(r"\b(object|str|int|float|bool)\b", lambda m: names[m[1]], plain[0].lower() + plain[1:])


def description(struct: type[msgspec.Struct], name: str | None, form: str | None = None) -> str | None:
    """Return what a key wants, from its annotation; ``form``: how it is written, if not as in TOML."""
    if name is None:
        return None
    wanted = _descriptions(get_type_hints(struct, include_extras=True).get(name))
    if not wanted:
        return None
    example = wanted[0].examples
    form = form or (f"such as {example[0]}" if example else None)
    return f"{name} is {wanted[0].description}" + (f", {form}" if form else "")


def _descriptions(annotation: Any) -> list[msgspec.Meta]:
    args = get_args(annotation)
    own = [part for part in args if isinstance(part, msgspec.Meta) and part.description]
    return own or [meta for part in args for meta in _descriptions(part)]
