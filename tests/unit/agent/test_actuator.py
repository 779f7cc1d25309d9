"""What changes the host goes together: memory follows vCPUs, and does not go where they could not."""

import errno
import itertools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.actuation.child_guest import child_guest, guest_of, plan_of
from tests.unit.actuation.copying_kvm import COPIES, Kvm, OneSlot
from tests.unit.actuation.fake_kernel import PAGE, FakeKernel
from tests.unit.agent.slow_clock import SlowClock
from vmplace.actuation import replica_drops
from vmplace.actuation.budget import Budget
from vmplace.actuation.identity import read_identity
from vmplace.actuation.journal import Journal
from vmplace.actuation.mover import Mover
from vmplace.actuation.page_runs import encode_pages
from vmplace.agent import actuator as agent_actuator
from vmplace.agent.actuator import HostActuator
from vmplace.agent.config_sections import BudgetSection, Config
from vmplace.agent.host_calls import HostCalls
from vmplace.errors import VmplaceError
from vmplace.held import HeldError
from vmplace.policy.gathering import EarlierTie
from vmplace.policy.plan import Collapse, PlacementPlan, VcpuMove

BASE = 1 << 32


def test_an_undo_keeps_to_the_budget_of_moves_and_ends_in_time(tmp_path: Path):
    npages, clock = 4096 * 8, SlowClock()
    kernel = FakeKernel({BASE + i * PAGE: 0 for i in range(npages)})
    calls = HostCalls(kernel=kernel, clock=clock, sleep=clock.sleep)
    config = Config(state_dir=str(tmp_path), numa_balancing="leave", budget=BudgetSection(mb_per_s=4))
    actuator = HostActuator(config, calls=calls)
    try:
        with Journal(tmp_path / "other") as other:
            Mover(other, Budget(None), kernel=kernel).apply(
                plan_of(BASE, npages, 1), {"db1": guest_of(os.getpid(), BASE, npages)}
            )
            for runs in other.origins(read_identity(guest_of(os.getpid(), BASE, npages))).iter_runs():
                actuator._journal.record_pages(read_identity(guest_of(os.getpid(), BASE, npages)), runs)
        reported = actuator.undo(None, lambda: False)
        # 128 MiB at 4 MB/s, of which 4 MB are there at once.
        assert "128.0 MiB moved back" in reported[0] and clock.slept_s == pytest.approx(32.5, abs=1)
        assert set(kernel.nid_of.values()) == {0}
    finally:
        actuator.close()


def test_what_a_killed_agent_left_is_reported_with_the_cure_if_there_is_something(tmp_path: Path):
    me, beats = read_identity(guest_of(os.getpid(), BASE, 512)), list[int]()
    config = Config(state_dir=str(tmp_path), numa_balancing="leave")
    actuator = HostActuator(config, killed_pid=7, beat=lambda: beats.append(1))
    try:
        assert actuator.leftover() == "the agent with pid 7 was killed; it left nothing to restore"
        homes = np.array([BASE + i * PAGE for i in range(512)], np.uint64)
        runs = encode_pages(homes, np.ones(512, np.int32), np.ones(512, np.int16))
        actuator._journal.record_pages(me, runs)
        beats.clear()
        reported = str(actuator.leftover())
        # For a guest of a TiB this takes longer than systemd waits for a sign.
        assert beats
        assert actuator.placed() == {(me.pid, me.start_time): "db1"}
    finally:
        actuator.close()
    assert "was killed; its journal holds " in reported and ": 2 MiB; `vmplace undo` restores it" in reported


def test_an_undo_that_is_not_complete_is_no_success(tmp_path: Path):
    clock, me = SlowClock(), read_identity(guest_of(os.getpid(), BASE, 8))
    kernel = FakeKernel({BASE + i * PAGE: 0 for i in range(8)})
    calls = HostCalls(kernel=kernel, clock=clock, sleep=clock.sleep)
    actuator = HostActuator(Config(state_dir=str(tmp_path), numa_balancing="leave"), calls=calls)
    try:
        homes = np.array([BASE + i * PAGE for i in range(8)], np.uint64)
        actuator._journal.record_pages(me, encode_pages(homes, np.ones(8, np.int32), np.ones(8, np.int16)))
        with pytest.raises(VmplaceError, match=r"not everything .* 8 pages would not move \(stopped\)"):
            actuator.undo(None, lambda: True)
        assert "moved back" in actuator.undo(None, lambda: False)[0]
    finally:
        actuator.close()


