"""A replay repeats the decisions of an agent also where state came from outside windows and decisions."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.agent.agent_world import World, batch, guest
from tests.unit.agent.test_handovers import UUID, SeeingWorld, Written, agent_of, replace_times
from tests.unit.agent.test_rehearsal import by_age
from tests.unit.model.test_handover import a_guest, halves, handed_over
from vmplace.agent.config import GuestRule
from vmplace.agent.loop import Agent
from vmplace.agent.rehearsal import Rehearsal, earlier_ties, rehearse
from vmplace.agent.run_recorder import recording_run
from vmplace.errors import RecordingError
from vmplace.model.handover import handover_text
from vmplace.policy.gathering import EarlierTie
from vmplace.policy.plan import GuestSettings, PlacementPlan, Snapshot
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.policy.registry import begun
from vmplace.sampling.recording import Recorder, iter_recording
from vmplace.topology.domain_policy import DomainPolicy
from vmplace.topology.guest import GuestTopology, Identity, Vcpu


@contextmanager
def recorded(agent: Agent, path: Path) -> Iterator[None]:
    """Keep what the agent does meanwhile."""
    agent.state.parts, kept = recording_run(agent.state.parts, path, acts=True)
    yield
    kept.close()
    assert kept.problem is None


def replayed(path: Path, policy: Callable[[Snapshot], PlacementPlan] = by_age) -> Rehearsal:
    return rehearse(iter_recording(path), policy, lambda _: GuestSettings())


def run_with(change: Callable[[World], None], path: Path) -> tuple[World, Agent, Rehearsal]:
    """Return an agent of two guests that ran 3 windows, and 3 after a change, and what a replay repeats."""
    world = World([guest("db1"), guest("web")], policy=by_age)
    agent = world.agent()
    with recorded(agent, path):
        agent.run(windows=3)
        change(world)
        agent.run(windows=6)
    return world, agent, replayed(path)


def test_a_guest_of_which_libvirt_tells_another_name_is_the_same_guest(tmp_path: Path) -> None:
    def renamed(world: World) -> None:
        world.running[0] = replace(world.running[0], name="instance-7")

    _, agent, result = run_with(renamed, tmp_path / "run")
    assert {one.name: one.pages and one.pages.windows for one in agent.roster} == {"instance-7": 6, "web": 6}
    assert result.decisions == result.repeated == 6
    # 1 + 2 + ... + 6 pages, under whichever name.
    assert {name: one.moved_bytes // 4096 for name, one in result.guests.items()} == {
        "instance-7": 21,
        "web": 21,
    }


def test_two_guests_that_take_each_others_names_keep_their_pages(tmp_path: Path) -> None:
    def swapped(world: World) -> None:
        first, second = world.running
        world.running[:] = [replace(first, name=second.name), replace(second, name=first.name)]

    assert run_with(swapped, tmp_path / "run")[2].repeated == 6


def test_a_guest_that_was_not_found_for_a_look_is_learnt_anew(tmp_path: Path) -> None:
    world = World([guest("db1"), guest("web")], policy=by_age)
    agent, both = world.agent(), list(world.running)
    with recorded(agent, tmp_path / "run"):
        agent.run(windows=3)
        world.running[:] = both[1:]
        agent.run(windows=4)
        world.running[:] = both
        agent.run(windows=7)
    assert {one.name: one.pages and one.pages.windows for one in agent.roster} == {"db1": 3, "web": 7}
    result = replayed(tmp_path / "run")
    assert result.decisions == result.repeated == 7


def handed(path: Path) -> World:
    """Record an agent whose guest brings a summary from its last host."""
    now = replace_times(handed_over(halves(), 0, 1), int(time.time()), 400)
    world = SeeingWorld([replace(a_guest(0, 1), uuid=UUID)], policy=by_age)
    world.policies = {UUID: DomainPolicy(placement=handover_text(now))}
    agent = agent_of(world, Written())
    with recorded(agent, path):
        agent.run(windows=3)
    return world


def test_what_a_guest_brought_from_its_last_host_is_known_to_a_replay(tmp_path: Path) -> None:
    handed(tmp_path / "run")
    result = replayed(tmp_path / "run")
    assert result.decisions == result.repeated == 3
    # Its first window counts as the fourth.
    assert sum(one.moved_bytes for one in result.guests.values()) // 4096 == 4 + 5 + 6


def test_a_recording_with_a_summary_that_is_none_is_refused(tmp_path: Path) -> None:
    world = World([guest("db1")])
    with Recorder(tmp_path / "run", world.host()) as recorder:
        recorder.begin_guest(guest("db1"), "nonsense")
        recorder.add(guest("db1"), batch(guest("db1")))
    with pytest.raises(RecordingError, match="summary"):
        replayed(tmp_path / "run")


class TiedWorld(World):
    """A world in which an agent that was killed had tied both vCPUs of "db1" to node 0."""

    def ties(self) -> dict[Identity, EarlierTie]:
        who = guest("db1").identity
        return {who: EarlierTie({0: (0, 1, 2, 3), 1: (0, 1, 2, 3)}, {0: (0, 1), 1: (0, 1)})}


def test_ties_of_an_earlier_agent_are_known_to_a_replay(tmp_path: Path) -> None:
    """The guest may not be gathered any more, so its vCPUs get the CPUs back that they had."""
    tied = replace(guest("db1"), vcpus=(Vcpu(0, 1, (0, 1)), Vcpu(1, 2, (0, 1))))
    path, world = tmp_path / "run", TiedWorld([tied])
    world.policy = begun("auto", earlier=world.ties())
    agent = world.agent(GuestRule("db1", GuestSettings(gathers=False)))
    with recorded(agent, path):
        agent.run(windows=2)
    assert {vcpu.cpus for vcpu in world.running[0].vcpus} == {(0, 1, 2, 3)}
    earlier, events = earlier_ties(iter_recording(path))
    assert earlier == world.ties()
    result = rehearse(events, AutoPolicy(earlier=earlier), lambda _: GuestSettings())
    assert result.decisions == result.repeated == 2
    # The control: without them.
    assert replayed(path, AutoPolicy()).repeated == 1


def test_a_recording_of_before_tells_neither_and_is_read(tmp_path: Path) -> None:
    one: GuestTopology = guest("db1")
    with Recorder(tmp_path / "x", World([one]).host()) as recorder:
        recorder.see_guest(one)
    earlier, events = earlier_ties(iter_recording(tmp_path / "x"))
    assert earlier == {} and len(list(events)) == 2
