"""A process that holds up whoever reads its memory map is left alone, and holds up nobody.

A FIFO without a writer stands for a file of /proc whose reader waits for the process's mmap lock.
"""

import os
import time
from pathlib import Path

from tests.unit.agent.agent_world import World, guest
from vmplace.agent.config import Config, LoadedConfig
from vmplace.agent.loop import Agent
from vmplace.agent.parts import Parts
from vmplace.topology.held_reads import HELD, HeldReads
from vmplace.topology.qemu_command_line import parse_qemu


def put(proc: Path, pid: int, *, held: bool) -> Path:
    path = proc / f"{pid}/cmdline"
    path.parent.mkdir()
    if held:
        os.mkfifo(path)
    else:
        path.write_text("qemu\0")
    return path


def let_go(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY))


def test_a_process_that_holds_readers_up_is_told_until_it_lets_go(tmp_path: Path):
    held, well = put(tmp_path, 7, held=True), put(tmp_path, 8, held=False)
    reads = HeldReads(tmp_path)
    began = time.monotonic()
    assert reads.holds((7, 1))
    assert all(reads.holds((7, 1)) and not reads.holds((8, 1)) for _ in range(100))
    assert not reads.holds((9, 1))
    assert time.monotonic() - began < 3
    let_go(held)
    until = time.monotonic() + 10
    while reads.holds((7, 1)) and time.monotonic() < until:
        # Its reader has yet to see that it may go on.
        held.unlink(missing_ok=True)
        time.sleep(0.01)
    assert not reads.holds((7, 1))
    assert well.exists()


def test_many_that_hold_readers_up_are_waited_for_together(tmp_path: Path):
    held = [put(tmp_path, pid, held=True) for pid in range(100, 120)]
    reads = HeldReads(tmp_path)
    began = time.monotonic()
    assert all(reads.holds((pid, 1)) for pid in range(100, 120))
    assert time.monotonic() - began < 6
    for path in held:
        let_go(path)


def test_a_guest_that_holds_readers_up_is_not_touched_and_costs_no_other():
    world = World([guest("evil"), guest("good")])
    parts = Parts(world, world, world.policy, "auto", world, holds=lambda one: one.name == "evil")
    agent = Agent(LoadedConfig(Config(window_ms=20, longest_rest_ms=0)), parts, world.wakeup)
    agent.run(windows=2)
    assert set(world.armed) == {"good"}
    assert world.applied == ["good"]
    problems = {name: one.problem for name, one in agent.status.guests.items()}
    assert problems == {"evil": HELD, "good": None}


def test_a_command_line_costs_no_more_than_its_size():
    again = "node," + ",".join(["cpus=0-16383"] * 5000)
    began = time.thread_time()
    assert parse_qemu(["qemu-system-x86_64", "-numa", again]) is None
    assert time.thread_time() - began < 0.5
