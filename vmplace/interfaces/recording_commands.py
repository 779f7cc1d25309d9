"""``vmplace record|replay``: keep what was sampled, and run a policy over it later, anywhere."""

import sys
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from vmplace.errors import RecordingError
from vmplace.interfaces.options import NothingError, config_option, examples, json_option, print_json

RECORDING = click.Path(path_type=Path, dir_okay=False, readable=False)


@click.command(
    epilog=examples(
        "vmplace record /tmp/host.vmptrace --duration 30\n"
        "perf record -a -d --phys-data -e ibs_op// -- sleep 30\n"
        "vmplace record /tmp/host.vmptrace --from perf.data"
    )
)
@click.argument("out", type=RECORDING)
@click.option("--from", "perf_data", type=RECORDING, help="Take the samples from a file of perf record.")
@click.option("--duration", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Seconds.")
@click.option("--force", is_flag=True, help="Overwrite OUT.")
@json_option
@config_option
def record(  # noqa: PLR0913 - an option each
    out: Path, perf_data: Path | None, duration: float, force: bool, as_json: bool, config: Path | None
) -> None:
    """Record which pages of all guests are touched, window by window, to OUT.

    The file holds the host, the guests and the samples (docs/recording.md), no memory contents.  Stop
    the agent first: two processes that sample at once clear each other's accessed bits.
    """
    from vmplace.agent.config import read_config
    from vmplace.interfaces.run_views import Recorded

    settings = read_config(config).config
    if perf_data is not None:
        counts = _imported(out, perf_data, settings.window_ms, force=force)
    else:
        counts = _recorded(out, settings, duration, force=force, show=not as_json)
    reported = Recorded(str(out), out.stat().st_size, **counts)
    if as_json:
        print_json(reported)
    else:
        click.echo(
            f"{out}: {reported.windows} windows of {reported.guests} guests, {reported.size_bytes} bytes"
        )
    if not reported.batches:
        raise NothingError(
            "no guest was sampled", hint="start a guest first, or record for longer: --duration 60"
        )


def _recorded(out: Path, settings: Any, duration_s: float, *, force: bool, show: bool) -> dict[str, int]:
    """Record this host and return the counts; raises RecordingError where windows are missing."""
    from vmplace.agent.lock import AgentLock
    from vmplace.agent.no_actuator import NoActuator
    from vmplace.agent.run_recorder import recording_run
    from vmplace.agent.wakeup import Wakeup
    from vmplace.agent.wiring import open_parts

    with AgentLock(settings.lock_path).borrowed(), closing(Wakeup()) as wakeup:
        wakeup.stop_on_signals()
        parts = open_parts(settings, NoActuator())
        try:
            parts, kept = recording_run(parts, out, acts=False, overwrite=force)
        except RecordingError:
            parts.source.close()
            raise
        # The agent closes the source at its end.
        with closing(kept), _progress(duration_s, show=show) as report:
            counts = _watched(parts, kept, settings, wakeup, duration_s, report)
        if kept.problem:
            raise kept.problem
        return counts


def _watched(  # noqa: PLR0913 - what the agent is made of, and for how long
    parts: Any, kept: Any, settings: Any, wakeup: Any, duration_s: float, report: Any
) -> dict[str, int]:
    """Let an agent that changes nothing watch for so long, or until nothing is kept; return the counts."""
    from msgspec.structs import replace as with_values

    from vmplace.agent.config import LoadedConfig
    from vmplace.agent.guest_policy import NOTHING
    from vmplace.agent.loop import Agent

    counts = {"windows": 0, "batches": 0, "guests": 0}
    seen: Counter[str] = Counter()
    keep = parts.sampled

    def sampled(guest: Any, batch: Any) -> None:
        keep(guest, batch)
        if kept.problem:
            wakeup.stop()
            return
        seen[guest.name] += 1
        counts.update(windows=max(seen.values()), batches=seen.total(), guests=len(seen))
        report(counts)

    # A recording has all guests and all windows, whatever the configuration says.
    config = with_values(settings, longest_rest_ms=0, defaults=NOTHING)
    ended = threading.Timer(duration_s, wakeup.stop)
    ended.start()
    try:
        Agent(LoadedConfig(config), replace(parts, sampled=sampled, summaries=None), wakeup).run()
    finally:
        ended.cancel()
    return counts


def _imported(out: Path, perf_data: Path, window_ms: int, *, force: bool) -> dict[str, int]:
    """Write what perf recorded and return the counts; raises RecordingError."""
    from vmplace.sampling.perf_recording import read_perf_data
    from vmplace.sampling.recording import Recorder

    recorded = read_perf_data(perf_data)
    guests = {guest.name: guest for guest in recorded.guests}
    batches = 0
    with Recorder(out, recorded.host, overwrite=force) as recorder:
        for batch in recorded.iter_batches(window_ms):
            recorder.add(guests[batch.guest], batch)
            batches += 1
    return {"windows": batches // len(guests), "batches": batches, "guests": len(guests)}


def _progress(duration_s: float, *, show: bool) -> AbstractContextManager[Any]:
    """Return a context that gives a function to report counts to."""
    if not show or not sys.stderr.isatty():
        return nullcontext(lambda _counts: None)
    from vmplace.interfaces.progress import window_progress

    return window_progress(duration_s)


def _warn(damage: Exception) -> None:
    click.echo(f"vmplace: {damage}; the rest is left out", err=True)


@click.command(
    epilog=examples("vmplace replay /tmp/host.vmptrace\nvmplace replay trace --policy interleave --json")
)
@click.argument("file", type=RECORDING)
@click.option("--policy", default=None, help="The policy to try, if not the configured one.")
@click.option("--tolerant", is_flag=True, help="Use a damaged file up to the damage.")
@json_option
@config_option
def replay(file: Path, policy: str | None, tolerant: bool, as_json: bool, config: Path | None) -> None:
    """Run a policy over the recording FILE: what it would have moved, estimated LAR before and after.

    FILE may be of `vmplace agent --record`: then each decision that was carried out is repeated from the same
    input.  What was only watched is planned anew, with the budget of vmplace.toml.

    FILE may also be of perf record with IBS or Intel's mem-loads (-d --phys-data); the perf tool reads it.
    Replay needs neither root nor guests, and moves nothing.
    """
    import msgspec

    from vmplace.agent.config import read_config
    from vmplace.agent.rehearsal import budget_of, earlier_ties, rehearse
    from vmplace.policy.registry import GONE, POLICY_NAMES, begun
    from vmplace.sampling.perf_script import is_perf_data
    from vmplace.sampling.recording import RECORD_LONGER, iter_recording

    loaded = read_config(config)
    name = loaded.config.policy if policy is None else policy
    if name not in POLICY_NAMES:
        problem = f"policy {name!r} is gone: auto decides" if name in GONE else f"no policy {name!r}"
        raise click.BadParameter(f"{problem}; known: {', '.join(POLICY_NAMES)}", param_hint="--policy")
    events: Iterable[Any]
    if is_perf_data(file):
        from vmplace.sampling.perf_recording import read_perf_data

        events = read_perf_data(file).iter_events(loaded.config.window_ms)
    else:
        events = iter_recording(file, on_damage=_warn if tolerant else None)
    earlier, events = earlier_ties(events)
    result = rehearse(
        events,
        begun(name, earlier=earlier),
        lambda guest: loaded.rule(guest).settings,
        budget_of(loaded.config),
    )
    if as_json:
        print_json({"policy": name, **msgspec.to_builtins(result, str_keys=True)})
    else:
        from vmplace.interfaces.tables import print_rehearsal

        print_rehearsal(msgspec.to_builtins(result, str_keys=True))
    if not result.windows:
        raise NothingError("the recording holds no window", hint=RECORD_LONGER)
