"""``vmplace agent``: run the agent."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vmplace.errors import UnsupportedHostError, VmplaceError
from vmplace.interfaces.options import config_option, examples

if TYPE_CHECKING:
    from vmplace.agent.config import LoadedConfig
    from vmplace.agent.config_sections import Config
    from vmplace.agent.news import News
    from vmplace.agent.parts import Actuator, Parts
    from vmplace.agent.wakeup import Wakeup
    from vmplace.interfaces.hook_socket import HookSocket

LOG = logging.getLogger(__name__)
Beat = Callable[[], None]


@click.command(
    epilog=examples("vmplace agent\nvmplace agent --config my.toml --once\nsystemctl enable --now vmplace")
)
@config_option
@click.option("--check", is_flag=True, help="Only check the configuration; exit code 1 if it is wrong.")
@click.option("--once", is_flag=True, help="End after one window.")
@click.option("--windows", type=click.IntRange(min=1), help="End after this many windows.")
@click.option("--record", type=click.Path(path_type=Path, dir_okay=False), help="Keep the run in this file.")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@click.option(
    "--supervised",
    is_flag=True,
    help="For service managers: end even where the kernel cannot end each thread of the agent.",
)
def agent(  # noqa: PLR0913 - an option each
    config: Path | None,
    check: bool,
    once: bool,
    windows: int | None,
    record: Path | None,
    verbose: bool,
    supervised: bool,
) -> None:
    """Run the agent in the foreground: place the guests of this host until it is stopped.

    SIGTERM or Ctrl-C ends it after the present batch of moves.  Moved memory stays where it is, and
    `vmplace undo` restores it, even after the agent's end.  All settings are in the configuration file.

    --record keeps what the agent sees and decides, and `vmplace replay` repeats its decisions.
    """
    if supervised:
        from vmplace.interfaces import supervisor

        # Before all else, for which the first process would need memory, too.
        supervisor.supervised()
    # numpy's linear algebra starts a thread with buffers of its own for each CPU; nothing here needs it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from vmplace.agent.config import read_config

    if check:
        check_config(read_config(config))
        return
    from vmplace.agent.cost import limit_memory
    from vmplace.agent.wiring import open_parts

    start_log(verbose=verbose)
    limit_memory()
    windows = 1 if once else windows
    run_agent(read_config(config), open_parts, windows=windows, record=record, supervised=supervised)


def check_config(loaded: "LoadedConfig") -> None:
    """Say that the configuration is right, or raise VmplaceError with all that is wrong."""
    if wrong := wrong_sections(loaded):
        raise VmplaceError("; ".join(wrong), hint="these guests would be left alone")
    click.echo("the configuration is right")


def wrong_sections(loaded: "LoadedConfig") -> list[str]:
    """Return what is wrong with sections of guests, which the agent leaves alone for it."""
    return [f"{rule.table} {rule.pattern!r}: {rule.error}" for rule in loaded.rules if rule.error]


def run_agent(
    loaded: "LoadedConfig",
    open_parts: "Callable[[Config, Actuator, Beat], Parts]",
    *,
    windows: int | None = None,
    record: Path | None = None,
    supervised: bool = False,
) -> None:
    """Run the agent until it is stopped, or for ``windows`` windows; give kernel settings back at the end.

    ``record``: keep the run in this file.  ``supervised``: signals may come twice (supervisor.py).
    """
    from vmplace.agent.actuator import HostActuator
    from vmplace.agent.core_dumps import no_core_dumps
    from vmplace.agent.cost import limit_heap
    from vmplace.agent.heartbeat import Heartbeat
    from vmplace.agent.lock import AgentLock
    from vmplace.agent.loop import Agent
    from vmplace.agent.run_recorder import recording_run
    from vmplace.agent.standing_orders import StandingOrders
    from vmplace.agent.wakeup import REPEAT_S, Wakeup
    from vmplace.garbage import passing_over_what_is_there
    from vmplace.interfaces.answers import AgentAnswers
    from vmplace.interfaces.control import ControlServer

    limit_heap()
    for rule in loaded.rules:
        if rule.error:
            LOG.error("%s %r: these guests are left alone: %s", rule.table, rule.pattern, rule.error)
    config = loaded.config
    wakeup = Wakeup()
    wakeup.stop_on_signals(REPEAT_S if supervised else 0.0)
    wakeup.reload_on_hangup()
    heartbeat = Heartbeat.from_environment()
    lock = AgentLock(config.lock_path)
    killed_pid = lock.take()
    try:
        with (
            no_core_dumps(),
            # First: it fails if another agent serves this socket.
            contextlib.closing(ControlServer(Path(config.socket), lambda *asked: answers(*asked))) as server,
            contextlib.closing(
                HostActuator(config, killed_pid=killed_pid, settled=lock.settled, beat=heartbeat.beat)
            ) as actuator,
            threads_end_the_agent(wakeup),
            contextlib.ExitStack() as stack,
        ):
            standing = StandingOrders(config.standing_orders_path)
            parts = replace(open_parts(config, actuator, heartbeat.beat), standing=standing)
            if record is not None:
                parts, kept = recording_run(parts, record, acts=True)
                stack.callback(kept.close)
            running = Agent(loaded, parts, wakeup, heartbeat)
            answers = AgentAnswers(running)
            server.start()
            with (
                contextlib.closing(hook_socket(config, running.inbox.tell)) as hook,
                passing_over_what_is_there(),
            ):
                hook.start()
                running.run(windows=windows)
    finally:
        # Only an agent that could not get here leaves its pid, and what it held, to the next.
        lock.release()
        wakeup.close()
    if wakeup.failure:
        raise VmplaceError(wakeup.failure, hint="see the log; systemd starts the agent again")


def hook_socket(config: "Config", tell: "Callable[[News], None]") -> "HookSocket":
    """Return what hears libvirt's hook, and libvirt's events where libvirt is asked."""
    from vmplace.interfaces.hook_socket import HookSocket, hook_path
    from vmplace.topology.domain_policy import NAMESPACE, NOVA
    from vmplace.topology.guests_libvirt import SYSTEM_URI, EventWatch, find_libvirt

    path = hook_path(config.socket)
    try:
        find_libvirt()
        is_asked = config.libvirt
    except UnsupportedHostError:
        is_asked = False
    watch = (lambda path: EventWatch(SYSTEM_URI, path, (NAMESPACE, NOVA))) if is_asked else None
    return HookSocket(path, tell, watch)


@contextlib.contextmanager
def threads_end_the_agent(wakeup: "Wakeup") -> Iterator[None]:
    """While inside, a thread that dies of an exception ends the agent: nothing goes on half alive."""
    before = threading.excepthook

    def on_death(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread else "unknown"
        err = args.exc_value
        LOG.critical("thread %s died", name, exc_info=err)
        wakeup.fail(f"the thread {name} died: {type(err).__name__}: {err}")

    threading.excepthook = on_death
    try:
        yield
    finally:
        threading.excepthook = before


def start_log(*, verbose: bool) -> None:
    """Log to stderr; under systemd with the priority that the journal understands."""
    is_journal = not sys.stderr.isatty()
    handler = logging.StreamHandler()
    handler.setFormatter(_PriorityFormatter() if is_journal else logging.Formatter("%(message)s"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])


PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}


class _PriorityFormatter(logging.Formatter):
    """``<N>`` in front of each line, as sd-daemon(3) has it."""

    def format(self, record: logging.LogRecord) -> str:
        priority = PRIORITIES.get(record.levelno, 3)
        lines = super().format(record).split("\n")
        return "\n".join(f"<{priority}>{_shown(line)}" for line in lines)


def _shown(line: str) -> str:
    """Return a line with what would move a terminal's cursor, or colour it, as escapes."""
    return "".join(char if char.isprintable() or char == "\t" else ascii(char)[1:-1] for char in line)
