"""The real numad is found, and later orders to it are known.  It runs in a tree, not in the emulated host.

Takes some 3 s.  It looks at one process that sleeps (-S 0), and its message queue is its own.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab import trees
from lab.progress import Progress
from lab.toolbox import PRIVATE
from tests.unit.agent.agent_world import guest
from vmplace.topology.capabilities import probe_numad
from vmplace.topology.capability import Roots
from vmplace.topology.numad import Numad, find_numad, numad_note

pytestmark = [pytest.mark.lab, pytest.mark.skipif(os.getuid() != 0, reason="needs root")]
INSIDE = """
set -e
mount --bind "$1" "$1"
mount --rbind /proc "$1/proc"
mount -t sysfs -o ro sysfs "$1/sys"
mount -t tmpfs tmpfs "$1/run"
mount -t tmpfs tmpfs "$1/var/log"
exec chroot "$1" sh
"""


class Tree:
    """A shell in a tree of Debian, in namespaces of its own; ``root`` is the tree as it sees it."""

    def __init__(self, tree: Path) -> None:
        unshare = ["unshare", "--mount", "--ipc", "--propagation", "unchanged"]
        self._shell = subprocess.Popen(
            [*unshare, "sh", "-c", PRIVATE + INSIDE, "sh", str(tree)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self.root = Path(f"/proc/{self._shell.pid}/root")

    def run(self, command: str) -> None:
        """Run a command in the tree, and wait for its end."""
        assert self._shell.stdin and self._shell.stdout
        self._shell.stdin.write(f"{command}; echo done $?\n")
        assert self._shell.stdout.readline() == "done 0\n", command

    def close(self) -> None:
        """End the shell."""
        assert self._shell.stdin
        self._shell.stdin.close()
        self._shell.wait(20)


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def tree(sleeper: int) -> Iterator[Tree]:
    found = Tree(trees.host_root(Progress()))
    found.run(f"numad -S 0 -p {sleeper} -i 15")
    try:
        yield found
    finally:
        found.run("kill $(cat /run/numad.pid)")
        found.close()


def seen(tree: Tree, wanted: Callable[[Numad], bool]) -> Numad | None:
    """Return what is found once it is as wanted: numad hears of messages a moment later."""
    end = time.monotonic() + 30
    while not ((found := find_numad(tree.root)) and wanted(found)) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def test_numad_is_found_and_whom_it_may_move_with_the_cure_that_works(tree: Tree, sleeper: int):
    numad = seen(tree, lambda one: bool(one.included))
    assert numad is not None and (numad.scans_all, numad.included) == (False, frozenset({sleeper}))
    assert probe_numad(Roots(root=tree.root)).answer is False
    db1 = replace(guest("db1"), pid=sleeper)
    reported = numad_note(numad, [db1, guest("web")])
    assert reported is not None and "may move db1, too" in reported
    # The cure, as it is reported.
    tree.run(reported.partition("`")[2].partition("`")[0])
    numad = seen(tree, lambda one: sleeper in one.excluded)
    assert numad is not None and numad_note(numad, [db1, guest("web")]) is None
    assert (numad.excluded, numad.included) == (frozenset({sleeper}), frozenset())