def test_an_undo_is_of_the_process_whose_name_that_is_now(tmp_path: Path):
    """A domain of libvirt takes the name from another QEMU, which gets its pid added (with_unique_names)."""
    with child_guest(8) as first, child_guest(8) as second:
        pages = {one.hva + i * PAGE: 0 for one in (first, second) for i in range(8)}
        calls = HostCalls(kernel=(kernel := FakeKernel(pages)))
        config = Config(state_dir=str(tmp_path), numa_balancing="leave")
        actuator = HostActuator(config, calls=calls)
        try:
            for one in (first, second):
                web = replace(one.guest, name="web")
                actuator.apply(plan_of(one.hva, 8, 1, guest="web"), {"web": web}, lambda: False)
            assert set(kernel.nid_of.values()) == {1}
            (line,) = actuator.undo(replace(second.guest, name="web"), lambda: False)
            assert line.startswith("web: ")
            assert [kernel.nid_of[one.hva] for one in (first, second)] == [1, 0]
            (line,) = actuator.undo(replace(first.guest, name="web-100"), lambda: False)
            assert line.startswith("web-100: ") and set(kernel.nid_of.values()) == {0}
        finally:
            actuator.close()


@pytest.mark.parametrize(("cpus", "moved_for"), [((0,), {"db1"}), ((1000,), set())], ids=["can", "cannot"])
def test_memory_stays_where_vcpus_could_not_be_pinned(
    tmp_path: Path, cpus: tuple[int, ...], moved_for: set[str]
):
    with child_guest(8) as child:
        name = child.guest.name
        move = VcpuMove(name, {0: cpus}, (0,), 0, "test")
        plan = replace(plan_of(child.hva, 8, 0), vcpu_moves=(move,))
        actuator = HostActuator(Config(state_dir=str(tmp_path), numa_balancing="leave"))
        try:
            result = actuator.apply(plan, {name: child.guest}, lambda: False)
        finally:
            actuator.close()
    assert {outcome.guest for outcome in result.outcomes} == moved_for
    assert bool(result.failures) == (not moved_for)
    assert result.pinned_vcpus == len(moved_for)


def test_memory_moves_though_vcpus_do_not_take_their_cpus_back(tmp_path: Path):
    with child_guest(8) as child:
        name = child.guest.name
        loose = VcpuMove(name, {0: (1000,)}, (0,), None, "test")
        plan = replace(plan_of(child.hva, 8, 0), vcpu_moves=(loose,))
        actuator = HostActuator(Config(state_dir=str(tmp_path), numa_balancing="leave"))
        try:
            result = actuator.apply(plan, {name: child.guest}, lambda: False)
        finally:
            actuator.close()
    assert {outcome.guest for outcome in result.outcomes} == {name} and result.failures


@pytest.mark.skipif(os.cpu_count() == 1, reason="needs two CPUs")
def test_the_next_agent_knows_of_vcpus_that_could_not_be_given_back(tmp_path: Path):
    """The kernel refuses a set of CPUs none of which is there (sched_setaffinity(2), EINVAL)."""
    with child_guest(8) as child:
        guest, tid = child.guest, child.guest.vcpus[0].tid
        os.sched_setaffinity(tid, {0, 1})
        config = Config(state_dir=str(tmp_path), numa_balancing="leave")
        for cpus, nid in (((0,), 0), ((1000,), None), ((0, 1), None)):
            move = VcpuMove(guest.name, {0: cpus}, (0,), nid, "test")
            actuator = HostActuator(config)
            actuator.apply(PlacementPlan(vcpu_moves=(move,)), {guest.name: guest}, lambda: False)
            actuator.close()
            actuator = HostActuator(config)
            tied = actuator.ties()
            actuator.close()
            assert tied == ({} if cpus == (0, 1) else {guest.identity: EarlierTie({0: (0, 1)}, {0: (0,)})})


