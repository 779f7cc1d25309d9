"""The loop places guests, obeys orders, and no guest's failure stops it."""

import threading
import time
from dataclasses import replace

import pytest

from tests.unit.agent.agent_world import HOST, NPAGES, World, guest
from vmplace.actuation.result import Copies
from vmplace.agent.config import GuestRule
from vmplace.agent.orders import Order, UnknownGuestError
from vmplace.errors import ConfigError, GuestGoneError
from vmplace.policy.plan import GuestSettings, Mode, PlacementPlan, Snapshot
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.sampling.guest_cost import MemoryRate
from vmplace.sampling.served import ServedAccesses
from vmplace.topology.guest import Vcpu
from vmplace.topology.host import HostTopology, Node


def rule(pattern: str, mode: Mode) -> GuestRule:
    return GuestRule(pattern, GuestSettings(mode))


def test_a_remote_guest_is_moved_home_once_and_then_settled():
    world = World([guest("db1")])
    agent = world.agent()
    agent.run(windows=3)
    status = agent.status
    assert world.applied == ["db1"]
    assert status.guests["db1"].state == "settled"
    assert status.guests["db1"].pages_by_node == {0: 0, 1: NPAGES}
    assert status.guests["db1"].estimated_lar == 1.0
    assert status.moved_bytes == status.guests["db1"].moved_bytes == NPAGES * 4096
    assert status.longest_move_call_ms == 3.0
    assert status.rss_bytes and status.cpu_seconds > 0


def test_what_copies_of_a_guest_take_is_reported():
    world = World([guest("db1"), guest("web")], copied={"db1": Copies(8192, 4096)})
    agent = world.agent()
    agent.run(windows=1)
    reported = [agent.status.guests[name] for name in ("db1", "web")]
    assert [(one.replica_bytes, one.collapsed_bytes) for one in reported] == [(8192, 4096), (0, 0)]


@pytest.mark.parametrize(("windows", "ratio"), [(1, None), (2, 0.25)])
def test_what_served_accesses_is_reported_over_several_windows(windows: int, ratio: float | None):
    """20 samples, those of a window, are too few."""
    one = ServedAccesses(1_000_000, (0, 0, 5, 15, 0), (0, 0, 1000, 3000, 0), (0, 0, 100_000, 600_000, 0))
    agent = World([guest("db1")], served=one).agent()
    agent.run(windows=windows)
    use = agent.status.guests["db1"].memory_use
    assert use is not None and (use.dram_per_us, use.local_access_ratio) == (4.0, ratio)
    assert [one.view.dram_per_us for one in agent.roster] == [4.0]
    for tracked in agent.roster:
        # Counters tell of the last window, and count each access.
        tracked.rate = MemoryRate(cpus=1.0, dram_per_us=9.0)
    assert [one.view.dram_per_us for one in agent.roster] == [9.0]


def test_a_source_that_cannot_tell_what_served_accesses_is_not_asked():
    agent = World([guest("db1")]).agent()
    agent.run(windows=1)
    assert agent.status.guests["db1"].memory_use is None
    assert [one.view.dram_per_us for one in agent.roster] == [None]


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.MANUAL])
def test_only_auto_guests_are_moved(mode: Mode):
    world = World([guest("db1"), guest("web")])
    agent = world.agent(rule("db1", mode))
    agent.run(windows=2)
    assert world.applied == ["web"]
    assert agent.status.guests["db1"].state == {Mode.ADVISE: "advised", Mode.MANUAL: "manual"}[mode]


@pytest.mark.parametrize(("place", "cpus"), [(True, (0, 1)), (False, (0, 1, 2, 3))])
def test_floating_vcpus_are_tied_to_where_their_memory_is_if_asked_for(place: bool, cpus: tuple[int, ...]):
    floating = replace(guest("db1"), vcpus=(Vcpu(0, 1, (0, 1, 2, 3)),))
    world = World([floating])
    agent = world.agent(GuestRule("*", GuestSettings(place_vcpus=place)))
    agent.run(windows=1)
    assert world.running[0].vcpus[0].cpus == cpus
    # Without a node of its own its memory stays.
    assert world.applied == []
    (decision,) = agent.roster.get("db1").decisions  # type: ignore[union-attr]
    assert ("fit on the cores of node 0" in decision.reasons[0]) == place


