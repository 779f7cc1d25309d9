"""``vmplace plan|apply|undo|pause|resume``: see what would be done, and give orders."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vmplace.errors import VmplaceError
from vmplace.interfaces.client import NoAgentError, ask
from vmplace.interfaces.options import (
    NothingError,
    config_option,
    examples,
    json_option,
    print_json,
    socket_option,
)

if TYPE_CHECKING:
    from vmplace.agent.config_sections import Config
    from vmplace.agent.state import AgentStatus, PlanSummary

LIBVIRT_S = 10.0
"""How long to wait for libvirt where a plan is made of one look."""
ORDER_S = 300.0
"""How long to wait for an answer: an undo of a large guest takes minutes."""


@click.command(epilog=examples("vmplace plan\nvmplace plan db1 --json"))
@click.argument("guest", required=False)
@json_option
@socket_option
@config_option
def plan(guest: str | None, as_json: bool, socket: Path | None, config: Path | None) -> None:
    """Show what would be moved, copied or tied, and what stays and why; change nothing.

    It asks the running agent for its last plan.  Without an agent it samples one window itself, as root.
    """
    name = "GUEST" if guest is None else shlex.quote(guest)
    hint = f"vmplace why {name} says what keeps memory where it is"
    try:
        data = ask("plan", guest, path=socket)
    except NoAgentError:
        data = _plan_without_agent(guest, config, quiet=as_json)
        hint = "the reasons of each guest, above, tell what keeps its memory there"
    if as_json:
        print_json(data)
    else:
        from vmplace.interfaces.tables import print_plan

        print_plan(data)
    if not any(data[kind] for kind in ("moves", "vcpu_moves", "copies", "collapses")):
        raise NothingError("nothing to move", hint=hint)


def _plan_without_agent(guest: str | None, config: Path | None, *, quiet: bool) -> Any:
    """Sample one window; unless ``quiet``, say on standard error what kept guests out of the plan."""
    import msgspec

    from vmplace.agent.config import read_config
    from vmplace.agent.lock import AgentLock
    from vmplace.agent.loop import Agent
    from vmplace.agent.no_actuator import NoActuator
    from vmplace.agent.wakeup import Wakeup
    from vmplace.agent.wiring import open_parts

    loaded = read_config(config)
    lock = AgentLock(loaded.config.lock_path)
    # Two processes that sample at once clear each other's accessed bits, so no agent may start meanwhile.
    # ``borrowed`` keeps the note on what a killed agent left.
    with lock.borrowed(), closing(Wakeup()) as wakeup:
        wakeup.stop_on_signals()
        # There is no second window in which an answer that comes late would count.
        dry = Agent(loaded, open_parts(loaded.config, NoActuator(), libvirt_s=LIBVIRT_S), wakeup)
        dry.run(windows=1)
    for line in () if quiet else _hindrances(dry.status, dry.last_plan, guest):
        click.echo(line, err=True)
    if guest is not None and dry.roster.get(guest) is None:
        known = ", ".join(dry.roster.names()) or "none"
        raise NothingError(f"no guest {guest!r}", hint=f"known guests: {known}")
    return msgspec.to_builtins(dry.last_plan.of(guest) if guest else dry.last_plan, str_keys=True)


def _hindrances(status: "AgentStatus", plan: "PlanSummary", guest: str | None) -> Iterator[str]:
    """Yield what a person should know of the host, and of guests (or one) beside what the plan says."""
    yield from (f"note: {note}" for note in status.notes)
    for name, one in status.guests.items():
        planned = plan.reasons(name)
        for reason in filter(None, (one.problem, *one.reasons)):
            if guest in (None, name) and reason not in planned:
                yield f"{name}: {reason}"


@click.command(epilog=examples("vmplace apply\nvmplace apply db1", needs_agent=True))
@click.argument("guest", required=False)
@json_option
@socket_option
def apply(guest: str | None, as_json: bool, socket: Path | None) -> None:
    """Carry out the plan of the next window, for GUEST or for all guests, within the budget.

    This also moves guests in mode "advise", and while the agent is paused.  Only root may.  The exit code
    is 0 even if there was nothing to move.
    """
    _print_lines(ask("apply", guest, path=socket, timeout_s=ORDER_S), as_json=as_json)


@click.command(epilog=examples("vmplace undo db1\nvmplace undo\nvmplace undo --settings"))
@click.argument("guest", required=False)
@click.option(
    "--settings",
    is_flag=True,
    help="Only restore the kernel settings (NUMA balancing, DAMON) that a killed agent left changed.",
)
@json_option
@socket_option
@config_option
def undo(guest: str | None, settings: bool, as_json: bool, socket: Path | None, config: Path | None) -> None:
    """Put the memory and vCPUs of GUEST, or of all guests, back where they were before vmplace.

    The agent then leaves them alone until `vmplace resume`.  Undo works from the journal: with an agent,
    without one, and after one that was killed.  It keeps to the budget of moves.  Without an agent, Ctrl-C
    ends it after the present call, and the next undo goes on from there; an agent goes on by itself.  Only
    root may.  The exit code is 0 even if there was nothing to undo.  Without an agent, only guests in the
    journal are known.
    """
    if settings:
        _give_settings_back(guest, config, as_json=as_json)
        return
    try:
        lines = ask("undo", guest, path=socket, timeout_s=ORDER_S)
    except NoAgentError:
        _undo_without_agent(guest, config, as_json=as_json)
        return
    _print_lines(lines, as_json=as_json)


def _undo_without_agent(guest: str | None, config: Path | None, *, as_json: bool) -> None:
    from vmplace.agent.orders import UnknownGuestError
    from vmplace.agent.undo_lines import undo_lines
    from vmplace.agent.wakeup import Wakeup
    from vmplace.agent.without_agent import undo_without_agent
    from vmplace.interfaces.progress import undo_progress

    settings, wrong = settings_of_undo(config, quiet=as_json)
    with closing(Wakeup()) as wakeup, undo_progress() as progress:
        wakeup.stop_on_signals()
        try:
            result = undo_without_agent(settings, guest, lambda: wakeup.stopping, progress)
        except UnknownGuestError as err:
            refuse_absent(settings, wrong)
            if wrong is not None:
                message = f"{err} in the journal {settings.journal_path}, and the settings may name another"
                raise VmplaceError(message, hint=f"correct them first: {wrong}") from err
            raise NothingError(f"{err} in the journal, and no agent runs", hint=err.hint) from err
    refuse_absent(settings, wrong)
    _print_lines(undo_lines(result), as_json=as_json, notes=notes_on_settings(settings, wrong))
    if not result.is_complete:
        reported = (
            "stopped before everything was restored" if wakeup.stopping else "not everything was restored"
        )
        raise VmplaceError(reported, hint="the rest stays in the journal: run it again")


def settings_of_undo(path: Path | None, *, quiet: bool) -> "tuple[Config, VmplaceError | None]":
    """Return the settings, and what is wrong with the file; unless ``quiet``, say so on standard error."""
    from vmplace.agent.sound_settings import sound_settings

    config, wrong = sound_settings(path)
    for note in () if quiet else notes_on_settings(config, wrong):
        click.echo(f"vmplace: {note}", err=True)
    return config, wrong


def notes_on_settings(config: "Config", wrong: VmplaceError | None) -> tuple[str, ...]:
    """Return what is wrong with the settings, and which journal is undone by all the same."""
    if wrong is None:
        return ()
    cure = f" ({wrong.hint})" if wrong.hint else ""
    return (f"{wrong}{cure}; undoing by the journal {config.journal_path}",)


def refuse_absent(config: "Config", wrong: VmplaceError | None, otherwise: str = "") -> None:
    """Raise VmplaceError if no journal is there and the settings have a mistake: it may be elsewhere.

    ``otherwise``: what the cure names beside the correction.
    """
    if wrong is not None and not config.journal_path.exists():
        raise VmplaceError(
            f"there is no journal {config.journal_path}, and the settings may name another one",
            hint=f"correct them first: {wrong}{otherwise}",
        )


def _give_settings_back(guest: str | None, config: Path | None, *, as_json: bool) -> None:
    from vmplace.agent.without_agent import give_back_without_agent

    if guest is not None:
        raise click.UsageError("--settings concerns the host: give no GUEST")
    found, wrong = settings_of_undo(config, quiet=as_json)
    reported, failures = give_back_without_agent(found)
    notes = notes_on_settings(found, wrong)
    if reported:
        _print_lines(reported, as_json=as_json, notes=notes)
    if failures:
        raise VmplaceError("; ".join(failures), hint="run it again as root; `vmplace doctor` says more")
    refuse_absent(found, wrong)
    if not reported:
        _print_lines(("nothing to restore",), as_json=as_json, notes=notes)


@click.command(epilog=examples("vmplace pause\nvmplace pause db1", needs_agent=True))
@click.argument("guest", required=False)
@json_option
@socket_option
def pause(guest: str | None, as_json: bool, socket: Path | None) -> None:
    """Change nothing of GUEST, or of any guest, until `vmplace resume`; sampling goes on.

    Without GUEST, kernel NUMA balancing is given back meanwhile.  Only root may.
    """
    _print_lines(ask("pause", guest, path=socket, timeout_s=ORDER_S), as_json=as_json)


@click.command(epilog=examples("vmplace resume", needs_agent=True))
@click.argument("guest", required=False)
@json_option
@socket_option
def resume(guest: str | None, as_json: bool, socket: Path | None) -> None:
    """Place GUEST, or all guests, again after `pause` or `undo`.  Only root may."""
    _print_lines(ask("resume", guest, path=socket, timeout_s=ORDER_S), as_json=as_json)


def _print_lines(lines: Sequence[str], *, as_json: bool, notes: Sequence[str] = ()) -> None:
    """Print what was done; ``notes`` are for JSON alone: people have read them on standard error."""
    if as_json:
        print_json({"done": lines} | ({"notes": notes} if notes else {}))
        return
    for line in lines:
        click.echo(line)
