"""``vmplace policy get|set|validate|explain|apply``: what may be done with a guest, and who said so."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vmplace.errors import ConfigError, VmplaceError, cure_of_reading
from vmplace.interfaces.client import NoAgentError, ask
from vmplace.interfaces.options import (
    READ,
    NothingError,
    WholeSentences,
    config_option,
    examples,
    json_option,
    print_json,
    socket_option,
)
from vmplace.topology.guests_libvirt import SYSTEM_URI

if TYPE_CHECKING:
    from vmplace.interfaces.domain_metadata import DomainXml

uri_option = click.option("--libvirt-uri", default=SYSTEM_URI, show_default=True, help="Where libvirt is.")
Keys = dict[str, str]
"""What a policy says, by key."""


@click.group(
    cls=WholeSentences,
    epilog=examples(
        "vmplace policy explain db1\nvmplace policy set db1 mode=advise allowed_nids=0-1\n"
        "vmplace policy validate /etc/vmplace/vmplace.toml"
    ),
)
def policy() -> None:
    """Show, set and check what vmplace may do with a guest.

    docs/policy-reference.md describes all keys; `vmplace policy explain` without a guest lists them.
    """


@policy.command(epilog=examples("vmplace policy get db1\nvmplace policy get db1 --config --json"))
@click.argument("guest")
@click.option("--config", "config", is_flag=True, help="Of the XML for its next start, not the running one.")
@json_option
@uri_option
def get(guest: str, config: bool, as_json: bool, libvirt_uri: str) -> None:
    """Print the policy in the XML of GUEST, and the extra specs of its flavour."""
    from vmplace.interfaces.domain_metadata import read_domain, words_of

    domain = read_domain(libvirt_uri, guest)
    said = domain.said(config=config)
    if said.error:
        raise VmplaceError(said.error, hint=domain.cure("config" if config or not domain.live else "live"))
    reported = {"name": domain.name, "keys": words_of(said.words), "flavour": words_of(said.nova)}
    if as_json:
        print_json(reported)
    else:
        for key, text in words_of(said.words).items():
            click.echo(f"{key}={text}")
        for key, text in words_of(said.nova).items():
            click.echo(f"vmplace:{key}={text}  (flavour)")
    if not (said.has_policy or said.nova):
        hint = f"set one: vmplace policy set {guest} mode=advise"
        raise NothingError(f"the XML of {guest} holds no policy", hint=hint)


@policy.command(
    "set",
    epilog=examples(
        "vmplace policy set db1 mode=auto techniques='move replicate'\n"
        "vmplace policy set db1 --unset schedule\nvmplace policy set db1 --remove"
    ),
)
@click.argument("guest")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--unset", multiple=True, metavar="KEY", help="Remove KEY from the policy.")
@click.option("--remove", is_flag=True, help="Remove the whole policy from the XML.")
@click.option("--live", is_flag=True, help="Only of the running guest.")
@click.option("--config", "config", is_flag=True, help="Only for its next start.")
@json_option
@uri_option
def set_(  # noqa: PLR0913 - click's arguments
    guest: str,
    words: tuple[str, ...],
    unset: tuple[str, ...],
    remove: bool,
    live: bool,
    config: bool,
    as_json: bool,
    libvirt_uri: str,
) -> None:
    """Change the policy in the XML of GUEST, now and for its next start; other keys of each stay.

    The agent follows within a window.  A mistake is reported, and nothing changes.
    """
    from vmplace.interfaces.domain_metadata import changed_policies, difference, read_domain, write_policies

    if not (words or unset or remove):
        raise click.UsageError("nothing to set: give KEY=VALUE, --unset KEY or --remove")
    if remove and (words or unset):
        raise click.UsageError("--remove takes all of the policy out: leave KEY=VALUE and --unset out")
    changes = _parsed(words, unset)
    domain = read_domain(libvirt_uri, guest)
    where = domain.where(live=live, config=config)
    if remove:
        _remove(libvirt_uri, domain, where, as_json=as_json)
        return
    wanted = changed_policies(domain, where, changes, unset)
    write_policies(libvirt_uri, domain, wanted)
    keys, *others = wanted.values()
    other = next((one for one in others if one != keys), None)
    _print_set(domain.name, where, "policy set", (keys, other), as_json=as_json)
    if other is not None and not as_json:
        click.echo(f"note: for its next start it says otherwise: {difference(keys, other)}")


def _remove(uri: str, domain: "DomainXml", where: str, *, as_json: bool) -> None:
    """Take the policy out; raises VmplaceError where that did not mend the XML."""
    from vmplace.interfaces.domain_metadata import check_readable, read_domain, remove_policy

    was_there = remove_policy(uri, domain, where)
    done = "policy taken out" if was_there else "there was no policy of vmplace to take out"
    _print_set(domain.name, where, done, ({}, None), as_json=as_json)
    check_readable(read_domain(uri, domain.name), where)


def _print_set(name: str, where: str, done: str, keys: tuple[Keys, Keys | None], *, as_json: bool) -> None:
    """Print what was done; ``keys``: what the XML says now, and that of the next start if otherwise."""
    if as_json:
        print_json({"name": name, "where": where, "keys": keys[0], "next_start_keys": keys[1]})
    else:
        click.echo(f"{name}: {done} ({where})")


def _parsed(words: tuple[str, ...], unset: tuple[str, ...]) -> dict[str, str]:
    """Return the values by key; raises UsageError where one key is to be two things."""
    for word in words:
        if "=" not in word:
            raise click.UsageError(f"{word!r} is no KEY=VALUE")
    pairs = [(key, text) for key, _, text in (word.partition("=") for word in words)]
    keys = [*(key for key, _ in pairs), *dict.fromkeys(unset)]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise click.UsageError(f"{twice[0]!r} is given twice: keep one KEY=VALUE, or --unset KEY")
    return dict(pairs)


@policy.command(
    epilog=examples(
        "vmplace policy validate /etc/vmplace/vmplace.toml\nvirsh dumpxml db1 | vmplace policy validate -"
    )
)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True, readable=False))
@json_option
def validate(file: Path, as_json: bool) -> None:
    """Check FILE: vmplace.toml, a domain's XML, or a policy element; exit code 1 if it has mistakes."""
    name = "stdin" if str(file) == "-" else str(file)
    content = _content(file)
    text = content.decode(errors="replace")
    if file.suffix != ".toml" and text.lstrip("\ufeff \t\r\n").startswith("<"):
        problems, notes = _xml_problems(text, name)
    else:
        problems, notes = _toml_problems(content, name)
    if as_json:
        reported = [{"message": str(one), "hint": one.hint} for one in problems]
        print_json({"valid": not problems, "problems": reported, "notes": notes})
    else:
        for problem in problems:
            click.echo(f"{problem}" + (f"\n  hint: {problem.hint}" if problem.hint else ""))
        for note in notes:
            click.echo(f"note: {note}")
        mistakes = "1 mistake" if len(problems) == 1 else f"{len(problems) or 'no'} mistakes"
        click.echo(f"{name}: {mistakes}")
    sys.exit(1 if problems else 0)