@pytest.mark.parametrize("error", [OSError(5, "input/output error"), RuntimeError("bug"), MemoryError()])
def test_a_guest_that_cannot_be_sampled_stops_nobody_else(error: Exception):
    world = World([guest("bad"), guest("good")], harvest_errors={"bad": error})
    agent = world.agent()
    agent.run(windows=2)
    assert world.applied == ["good"]
    assert agent.status.guests["bad"].state == "failed"
    assert agent.status.guests["bad"].pages_by_node is None


def test_a_guest_that_ends_in_the_window_is_forgotten():
    world = World([guest("db1")], harvest_errors={"db1": GuestGoneError("ended")})
    agent = world.agent()
    agent.run(windows=1)
    assert agent.roster.names() == ()
    assert agent.status.guests == {}


def test_a_policy_that_fails_moves_nothing_and_is_reported():
    def broken(_snapshot: Snapshot) -> PlacementPlan:
        raise ZeroDivisionError("no nodes")

    world = World([guest("db1")], policy=broken)
    agent = world.agent()
    agent.run(windows=2)
    assert agent.status.windows == 2
    assert any("no nodes" in note for note in agent.status.notes)


def test_a_guest_with_a_wrong_section_is_left_alone_with_the_reason():
    error = ConfigError("mode: invalid", place="vmplace.toml:2:1")
    world = World([guest("db1"), guest("web")])
    agent = world.agent(GuestRule("db*", GuestSettings(Mode.MANUAL), error))
    agent.run(windows=1)
    assert world.applied == ["web"]
    assert agent.status.guests["db1"].problem == "vmplace.toml:2:1: mode: invalid"


def test_a_guest_limited_to_nodes_the_host_lacks_is_left_alone():
    world = World([guest("db1")])
    agent = world.agent(GuestRule("db1", GuestSettings(Mode.AUTO, (7,))))
    agent.run(windows=1)
    assert world.applied == []
    assert "[7]" in str(agent.status.guests["db1"].problem)


def test_libvirts_name_outlives_its_restart():
    known, bare = guest("db1", pid=77), guest("qemu-77", pid=77, origin="kvm", cpu=0)
    world = World([known])
    agent = world.agent()
    agent.run(windows=1)
    world.running = [bare]
    agent.roster.update(world.running, (0, 1))
    assert agent.roster.names() == ("db1",)
    tracked = agent.roster.get("db1")
    assert tracked and tracked.topology.vcpus[0].cpus == (0,)


def test_a_guest_that_libvirt_vouches_for_later_gets_the_rule_of_such_guests():
    bare = guest("db1", pid=77, origin="kvm")
    world = World([bare])
    agent = world.agent(GuestRule("db1", GuestSettings(Mode.MANUAL), origin="libvirt"))
    agent.roster.update([bare], (0, 1))
    assert [one.settings.mode for one in agent.roster] == [Mode.AUTO]
    agent.roster.update([guest("db1", pid=77)], (0, 1))
    assert [one.settings.mode for one in agent.roster] == [Mode.MANUAL]


def test_orders_are_obeyed_between_windows():
    world = World([guest("db1")])
    agent = world.agent(rule("db1", Mode.ADVISE))
    order = Order("apply", "db1")
    agent.inbox.submit(order)
    agent.run(windows=2)
    assert world.applied == [] and isinstance(order.answer.exception(0), UnknownGuestError)


