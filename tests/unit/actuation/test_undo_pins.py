"""Undo gives vCPUs back the CPUs that they had, and leaves what somebody else set since (pinner.py)."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.actuation.child_guest import child_guest
from tests.unit.actuation.test_cpusets import of_thread
from tests.unit.actuation.test_undo import journal
from vmplace.actuation.affinity import read_thread_start
from vmplace.actuation.identity import read_identity
from vmplace.actuation.journal import Journal, Pin
from vmplace.actuation.pinner import Pinner, pin_all
from vmplace.actuation.undo import undo
from vmplace.errors import VmplaceError
from vmplace.policy.plan import VcpuMove
from vmplace.topology.guest import GuestTopology, Vcpu

__all__ = ["journal"]
needs_two_cpus = pytest.mark.skipif(os.cpu_count() == 1, reason="needs two CPUs")


def test_real_threads_get_their_cpus_back(journal: Journal, tmp_path: Path):
    if os.cpu_count() == 1:
        pytest.skip("needs two CPUs")
    with child_guest(8) as child:
        vcpu = child.guest.vcpus[0]
        before = os.sched_getaffinity(vcpu.tid)
        for cpus in ({0}, {1}):
            assert Pinner(journal).pin(child.guest, vcpu, cpus)
            assert os.sched_getaffinity(vcpu.tid) == cpus
        assert not Pinner(journal).pin(child.guest, vcpu, {1})
        assert undo(journal).guests[0].vcpus == 1
        assert os.sched_getaffinity(vcpu.tid) == before


def test_cpus_that_do_not_exist_are_reported(journal: Journal):
    with child_guest(8) as child, pytest.raises(VmplaceError, match="cannot run on CPUs"):
        Pinner(journal).pin(child.guest, child.guest.vcpus[0], {1000})


def test_one_guests_failure_pins_the_others_all_the_same(journal: Journal):
    with child_guest(8) as good, child_guest(8) as bad:
        guests = {"good": replace(good.guest, name="good"), "bad": replace(bad.guest, name="bad")}
        moves = [
            VcpuMove(name, {0: cpus}, (0,), 0, "test") for name, cpus in (("bad", (1000,)), ("good", (0,)))
        ]
        outcome = pin_all(Pinner(journal), moves, guests)
        assert os.sched_getaffinity(good.guest.vcpus[0].tid) == {0}
    assert (len(outcome.pinned), outcome.refused) == (1, frozenset({"bad"}))
    assert "guest bad: " in outcome.failures[0] and "cannot run on CPUs" in outcome.failures[0]


def test_vcpus_that_belong_together_are_pinned_all_or_none(journal: Journal):
    with child_guest(8) as child:
        first = child.guest.vcpus[0]
        before = os.sched_getaffinity(first.tid)
        second = replace(first, vcpu_id=1, tid=child.guest.pid)
        guest = replace(child.guest, vcpus=(replace(first, cpus=tuple(before)), second))
        move = VcpuMove(guest.name, {0: (0,), 1: (1000,)}, (0,), 0, "test")
        outcome = pin_all(Pinner(journal), [move], {guest.name: guest})
        assert (outcome.pinned, outcome.refused) == ((), frozenset({guest.name}))
        assert os.sched_getaffinity(first.tid) == before


@pytest.mark.skipif(os.cpu_count() == 1, reason="needs two CPUs")
@pytest.mark.parametrize("when", ["since the last look", "since it was pinned"])
def test_pins_that_fail_leave_what_somebody_else_set_meanwhile(journal: Journal, when: str):
    class Interrupted(Pinner):
        def _set(self, guest: GuestTopology, pin: Pin) -> None:
            if pin.set_to == (1000,) and when == "since it was pinned":
                os.sched_setaffinity(first.tid, {1})
            super()._set(guest, pin)

    with child_guest(8) as child:
        first = replace(child.guest.vcpus[0], cpus=tuple(os.sched_getaffinity(0)))
        guest = replace(child.guest, vcpus=(first, replace(first, vcpu_id=1, tid=child.guest.pid)))
        if when == "since the last look":
            os.sched_setaffinity(first.tid, {1})
        move = VcpuMove(guest.name, {0: (0,), 1: (1000,)}, (0,), 0, "test")
        outcome = pin_all(Interrupted(journal), [move], {guest.name: guest})
        assert outcome.refused == {guest.name}
        assert os.sched_getaffinity(first.tid) == {1}
        undo(journal)
        assert os.sched_getaffinity(first.tid) == {1}


def test_the_pins_of_a_guest_are_on_disk_by_one_write(journal: Journal, monkeypatch: pytest.MonkeyPatch):
    """It may have a thousand vCPUs, and untie them as often as it likes; each write takes milliseconds."""
    writes: list[int] = []
    real = os.fdatasync

    def sync(fd: int) -> None:
        real(fd)
        writes.append(fd)

    monkeypatch.setattr(os, "fdatasync", sync)
    with child_guest(8) as child:
        first = child.guest.vcpus[0]
        before = os.sched_getaffinity(first.tid)
        vcpus = (first, replace(first, vcpu_id=1, tid=child.guest.pid))
        guest = replace(child.guest, vcpus=tuple(replace(one, cpus=tuple(before)) for one in vcpus))
        move = VcpuMove(guest.name, {0: (0,), 1: (0,)}, (0,), 0, "test")
        assert pin_all(Pinner(journal), [move], {guest.name: guest}).pinned == (move,)
        assert len(writes) == 1
        assert undo(journal).guests[0].vcpus == 2
        assert [os.sched_getaffinity(one.tid) for one in vcpus] == [before, before]


@needs_two_cpus
def test_a_pin_that_somebody_else_made_later_is_left_and_reported(journal: Journal):
    with child_guest(8) as child:
        vcpu = child.guest.vcpus[0]
        assert Pinner(journal).pin(child.guest, vcpu, {0})
        os.sched_setaffinity(vcpu.tid, {1})
        (undone,) = undo(journal).guests
        assert (undone.vcpus, undone.others_vcpus) == (0, 1)
        assert os.sched_getaffinity(vcpu.tid) == {1}
        assert undo(journal).guests == ()


@needs_two_cpus
def test_undo_leads_to_what_somebody_else_set_between_two_pins(journal: Journal):
    with child_guest(8) as child:
        vcpu = child.guest.vcpus[0]
        Pinner(journal).pin(child.guest, vcpu, {0})
        os.sched_setaffinity(vcpu.tid, {1})
        Pinner(journal).pin(child.guest, vcpu, {0, 1})
        journal.compact()
        assert undo(journal).guests[0].vcpus == 1
        assert os.sched_getaffinity(vcpu.tid) == {1}


def test_a_pin_that_was_journaled_but_not_carried_out_is_no_ones(journal: Journal):
    with child_guest(8) as child:
        vcpu, before = child.guest.vcpus[0], os.sched_getaffinity(child.guest.vcpus[0].tid)
        with pytest.raises(VmplaceError):
            Pinner(journal).pin(child.guest, vcpu, {1000})
        (undone,) = undo(journal).guests
        assert (undone.vcpus, undone.others_vcpus) == (0, 0)
        assert os.sched_getaffinity(vcpu.tid) == before


class Operator(Pinner):
    """Somebody else pins a vCPU just before vmplace pins the last one."""

    def __init__(self, journal: Journal, tid: int, cpus: set[int]) -> None:
        super().__init__(journal)
        self.tid, self.cpus = tid, cpus

    def _set(self, guest: GuestTopology, pin: Pin) -> None:
        if pin.vcpu_id == 1:
            os.sched_setaffinity(self.tid, self.cpus)
        super()._set(guest, pin)


@needs_two_cpus
@pytest.mark.parametrize("before, meanwhile", [({1}, {0}), ({0, 1}, {1})], ids=["nobody", "an operator"])
def test_vcpus_get_back_what_they_had_just_before_a_pin_that_fails_half_way(
    journal: Journal, before: set[int], meanwhile: set[int]
):
    """Those that an operator pins meanwhile keep what they were given."""
    with child_guest(8) as child:
        vcpus = (replace(child.guest.vcpus[0], cpus=(0, 1)), Vcpu(1, child.guest.pid, (0, 1)))
        guest = replace(child.guest, vcpus=vcpus)
        # At the last look it had both.
        os.sched_setaffinity(vcpus[0].tid, before)
        move = VcpuMove("db1", {0: (0,), 1: (1000,)}, (0,), 0, "test")
        outcome = pin_all(Operator(journal, vcpus[0].tid, meanwhile), [move], {"db1": guest})
        assert outcome.refused == {"db1"}
        assert os.sched_getaffinity(vcpus[0].tid) == {1}
        (undone,) = undo(journal).guests
        assert undone.vcpus == 0 and os.sched_getaffinity(vcpus[0].tid) == {1}


@needs_two_cpus
def test_undo_gives_back_what_a_pin_that_failed_half_way_could_not(journal: Journal):
    class Refusing(Pinner):
        def _set(self, guest: GuestTopology, pin: Pin) -> None:
            if pin.vcpu_id == 0 and pin.set_to == (0, 1):
                raise VmplaceError("libvirt does not answer")
            super()._set(guest, pin)

    with child_guest(8) as child:
        vcpus = (child.guest.vcpus[0], Vcpu(1, child.guest.pid, (0, 1)))
        move = VcpuMove("db1", {0: (0,), 1: (1000,)}, (0,), 0, "test")
        pin_all(Refusing(journal), [move], {"db1": replace(child.guest, vcpus=vcpus)})
        assert os.sched_getaffinity(vcpus[0].tid) == {0}
        assert undo(journal).guests[0].vcpus == 1
        assert os.sched_getaffinity(vcpus[0].tid) == {0, 1}


@needs_two_cpus
def test_a_vcpu_that_got_other_cpus_than_it_was_to_have_gets_its_own_back(journal: Journal):
    """A CPU that is offline, here number 1000, is taken and left out."""
    with child_guest(8) as child:
        vcpus = (child.guest.vcpus[0], Vcpu(1, child.guest.pid, (0, 1)))
        os.sched_setaffinity(vcpus[0].tid, {1})
        move = VcpuMove("db1", {0: (0, 1000), 1: (1000,)}, (0,), 0, "test")
        pin_all(Pinner(journal), [move], {"db1": replace(child.guest, vcpus=vcpus)})
        assert os.sched_getaffinity(vcpus[0].tid) == {1}
        assert undo(journal).guests[0].vcpus == 0
        assert os.sched_getaffinity(vcpus[0].tid) == {1}


def test_a_journal_of_an_earlier_version_gives_all_pins_back(journal: Journal):
    with child_guest(8) as child:
        vcpu, before = child.guest.vcpus[0], os.sched_getaffinity(child.guest.vcpus[0].tid)
        pin = Pin(0, vcpu.tid, read_thread_start(child.guest.pid, vcpu.tid), tuple(before))
        journal.record_affinities(read_identity(child.guest), [pin], by_libvirt=False)
        os.sched_setaffinity(vcpu.tid, {0})
        assert undo(journal).guests[0].vcpus == 1
        assert os.sched_getaffinity(vcpu.tid) == before


@needs_two_cpus
@pytest.mark.parametrize("cpus", [{0: (0,), 1: (1000,)}, {0: (1000,)}, {0: (0, 1000), 1: (1000,)}], ids=str)
def test_undo_leads_past_a_second_pin_that_failed(journal: Journal, cpus: dict[int, tuple[int, ...]]):
    """What the first one set, it has still, or has it back: that is vmplace's own doing."""
    with child_guest(8) as child:
        first, second = child.guest.vcpus[0], Vcpu(1, child.guest.pid, (0, 1))
        guest = replace(child.guest, vcpus=(first, second))
        os.sched_setaffinity(first.tid, {0, 1})
        Pinner(journal).pin(guest, first, (1,))
        outcome = pin_all(Pinner(journal), [VcpuMove("db1", cpus, (0,), 0, "test")], {"db1": guest})
        assert outcome.refused == {"db1"}
        assert os.sched_getaffinity(first.tid) == {1}
        undone = undo(journal).guests[0]
        assert os.sched_getaffinity(first.tid) == {0, 1} and undone.vcpus == 1