def _content(file: Path) -> bytes:
    """Return what the file holds, "-" for standard input; nothing is no policy, but a vmplace.toml."""
    from vmplace.outside import MOST_BYTES, read_bytes

    hint = "give a domain's XML (virsh dumpxml GUEST) or a vmplace.toml that you may read"
    if str(file) == "-" and sys.stdin is None:
        raise VmplaceError("stdin is closed", hint=hint)
    try:
        content: bytes = sys.stdin.buffer.read(MOST_BYTES) if str(file) == "-" else read_bytes(file)
    except OSError as err:
        raise VmplaceError(f"{file}: {err.strerror}", hint=hint) from err
    if file.suffix != ".toml" and not content.strip():
        raise VmplaceError(f"{'stdin' if str(file) == '-' else file} holds nothing", hint=hint)
    return content


def _toml_problems(content: bytes, name: str) -> tuple[list[VmplaceError], list[str]]:
    from vmplace.agent.config import MOST_BYTES, parse_config
    from vmplace.outside import parse_toml

    try:
        if len(content) > MOST_BYTES:
            hint = "take out what is no setting"
            raise ConfigError(f"it holds more than {MOST_BYTES} bytes", place=name, hint=hint)
        loaded = parse_config(content.decode(), Path(name))
    except UnicodeDecodeError as err:
        return [ConfigError(f"cannot be read: {err}", place=name, hint=cure_of_reading(err))], []
    except ConfigError as err:
        return [*err.mistakes], []
    notes = [] if parse_toml(content.decode()) else ["it sets nothing: the defaults apply"]
    # A section inside of another is a mistake of both.
    mistakes = dict.fromkeys(one for rule in loaded.rules if rule.error for one in rule.error.mistakes)
    return list(mistakes), notes