class Running:
    """An agent in a thread."""

    def __init__(self, world: World, *rules: GuestRule, window_ms: int = 20) -> None:
        self.agent = world.agent(*rules, window_ms=window_ms)
        self.world = world
        self.thread = threading.Thread(target=self.agent.run)

    def __enter__(self) -> "Running":
        self.thread.start()
        deadline = time.monotonic() + 60
        while not self.agent.status.guests and time.monotonic() < deadline:
            time.sleep(0.005)
        return self

    def order(self, *words: str) -> tuple[str, ...]:
        order = Order(*words)  # type: ignore[arg-type]
        self.agent.inbox.submit(order)
        return order.answer.result(60)

    def pass_windows(self, count: int = 2) -> None:
        until = self.agent.status.windows + count
        while self.agent.status.windows < until:
            time.sleep(0.005)

    def __exit__(self, *_: object) -> None:
        self.world.wakeup.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()


def test_apply_moves_even_a_guest_in_mode_advise():
    world = World([guest("db1")])
    with Running(world, rule("*", Mode.ADVISE)) as running:
        assert world.applied == []
        assert "moved_bytes=4194304" in running.order("apply", "db1")[0]
    assert world.applied == ["db1"]


def test_an_order_never_cuts_a_window_short():
    world = World([guest("db1")])
    with Running(world, rule("*", Mode.ADVISE), window_ms=200) as running:
        running.order("apply")
    assert min(world.windows_s) >= 0.2


def test_an_undone_guest_is_left_alone_until_resume():
    world = World([guest("db1")])
    with Running(world) as running:
        running.order("undo", "db1")
        running.pass_windows()
        assert world.nid_of == {} and running.agent.status.guests["db1"].state == "held"
        running.order("resume", "db1")
        running.pass_windows()
    assert world.nid_of == {"db1": 1}


def test_undo_of_all_pauses_and_gives_the_kernel_its_balancing_back():
    world = World([guest("db1")])
    with Running(world) as running:
        assert world.owning
        running.order("undo")
        running.pass_windows()
        assert not world.owning and running.agent.status.paused and world.nid_of == {}


def test_stop_ends_a_long_window_at_once_and_closes_everything():
    world = World([])
    running = Running(world, window_ms=3_600_000)
    running.thread.start()
    time.sleep(0.05)
    world.wakeup.stop()
    running.thread.join(60)
    assert not running.thread.is_alive()
    assert world.closed == 2


def test_a_policy_knows_for_how_long_a_guest_has_been_watched():
    """What a guest may stake grows with that (guard.py): it need not be watched anew from the first plan."""
    reported, world = list[float](), World([guest("db1")])

    def policy(snapshot: Snapshot) -> PlacementPlan:
        reported.extend(view.known_s for view in snapshot.guests)
        return PlacementPlan()

    world.policy = policy
    agent = world.agent()
    agent.run(windows=1)
    tracked = agent.roster.get("db1")
    assert tracked is not None
    tracked.known_s = 300.0
    agent.run(windows=3)
    assert 0 <= reported[0] < 300 < reported[1] < reported[2]


def test_a_node_that_comes_online_while_the_agent_runs_gets_a_note_with_the_cure(
    monkeypatch: pytest.MonkeyPatch,
):
    """The source was opened for the nodes of the start: batches tell of these alone."""
    world = World([replace(guest("db1"), vcpus=(Vcpu(0, 1, (0,)), Vcpu(1, 2, (2,))))], policy=AutoPolicy())
    agent = world.agent()
    agent.run(windows=1)
    assert not any("restart" in note for note in agent.status.notes)
    distances = {(a, b): 10 if a == b else 20 for a in (0, 1, 4) for b in (0, 1, 4)}
    grown = HostTopology((*HOST.nodes, Node(4, (), 4 << 30, 4 << 30)), distances)
    monkeypatch.setattr(world, "host", lambda: grown)
    agent.run(windows=2)
    (note,) = (note for note in agent.status.notes if "restart" in note)
    assert note.startswith("restart vmplace: node 4 came online since")
    assert any("node 4 came online" in reason for reason in agent.status.guests["db1"].reasons)
    assert not any("several nodes" in reason for reason in agent.status.guests["db1"].reasons)