def test_what_moved_to_and_fro_is_forgotten_once_for_each_time_that_vcpus_go_to_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Where somebody else gives vCPUs other CPUs again and again, memory is not to move each time."""
    forgiven: list[str] = []
    monkeypatch.setattr(Mover, "forgive", lambda _, guest: forgiven.append(guest.name))
    with child_guest(8) as child:
        name, tid = child.guest.name, child.guest.vcpus[0].tid
        every = os.sched_getaffinity(tid)
        actuator = HostActuator(Config(state_dir=str(tmp_path), numa_balancing="leave"))
        counts = []
        try:
            for cpus, nid in (
                ((min(every),), 0),
                ((min(every),), 0),
                (tuple(every), None),
                ((min(every),), 0),
            ):
                move = VcpuMove(name, {0: cpus}, (0,), nid, "test")
                actuator.apply(PlacementPlan(vcpu_moves=(move,)), {name: child.guest}, lambda: False)
                counts.append(len(forgiven))
                if nid is not None and len(counts) == 1:
                    os.sched_setaffinity(tid, every)
        finally:
            actuator.close()
    assert counts == [1, 1, 1, 2]


def test_a_guest_that_holds_up_whoever_asks_does_not_keep_an_agent_from_knowing_ties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def held(*_: object) -> bool:
        raise HeldError

    with child_guest(8) as child:
        name, cpus = child.guest.name, os.sched_getaffinity(child.guest.vcpus[0].tid)
        actuator = HostActuator(Config(state_dir=str(tmp_path), numa_balancing="leave"))
        try:
            plan = PlacementPlan(vcpu_moves=(VcpuMove(name, {0: (min(cpus),)}, (0,), 0, "test"),))
            actuator.apply(plan, {name: child.guest}, lambda: False)
            monkeypatch.setattr(agent_actuator, "is_alive", held)
            ties = actuator.ties()
        finally:
            actuator.close()
    expected = {child.guest.identity: EarlierTie({0: tuple(sorted(cpus))}, {0: (min(cpus),)})}
    assert ties == (expected if len(cpus) > 1 else {})


@pytest.mark.skipif(os.cpu_count() == 1, reason="needs two CPUs")
def test_vcpus_that_got_more_cpus_are_not_tied(tmp_path: Path):
    """The next agent would give them back the few that they had, as if it had been their own."""
    with child_guest(8) as child:
        name, tid = child.guest.name, child.guest.vcpus[0].tid
        os.sched_setaffinity(tid, {0})
        actuator = HostActuator(Config(state_dir=str(tmp_path), numa_balancing="leave"))
        try:
            plan = PlacementPlan(vcpu_moves=(VcpuMove(name, {0: (0, 1)}, (0,), None, "test"),))
            actuator.apply(plan, {name: child.guest}, lambda: False)
            assert os.sched_getaffinity(tid) == {0, 1} and actuator.ties() == {}
        finally:
            actuator.close()


def test_an_undo_whose_copies_would_not_go_is_no_success_and_is_tried_again(tmp_path: Path):
    kvm = Kvm()
    calls = HostCalls(opened=lambda *_: OneSlot(), ask=kvm)  # type: ignore[arg-type]
    actuator = HostActuator(Config(state_dir=str(tmp_path), numa_balancing="leave"), calls=calls)
    guests = {"db1": guest_of(os.getpid(), BASE, 8)}
    try:
        result = actuator.apply(PlacementPlan(replications=(COPIES,)), guests, lambda: False)
        assert result.replicated_pages
        kvm.error = OSError(errno.ENOMEM, "no memory")
        with pytest.raises(
            VmplaceError, match=r"not everything .* db1: its copies are not dropped yet"
        ) as raised:
            actuator.undo(guests["db1"], lambda: False)
        assert "tries again" in str(raised.value.hint)
        with pytest.raises(VmplaceError, match="its copies are not dropped yet"):
            actuator.release(guests["db1"])
        assert "not dropped yet" in actuator.own(True)[0]
        kvm.error = None
        assert actuator.own(True) == ()
        assert kvm.dropped[-1] == (0, [0])
    finally:
        actuator.close()


def test_numa_balancing_is_given_back_though_copies_and_descriptors_would_not_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail() -> None:
        raise OSError("would not go")

    given_back: list[bool] = []
    actuator = HostActuator(Config(state_dir=str(tmp_path), numa_balancing="leave"))
    monkeypatch.setattr(actuator._replicator, "close", fail)
    monkeypatch.setattr(actuator._mover, "close", fail)
    monkeypatch.setattr(actuator._balancing, "give_back", lambda: given_back.append(True))
    with pytest.raises(OSError, match="would not go"):
        actuator.close()
    assert given_back == [True]
    Journal(tmp_path / "journal").close()


def test_copies_that_a_plan_drops_are_counted_by_guest(tmp_path: Path):
    calls = HostCalls(opened=lambda *_: OneSlot(), ask=Kvm())  # type: ignore[arg-type]
    actuator = HostActuator(Config(state_dir=str(tmp_path), numa_balancing="leave"), calls=calls)
    guests = {"db1": guest_of(os.getpid(), BASE, 8)}
    written = Collapse("db1", COPIES.hva, COPIES.npages, "they are written")
    try:
        made = actuator.apply(PlacementPlan(replications=(COPIES,)), guests, lambda: False)
        dropped = actuator.apply(PlacementPlan(collapses=(written,)), guests, lambda: False)
    finally:
        actuator.close()
    assert (made.dropped, dropped.dropped) == ({}, {"db1": made.replicated_pages})


@pytest.mark.parametrize("is_all", [False, True])
@pytest.mark.parametrize("names", [("db1",), ("db1", "db2")])
def test_drops_of_copies_end_after_a_windows_length_and_go_on_with_the_next_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_all: bool, names: tuple[str, ...]
):
    monkeypatch.setattr(replica_drops, "MOST_DROPPED", 2)
    clock = itertools.count(step=2 * 10**9).__next__
    calls = HostCalls(clock=clock, opened=lambda *_: OneSlot(), ask=Kvm())  # type: ignore[arg-type]
    actuator = HostActuator(Config(state_dir=str(tmp_path), numa_balancing="leave"), calls=calls)
    pids = zip(names, (os.getpid(), os.getppid()), strict=False)
    guests = {name: guest_of(pid, BASE, 8) for name, pid in pids}
    copies = PlacementPlan(replications=tuple(replace(COPIES, guest=name) for name in names))
    drops = PlacementPlan(
        collapses=tuple(Collapse(name, COPIES.hva, COPIES.npages, "test", is_all) for name in names)
    )
    try:
        made = actuator.apply(copies, guests, lambda: False)
        dropped = [actuator.apply(drops, guests, lambda: False).dropped for _ in range(9)]
    finally:
        actuator.close()
    assert all(sum(one.values()) <= 2 for one in dropped)
    assert {name: sum(one.get(name, 0) for one in dropped) for name in names} == dict.fromkeys(names, 4)
    assert made.replicated_pages == 4 * len(names)
    assert {name for one in dropped[: len(names)] for name in one} == set(names)


def test_an_order_ends_the_drop_of_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replica_drops, "MOST_DROPPED", 2)
    calls = HostCalls(opened=lambda *_: OneSlot(), ask=Kvm())  # type: ignore[arg-type]
    actuator = HostActuator(Config(state_dir=str(tmp_path), numa_balancing="leave"), calls=calls)
    guests = {"db1": guest_of(os.getpid(), BASE, 8)}
    written = Collapse("db1", COPIES.hva, COPIES.npages, "they are written")
    try:
        actuator.apply(PlacementPlan(replications=(COPIES,)), guests, lambda: False)
        dropped = actuator.apply(PlacementPlan(collapses=(written,)), guests, lambda: True)
    finally:
        actuator.close()
    assert dropped.dropped == {"db1": 2}
