"""An agent on a real control socket, for commands that ask it; its host and its guests are made up."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner, Result

from tests.unit.agent.agent_world import World
from vmplace.agent.loop import Agent
from vmplace.interfaces.answers import AgentAnswers
from vmplace.interfaces.cli import cli
from vmplace.interfaces.control import ControlServer


@contextlib.contextmanager
def served(agent: Agent, path: Path) -> Iterator[Path]:
    """Serve ``path`` with the agent's answers; the agent need not run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    server = ControlServer(path, AgentAnswers(agent))
    server.start()
    try:
        yield path
    finally:
        server.close()


@contextlib.contextmanager
def running(world: World, agent: Agent, path: Path) -> Iterator[Path]:
    """Run the agent of a world, and serve it, until the end."""
    thread = threading.Thread(target=agent.run)
    thread.start()
    try:
        with served(agent, path):
            yield path
    finally:
        world.wakeup.stop()
        thread.join()


def asked(path: Path, *words: str) -> Result:
    """Return what a command said to the agent at ``path``."""
    return CliRunner().invoke(cli, [*words, "--socket", str(path)])
