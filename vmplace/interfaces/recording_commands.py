"""``vmplace record|replay``: keep what was sampled, and run a policy over it later, anywhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from vmplace.errors import GuestGoneError, UnsupportedHostError
from vmplace.interfaces.options import NothingError, config_option, examples, json_option, print_json

RECORDING = click.Path(path_type=Path, dir_okay=False)


@click.command(epilog=examples("vmplace record /tmp/host.vmptrace --duration 30"))
@click.argument("out", type=RECORDING)
@click.option("--duration", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Seconds.")
@click.option("--force", is_flag=True, help="Overwrite OUT.")
@json_option
@config_option
def record(out: Path, duration: float, force: bool, as_json: bool, config: Path | None) -> None:
    """Record which pages of all guests are touched, window by window, to OUT.

    The file holds the host, the guests and the samples (docs/recording.md), no memory contents.  Stop
    the agent first: two that sample at once take each other's answers.
    """
    from vmplace.agent.bell import Bell
    from vmplace.agent.config import read_config
    from vmplace.agent.lock import AgentLock

    settings = read_config(config).config
    with AgentLock(settings.lock_path).borrowed():
        bell = Bell()
        bell.stop_on_signals()
        with _progress(duration, show=not as_json) as report:
            counts = {"windows": 0, "batches": 0, "guests": 0}
            for counts in _iter_recorded(out, settings, bell, duration, force=force):
                report(counts)
    told = {"file": str(out), "size_bytes": out.stat().st_size, **counts}
    if as_json:
        print_json(told)
    else:
        click.echo(
            f"{out}: {counts['windows']} windows of {counts['guests']} guests, {told['size_bytes']} bytes"
        )
    if not counts["batches"]:
        raise NothingError("no guest was sampled")


def _iter_recorded(
    out: Path, settings: Any, bell: Any, duration_s: float, *, force: bool
) -> Iterator[dict[str, int]]:
    """Record until the time is over or the bell says stop; yield the counts after each window."""
    from vmplace.agent.dry_run import NoActuator
    from vmplace.agent.wiring import open_parts
    from vmplace.sampling.recording import Recorder

    parts = open_parts(settings, NoActuator())
    end = time.monotonic() + duration_s
    names: set[str] = set()
    windows = batches = 0
    try:
        with Recorder(out, parts.lookout.host(), overwrite=force) as recorder:
            while not bell.stopping and time.monotonic() < end:
                armed = [g for g in parts.lookout.guests().guests if _armed(parts.source, g)]
                bell.sleep(settings.window_ms / 1000)
                for guest in armed:
                    try:
                        recorder.add(guest, parts.source.harvest(guest))
                    except (GuestGoneError, UnsupportedHostError):
                        continue
                    names.add(guest.name)
                    batches += 1
                windows += 1
                yield {"windows": windows, "batches": batches, "guests": len(names)}
    finally:
        parts.source.close()


def _armed(source: Any, guest: Any) -> bool:
    try:
        source.arm(guest)
    except (GuestGoneError, UnsupportedHostError) as err:
        click.echo(f"guest {guest.name} is left out: {err}", err=True)
        return False
    return True


def _progress(duration_s: float, *, show: bool) -> AbstractContextManager[Any]:
    """Return a context that gives a function to report counts to."""
    if not show or not sys.stderr.isatty():
        return nullcontext(lambda _counts: None)
    from vmplace.interfaces.progress import window_progress

    return window_progress(duration_s)


@click.command(
    epilog=examples("vmplace replay /tmp/host.vmptrace\nvmplace replay trace --policy home --json")
)
@click.argument("file", type=RECORDING)
@click.option("--policy", default=None, help="The rule to try, if not the configured one.")
@click.option("--tolerant", is_flag=True, help="Use what is good of a damaged file.")
@json_option
@config_option
def replay(file: Path, policy: str | None, tolerant: bool, as_json: bool, config: Path | None) -> None:
    """Run a policy over the recording FILE: what it would have moved, estimated LAR before and after.

    Needs no root and no guests; nothing is moved.
    """
    import msgspec

    from vmplace.agent.config import read_config
    from vmplace.agent.dry_run import rehearse
    from vmplace.policy.registry import POLICIES
    from vmplace.sampling.recording import iter_recording

    loaded = read_config(config)
    name = loaded.config.policy if policy is None else policy
    if name not in POLICIES:
        raise click.BadParameter(f"no policy {name!r}; known: {', '.join(POLICIES)}", param_hint="--policy")
    budget_bytes = loaded.config.budget.mb_per_s * loaded.config.window_ms * 1000
    events = iter_recording(file, tolerant=tolerant)
    result = rehearse(events, POLICIES[name], lambda guest: loaded.rule(guest).settings, budget_bytes)
    if as_json:
        print_json({"policy": name, **msgspec.to_builtins(result, str_keys=True)})
    else:
        from vmplace.interfaces.tables import print_rehearsal

        print_rehearsal(msgspec.to_builtins(result, str_keys=True))
    if not result.windows:
        raise NothingError("the recording holds no window")
