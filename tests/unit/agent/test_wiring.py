"""The agent does without what the host lacks, and says so."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from tests.unit.agent.agent_world import World, guest
from vmplace.actuation.ownership import Ownership
from vmplace.agent import actuator, wiring
from vmplace.agent.config import Config
from vmplace.agent.discovered import Discovered
from vmplace.agent.telling_actuator import TellingActuator
from vmplace.errors import UnsupportedHostError
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.policy.registry import begun
from vmplace.sampling.source_kvm import KvmSource
from vmplace.topology.guest_finder import GuestScan
from vmplace.topology.guests_kvm import Skipped
from vmplace.topology.numad import Numad, NumadWatch


def test_a_host_without_libvirt_is_told_and_its_guests_are_found_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "libvirt", None)
    finder, notes = wiring.guest_finder(Config())
    assert len(notes) == 1 and "without libvirt" in notes[0]
    assert all(found.origin == "kvm" for found in finder.find().guests)


def test_libvirt_is_not_asked_if_the_configuration_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wiring, "Libvirt", lambda: pytest.fail("libvirt was asked"))
    assert wiring.guest_finder(Config(libvirt=False))[1] == ()


def test_counters_of_an_emulated_host_that_are_not_installed_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wiring, "extension", lambda *_: None)
    config = msgspec.convert({"trial": {"counters": "meter"}}, Config)
    with pytest.raises(UnsupportedHostError, match="not installed"):
        wiring.guest_cost(config)


def test_the_joint_plan_is_the_default():
    assert isinstance(begun(Config().policy), AutoPolicy)


@pytest.mark.parametrize(
    ("said", "source", "exempts", "becomes"),
    [
        ("auto", "auto", True, Ownership.LEAVE),
        ("auto", "auto", False, Ownership.TAKE),
        ("auto", "idle", True, Ownership.TAKE),
        ("take", "auto", True, Ownership.TAKE),
        ("leave", "auto", False, Ownership.LEAVE),
    ],
)
def test_numa_balancing_is_left_on_where_kvm_keeps_it_off_the_guests(
    monkeypatch: pytest.MonkeyPatch, said: str, source: str, exempts: bool, becomes: Ownership
):
    monkeypatch.setattr(actuator, "can_replicate", lambda: exempts)
    config = msgspec.convert({"numa_balancing": said, "source": source}, Config)
    assert actuator.ownership_of(config) is becomes


def test_what_could_not_be_looked_at_is_told():
    scan = GuestScan(
        (guest("db1"),), (Skipped(7, "no permission"), Skipped(None, "domain x: bad")), "libvirt is away"
    )
    assert wiring.found_of(scan, 1 << 30).notes == (
        "libvirt is away",
        "pid 7: no permission",
        "domain x: bad",
    )


def test_many_processes_that_cannot_be_read_are_one_note():
    skipped = tuple(Skipped(pid, f"process {pid} cannot be read: denied") for pid in range(100, 109))
    assert wiring.found_of(GuestScan((), skipped), 1 << 30).notes == (
        "pids 100, 101, 102, 103, 104 and 4 more: process N cannot be read: denied",
    )


def test_a_source_that_keeps_places_hears_of_moves(monkeypatch: pytest.MonkeyPatch):
    world, source = World([]), KvmSource.__new__(KvmSource)
    monkeypatch.setattr(wiring, "best_source", lambda *_: SimpleNamespace(source=source, reasons=()))
    monkeypatch.setattr(wiring, "guest_cost", lambda _: (None, ()))
    parts = wiring.open_parts(Config(libvirt=False), world)
    assert isinstance(parts.actuator, TellingActuator) and parts.source is source


def test_a_numad_beside_the_agent_is_told_with_the_guests_it_may_move():
    large = replace(guest("db1", 7), ram=(replace(guest("db1").ram[0], npages=1 << 18),))
    found = wiring.beside_numad(Discovered((large,), ("other",)), NumadWatch(lambda: Numad(12)))
    assert found.guests == (large,) and found.notes[1] == "other"
    assert "numad (pid 12) may move db1, too" in found.notes[0]
