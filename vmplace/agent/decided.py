"""The policy that holds for a guest, from all places that may state one.  Pure; only here is the precedence.

Each key has the value of the first of these that states it:

1. ``<vmplace:policy>`` in the domain's XML;
2. the flavour's extra specs ``vmplace:KEY``, which Nova writes into the domain's XML;
3. annotations ``vmplace.io/KEY`` of KubeVirt's VirtualMachineInstance, but no further than 4 to 6 allow
   (narrowed.py): tenants may write them;
4. the first section ``[guests."PATTERN"]`` of vmplace.toml whose pattern matches the guest's name;
5. the first section ``[flavours."PATTERN"]`` of it whose pattern matches the name of the guest's flavour;
6. ``[defaults]`` of vmplace.toml;
7. the defaults of vmplace.

In any case, memory that ``<numatune>`` or QEMU's command line binds to nodes stays on them.  If one of these
is wrong, or two contradict each other, the guest is left alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from vmplace.agent.config import GuestRule, LoadedConfig
from vmplace.agent.guest_policy import DEFAULTS, KEYS, ContradictionError, GuestPolicy, merged, settings_of
from vmplace.agent.narrowed import narrowed
from vmplace.agent.policy_text import StatedPolicies, shown, stated_policies
from vmplace.errors import ConfigError
from vmplace.policy.plan import GuestSettings, Mode
from vmplace.topology.domain_policy import NUMATUNE, DomainPolicy

XML, FLAVOUR, BUILT_IN = "domain XML", "flavour (Nova extra specs)", "default"
ANNOTATION = "annotation (VirtualMachineInstance)"
NO_PRIORITY = "annotation vmplace.io/priority is ignored: only the operator lets others give way"
LEFT_ALONE = GuestSettings(Mode.MANUAL)


@dataclass(frozen=True)
class Decided:
    """What holds for one guest; ``origins`` says for each key who said so.

    ``problem``: why it is left alone, or None.  ``notes``: what else a person should know.
    """

    settings: GuestSettings
    policy: GuestPolicy = DEFAULTS
    origins: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    notes: tuple[str, ...] = ()


def decided(
    loaded: LoadedConfig,
    guest: str,
    said: DomainPolicy | None,
    host_nids: Iterable[int],
    origin: str = "libvirt",
) -> Decided:
    """Return what holds for a guest of that name; ``host_nids`` empty: the host's nodes are not known."""
    rule, said = loaded.rule(guest, origin), said or DomainPolicy()
    flavour = loaded.flavour_rule(said.names.flavour)
    if error := rule.error or flavour.error:
        return Decided(LEFT_ALONE, problem=str(error))
    try:
        stated = stated_policies(said, f"domain {guest}")
        layers = _layers(loaded, (rule, flavour), said, stated)
        whole = merged([policy for _, policy in layers])
        # A rule that was made in a program has no policy behind it.
        beside = (stated.xml, stated.nova, stated.annotations, flavour.policy)
        is_said = any(policy.stated() for policy in beside)
        settings = (
            replace(rule, settings=settings_of(whole)).granted(origin).settings if is_said else rule.settings
        )
        settings = _bound(settings, said, tuple(host_nids))
    except ConfigError as err:
        hint = f"; {err.hint}" if err.hint else ""
        return Decided(LEFT_ALONE, problem=f"{err}{hint}", notes=_strict_notes(said))
    except ContradictionError as err:
        return Decided(LEFT_ALONE, problem=f"policy of {guest}: {err}; {err.hint}")
    origins = {key: _origin(key, layers) for key in whole.stated()}
    unheard = (NO_PRIORITY,) if stated.annotations.priority else ()
    return Decided(settings, whole, origins, notes=(*stated.ignored, *unheard, *_strict_notes(said)))


def changed_words(before: Decided, now: Decided) -> str:
    """Return which keys changed, old -> new and who says so; empty if none did."""
    keys = (key for key in KEYS if getattr(before.policy, key) != getattr(now.policy, key))
    reported = (
        f"{key}: {shown(key, getattr(before.policy, key))} -> {shown(key, getattr(now.policy, key))} "
        f"({now.origins.get(key, 'nobody says so any more')})"
        for key in keys
    )
    return ", ".join(reported)


def _layers(
    loaded: LoadedConfig, rules: tuple[GuestRule, ...], said: DomainPolicy, stated: StatedPolicies
) -> list[tuple[str, GuestPolicy]]:
    name = loaded.path or "vmplace.toml"
    operator = merged([*(rule.policy for rule in rules), loaded.config.defaults])
    return [
        (XML, stated.xml),
        (_flavour(said), stated.nova),
        (ANNOTATION, narrowed(stated.annotations, operator)),
        *((f'{name}, [{rule.table}."{rule.pattern}"]', rule.policy) for rule in rules),
        (f"{name}, [defaults]", loaded.config.defaults),
        (BUILT_IN, DEFAULTS),
    ]


def _flavour(said: DomainPolicy) -> str:
    name = said.names.flavour
    return FLAVOUR.replace("flavour", f"flavour {name}", 1) if name else FLAVOUR


def _origin(key: str, layers: Iterable[tuple[str, GuestPolicy]]) -> str:
    return next(name for name, policy in layers if getattr(policy, key) is not None)


def _bound(settings: GuestSettings, said: DomainPolicy, host_nids: tuple[int, ...]) -> GuestSettings:
    """Return the settings within the host's nodes and those that numatune binds to; raises ConfigError."""
    for key in ("allowed_nids", "preferred_nids"):
        missing = sorted(set(getattr(settings, key) or ()).difference(host_nids)) if host_nids else []
        if missing:
            hint = f"the host has nodes {list(host_nids)}"
            raise ConfigError(f"{key} names nodes {missing}, which are not there", place="policy", hint=hint)
    bound = said.numatune.allowed()
    if bound is None:
        return settings
    allowed = tuple(nid for nid in bound if nid in (settings.allowed_nids or bound))
    if not allowed:
        by = said.numatune.by
        hint = f"allow some of the nodes {list(bound)}, or change {by}"
        message = f"allowed_nids {list(settings.allowed_nids or ())} and {by} have no node in common"
        raise ConfigError(message, place="policy", hint=hint)
    preferred = tuple(nid for nid in settings.preferred_nids or () if nid in allowed)
    return replace(settings, allowed_nids=allowed, preferred_nids=preferred or None)


def _strict_notes(said: DomainPolicy) -> tuple[str, ...]:
    if not said.numatune.is_strict:
        return ()
    bound = ",".join(map(str, said.numatune.allowed() or ())) or "that it is bound to"
    if said.numatune.by != NUMATUNE:
        return (f"{said.numatune.by}: memory cannot leave nodes {bound} while it runs",)
    return (
        f"<numatune> is strict: memory cannot leave nodes {bound}, nor can libvirt change them while it "
        "runs; `vmplace policy apply --config` makes it restrictive for the next start",
    )