def _xml_problems(text: str, name: str) -> tuple[list[VmplaceError], list[str]]:
    from vmplace.agent.policy_text import stated_policies
    from vmplace.topology.domain_policy import DomainXmlError, parse_domain_policy

    try:
        said = parse_domain_policy(text)
        stated = stated_policies(said, name)
        if not said.is_known:
            hint = "give what `virsh dumpxml GUEST` prints, or its <metadata> or <vmplace:policy> alone"
            return [ConfigError("it is neither a domain's XML nor a policy", place=name, hint=hint)], []
    except DomainXmlError as err:
        return [ConfigError(str(err), place=f"{name}:{err.line}", hint=err.hint)], []
    except ConfigError as err:
        return [*err.mistakes], []
    notes = list(stated.ignored)
    if not (said.has_policy or said.nova):
        notes.append("it holds no policy: there is no <vmplace:policy>, and no extra spec vmplace:KEY")
    return [], notes


@policy.command(epilog=examples("vmplace policy explain db1\nvmplace policy explain"))
@click.argument("guest", required=False)
@json_option
@socket_option
@config_option
@uri_option
def explain(
    guest: str | None, as_json: bool, socket: Path | None, config: Path | None, libvirt_uri: str
) -> None:
    """Show the policy of GUEST, key by key, and where each value comes from; without GUEST, list all keys.

    It asks the running agent.  Without one, it reads libvirt and the configuration itself.
    """
    if guest is None:
        _print_keys(as_json)
        return
    try:
        reported = ask("policy", guest, path=socket)
    except NoAgentError:
        reported = _explained(guest, config, libvirt_uri)
    if as_json:
        print_json(reported)
        return
    from vmplace.interfaces.policy_view import print_policy

    print_policy(reported)


def _explained(guest: str, config: Path | None, uri: str) -> Any:
    import msgspec

    from vmplace.agent.config import read_config
    from vmplace.agent.decided import decided
    from vmplace.interfaces.domain_metadata import read_domain
    from vmplace.interfaces.policy_view import policy_view

    loaded, domain = read_config(config), read_domain(uri, guest)
    return msgspec.to_builtins(policy_view(guest, decided(loaded, guest, domain.said(), ())))


def _print_keys(as_json: bool) -> None:
    from vmplace.agent.guest_policy import DEFAULTS, KEYS
    from vmplace.agent.policy_text import shown, wanted
    from vmplace.interfaces.guest_views import PolicyKey, PolicyKeys

    keys = {key: PolicyKey(wanted(key) or key, shown(key, getattr(DEFAULTS, key))) for key in KEYS}
    if as_json:
        print_json(PolicyKeys(keys))
        return
    for one in keys.values():
        click.echo(f"{one.wanted}; default: {one.default}")


@policy.command(
    epilog=examples("vmplace policy apply --config db1\nvmplace policy apply --config --dry-run db1")
)
@click.argument("guest")
@click.option("--config", "config", is_flag=True, required=True, help="For its next start.")
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@json_option
@click.option("--agent-config", type=READ, help="vmplace.toml, if not the default one.")
@uri_option
def apply(  # noqa: PLR0913 - click's arguments
    guest: str,
    config: bool,
    dry_run: bool,
    as_json: bool,
    agent_config: Path | None,
    libvirt_uri: str,
) -> None:
    """Make <numatune> of GUEST restrictive where it is strict, for its next start.

    libvirt changes the nodes of a running guest only if it was defined restrictive.  The nodes, and all
    else in the XML, stay the same.  The policy of GUEST must let vmplace move its memory.
    """
    from vmplace.agent.config import read_config
    from vmplace.agent.decided import decided
    from vmplace.interfaces.domain_metadata import read_domain, relax_config
    from vmplace.policy.plan import Mode

    domain = read_domain(libvirt_uri, guest)
    domain.where(live=False, config=True)
    what = decided(read_config(agent_config), guest, domain.said(config=True), ())
    if what.problem:
        raise VmplaceError(f"{guest}: {what.problem}", hint="`vmplace policy validate` names what to mend")
    if what.settings.mode is not Mode.AUTO or not what.settings.moves:
        hint = f"`vmplace policy explain {guest}` says where that comes from"
        raise VmplaceError(f"the policy of {guest} does not let vmplace move its memory", hint=hint)
    changed = relax_config(libvirt_uri, guest, is_dry=dry_run)
    reported = "would become restrictive" if dry_run else "is restrictive from its next start on"
    if as_json:
        print_json({"name": guest, "changed": changed, "dry_run": dry_run})
    elif changed:
        click.echo(f"{guest}: <numatune> {reported}, the nodes stay the same")
    if not changed:
        raise NothingError(
            f"{guest}: nothing to change: no <numatune> is strict and names its nodes",
            hint=f"`virsh dumpxml --inactive {guest}` shows its <numatune>",
        )
