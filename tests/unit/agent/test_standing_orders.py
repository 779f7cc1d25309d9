"""What root stopped stays stopped until `vmplace resume`, whichever agent runs."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.agent.agent_world import World, guest
from vmplace.agent.loop import Agent
from vmplace.agent.orders import Order, Verb
from vmplace.agent.standing_orders import MOST_BYTES, StandingOrders
from vmplace.errors import VmplaceError
from vmplace.topology.guest import GuestTopology

HELD = guest("db1", pid=77)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.json"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a /proc in which process 77 began at tick 1."""
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("first\n")
    (tmp_path / "proc/77").mkdir()
    # proc(5): the start time is field 22.
    (tmp_path / "proc/77/stat").write_text(f"77 (qemu) S {'0 ' * 18}1 0\n")
    return tmp_path / "proc"


def living() -> GuestTopology:
    """Return a guest that runs in this process."""
    start_time = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return replace(guest("db1", pid=os.getpid()), start_time=start_time)


def ordered(agent: Agent, verb: Verb, name: str | None = None) -> Order:
    order = Order(verb, name)
    agent.inbox.submit(order)
    agent.state.commands.serve()
    return order


def notes_on(path: Path, agent: Agent) -> list[str]:
    return [note for note in agent.status.notes if str(path) in note]


def test_a_pause_outlasts_the_agent_until_resume(path: Path):
    world = World([living()], orders_file=path)
    ordered(world.agent(), "pause").answer.result(0)
    second = world.agent()
    assert second.status.paused
    second.run(windows=2)
    assert second.status.paused and not world.owning
    assert world.applied == [] and second.status.guests["db1"].state == "advised"
    ordered(second, "resume").answer.result(0)
    third = world.agent()
    third.run(windows=1)
    assert not third.status.paused and world.applied == ["db1"]


def test_an_undone_guest_stays_held_and_a_new_one_of_its_name_is_not(path: Path):
    world = World([living()], orders_file=path)
    first = world.agent()
    first.run(windows=1)
    ordered(first, "undo", "db1").answer.result(0)
    second = world.agent()
    second.run(windows=2)
    assert world.applied == ["db1"] and second.status.guests["db1"].state == "held"
    world.running = [replace(living(), pid=1)]
    second.run(windows=4)
    assert world.applied == ["db1", "db1"] and second.status.guests["db1"].state == "settled"


def test_a_guest_that_was_not_found_for_a_while_is_still_held(path: Path):
    world = World([living()], orders_file=path)
    agent = world.agent()
    agent.run(windows=1)
    ordered(agent, "pause", "db1").answer.result(0)
    for world.running in ([], [living()]):
        agent.run(windows=agent.status.windows + 1)
    assert agent.status.guests["db1"].state == "held"


