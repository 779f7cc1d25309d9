"""What changed in vmplace.toml since it was read?  Policies count at once, all else after a restart."""

from collections.abc import Iterator

import msgspec

from vmplace.agent.config import GuestRule, LoadedConfig
from vmplace.agent.config_sections import Config
from vmplace.agent.guest_policy import KEYS, GuestPolicy
from vmplace.agent.policy_text import text_of

LIVE = frozenset({"defaults", "guests", "flavours"})


def reloaded(before: LoadedConfig, now: LoadedConfig) -> tuple[LoadedConfig, tuple[str, ...]]:
    """Return what holds from now on, and what changed, in words; both configurations are valid."""
    live = {name: getattr(now.config, name) for name in LIVE}
    config = msgspec.structs.replace(before.config, **live)
    reported = (*_iter_policies(before, now), *_iter_globals(before.config, now.config, ""))
    return LoadedConfig(config, now.rules, now.path), reported or ("nothing changed",)


def _iter_policies(before: LoadedConfig, now: LoadedConfig) -> Iterator[str]:
    yield from _iter_keys("defaults", before.config.defaults, now.config.defaults)
    for table in ("guests", "flavours"):
        yield from _iter_table(table, *(_table(table, one) for one in (before, now)))


def _table(name: str, loaded: LoadedConfig) -> dict[str, GuestRule]:
    return {rule.pattern: rule for rule in loaded.rules if rule.table == name}


def _iter_table(name: str, old: dict[str, GuestRule], new: dict[str, GuestRule]) -> Iterator[str]:
    for pattern in (*old, *(one for one in new if one not in old)):
        yield from _iter_rule(f"{name}.{pattern!r}", old.get(pattern), new.get(pattern))
    if [*old] != [*new] and sorted(old) == sorted(new):
        yield f"the order of {name} is now {', '.join(map(repr, new))}"


def _iter_rule(name: str, before: GuestRule | None, now: GuestRule | None) -> Iterator[str]:
    if now is None:
        yield f"{name} is gone"
        return
    if before is None:
        yield f"{name} is new"
    nothing = GuestPolicy()
    if now.error:
        yield f"{name} is wrong, its guests are left alone: {now.error}"
    else:
        yield from _iter_keys(name, before.policy if before else nothing, now.policy)
        if before is not None and before.error:
            yield f"{name} is right again"


def _iter_keys(name: str, before: GuestPolicy, now: GuestPolicy) -> Iterator[str]:
    for key in KEYS:
        old, new = getattr(before, key), getattr(now, key)
        if old != new:
            yield f"{name}.{key}: {_said(old)} -> {_said(new)}"


def _said(value: object) -> str:
    return "not set" if value is None else text_of(value)


def _iter_globals(before: msgspec.Struct, now: msgspec.Struct, prefix: str) -> Iterator[str]:
    for name in before.__struct_fields__:
        old, new = getattr(before, name), getattr(now, name)
        if old == new or (name in LIVE and isinstance(before, Config)):
            continue
        if isinstance(old, msgspec.Struct) and isinstance(new, msgspec.Struct):
            yield from _iter_globals(old, new, f"{name}.")
        else:
            yield f"{prefix}{name}: {old} -> {new} after a restart"