@needs_two_cpus
def test_vcpus_are_given_back_though_the_disk_is_full(journal: Journal, monkeypatch: pytest.MonkeyPatch):
    """What they had before is in the journal since they were tied; a new tie must wait for the disk."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with child_guest(8) as child:
        tid, guests = child.guest.vcpus[0].tid, {"db1": child.guest}
        before = os.sched_getaffinity(tid)
        tie = VcpuMove("db1", {0: (0,)}, (0, 1), 0, "test")
        assert pin_all(Pinner(journal), [tie], guests).pinned == (tie,)
        monkeypatch.setattr(os, "pwrite", full)
        back = VcpuMove("db1", {0: tuple(before)}, (0,), None, "test")
        assert pin_all(Pinner(journal), [back], guests).pinned == (back,)
        assert os.sched_getaffinity(tid) == before
        assert pin_all(Pinner(journal), [tie], guests).refused == {"db1"}
        assert os.sched_getaffinity(tid) == before
        monkeypatch.undo()
        assert undo(journal).is_complete and os.sched_getaffinity(tid) == before


@needs_two_cpus
def test_vcpus_are_given_all_their_cpus_back_also_those_that_their_cpuset_hides(
    journal: Journal, tmp_path: Path
):
    """Once the cpuset has these again, so has the thread."""
    with child_guest(8) as child:
        tid, guests = child.guest.vcpus[0].tid, {"db1": child.guest}
        pin_all(Pinner(journal), [VcpuMove("db1", {0: (0,)}, (0, 1), 0, "test")], guests)
        # The file tells of a narrow cpuset that the thread is not in, as if it had left it just then.
        narrow = Pinner(journal, sysfs=of_thread(tmp_path, tid, "0"))
        pin_all(narrow, [VcpuMove("db1", {0: (0, 1)}, (0,), None, "test")], guests)
        assert os.sched_getaffinity(tid) == {0, 1}