@pytest.mark.parametrize("verb", ["pause", "undo"])
def test_an_order_is_on_disk_before_anything_is_undone_and_anybody_answered(path: Path, verb: Verb):
    seen = []

    class Watching(World):
        def undo(self, *words: object) -> tuple[str, ...]:
            seen.append((json.loads(path.read_bytes())["paused"], order.answer.done()))
            return ("undone",)

    agent, order = Watching([], orders_file=path).agent(), Order(verb)
    agent.inbox.submit(order)
    agent.state.commands.serve()
    assert seen == ([(True, False)] if verb == "undo" else [])
    assert order.answer.done() and json.loads(path.read_bytes())["paused"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_resume_of_one_guest_leaves_the_others_held_and_the_pause(path: Path, proc: Path):
    other = guest("web", pid=78)
    (proc / "78").mkdir()
    (proc / "78/stat").write_text(f"78 (qemu) S {'0 ' * 18}1 0\n")
    orders = StandingOrders(path, proc)
    for one in (HELD, other):
        orders.hold(one, held=True)
    orders.hold_all(held=True)
    orders.hold(other, held=False)
    found = StandingOrders(path, proc)
    assert (found.paused, found.holds(HELD), found.holds(other)) == (True, True, False)
    found.hold_all(held=False)
    found = StandingOrders(path, proc)
    assert (found.paused, found.holds(HELD)) == (False, False)


def test_after_a_reboot_the_pause_holds_and_no_process_is_held(path: Path, proc: Path):
    orders = StandingOrders(path, proc)
    orders.hold(HELD, held=True)
    orders.hold_all(held=True)
    assert StandingOrders(path, proc).holds(HELD)
    (proc / "sys/kernel/random/boot_id").write_text("second\n")
    found = StandingOrders(path, proc)
    assert (found.paused, found.holds(HELD), found.notes) == (True, False, ())


def test_guests_that_ended_are_forgotten(path: Path, proc: Path):
    orders = StandingOrders(path, proc)
    orders.hold(HELD, held=True)
    assert json.loads(path.read_bytes())["held"] == [[77, 1]]
    (proc / "77/stat").unlink()
    orders.hold_all(held=True)
    assert json.loads(path.read_bytes())["held"] == []


WHOLE = {"version": 1, "paused": False, "boot_id": "first", "held": [[77, 1]]}


def test_a_whole_file_is_taken_at_its_word(path: Path, proc: Path):
    path.write_text(json.dumps(WHOLE))
    found = StandingOrders(path, proc)
    assert (found.paused, found.holds(HELD), found.notes) == (False, True, ())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        json.dumps(WHOLE).encode()[:-5],
        json.dumps(WHOLE | {"version": 2}).encode(),
        json.dumps(WHOLE | {"held": [[-1, 1]]}).encode(),
        json.dumps({"version": 1}).encode(),
        b" " * (MOST_BYTES + 1),
    ],
    ids=["empty", "no text", "cut short", "another version", "no pid", "keys missing", "too long"],
)
def test_a_damaged_file_pauses_all_and_names_the_cure_until_resume(path: Path, content: bytes):
    path.write_bytes(content)
    world = World([living()], orders_file=path)
    agent = world.agent()
    agent.run(windows=2)
    assert agent.status.paused and world.applied == []
    (note,) = notes_on(path, agent)
    assert "`vmplace resume`" in note
    ordered(agent, "resume").answer.result(0)
    assert notes_on(path, agent) == [] and not world.agent().status.paused


def test_an_order_that_cannot_be_kept_holds_for_this_agent_and_its_answer_says_so(path: Path):
    world = World([living()], orders_file=path / "no/such")
    agent = world.agent()
    order = ordered(agent, "pause")
    with pytest.raises(VmplaceError, match="all guests: paused, but the next agent will not know") as caught:
        order.answer.result(0)
    assert "No such file" in str(caught.value) and caught.value.hint
    agent.run(windows=1)
    assert agent.status.paused and world.applied == []
    assert len(notes_on(path, agent)) == 1
    path.joinpath("no").mkdir(parents=True)
    ordered(agent, "pause").answer.result(0)
    assert notes_on(path, agent) == [] and world.agent().status.paused


@pytest.mark.parametrize(
    ("held", "undone"), [(None, []), ("db1", ["web"]), ("gone", [None])], ids=["all", "one", "no one there"]
)
def test_what_a_killed_agent_left_is_not_undone_where_root_said_to_change_nothing(
    path: Path, held: str | None, undone: list[str | None]
):
    """Of guests that are held by name, the others are undone."""
    guests = [living(), replace(guest("web"), pid=1), replace(guest("gone"), pid=os.getppid())]
    world = World(guests, orders_file=path, left="an agent was killed")
    first = world.agent()
    first.run(windows=1)
    ordered(first, "pause", held).answer.result(0)
    world.placed_before = {one.identity: one.name for one in guests[:2]}
    second = world.agent(on_leftover="undo")
    second.run(windows=1)
    assert world.undone == undone
    assert any("not undone" in note for note in second.status.notes) == (None not in undone)
