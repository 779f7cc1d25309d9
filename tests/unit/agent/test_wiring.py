"""The agent does without what the host lacks, and says so."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from tests.unit.agent.agent_world import World, guest
from vmplace.actuation.ownership import Ownership
from vmplace.agent import actuator, wiring
from vmplace.agent.config_sections import Config
from vmplace.agent.discovered import Discovered
from vmplace.agent.notifying_actuator import NotifyingActuator
from vmplace.errors import UnsupportedHostError
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.policy.registry import begun
from vmplace.sampling.source_kvm import KvmSource
from vmplace.topology.domain_policy import Word
from vmplace.topology.guest import GuestTopology
from vmplace.topology.guest_finder import GuestFinder, GuestScan
from vmplace.topology.guests_kvm import Skipped
from vmplace.topology.memory_budget import GUEST_BYTES
from vmplace.topology.numad import Numad, NumadWatch
from vmplace.topology.stated_guests import StatedGuest, StatedGuests, boot_s, encoded


def test_a_host_without_libvirt_is_reported_and_its_guests_are_found_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "libvirt", None)
    finder, notes = wiring.guest_finder(Config())
    assert len(notes) == 1 and "without libvirt" in notes[0]
    assert all(found.origin == "kvm" for found in finder.find().guests)


def test_libvirt_is_not_asked_if_the_configuration_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wiring, "Libvirt", lambda: pytest.fail("libvirt was asked"))
    assert wiring.guest_finder(Config(libvirt=False))[1] == ()


def test_counters_of_an_emulated_host_that_are_not_installed_are_reported(monkeypatch: pytest.MonkeyPatch):
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


def test_what_could_not_be_looked_at_is_reported():
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


class Finder:
    """Finds the guests that it is given, and remembers whether it was to spare memory."""

    def __init__(self, guests: list[GuestTopology]) -> None:
        self.guests, self.is_sparing = tuple(guests), False

    def find(self) -> GuestScan:
        return GuestScan(self.guests)

    def spare(self) -> None:
        self.is_sparing = True


def sized(name: str, pid: int, npages: int, uid: int) -> GuestTopology:
    of = guest(name, pid, origin="kvm")
    return replace(of, uid=uid, ram=(replace(of.ram[0], npages=npages),))


def test_many_idle_processes_of_one_user_cost_no_other_user_his_place_in_the_loop():
    """A host of 64 GiB, 191 processes of 1 GiB and a guest of 16, all by 1/1024."""
    idle = [sized(f"idle{pid}", pid, 256, uid=1001) for pid in range(100, 291)]
    theirs = sized("theirs", 7, 16 * 256, uid=1002)
    finder = Finder([*idle, theirs])

    class Short(World):
        """A world of which the agent can afford a part."""

        def guests(self) -> Discovered:
            return wiring.looked(cast(GuestFinder, finder), 3 * GUEST_BYTES)

    world = Short(list(finder.guests))
    agent = world.agent()
    agent.run(windows=2)
    assert "theirs" in agent.status.guests and "theirs" in world.applied
    left = [note for note in agent.status.notes if "left alone" in note]
    assert left and not any("theirs" in note for note in left)
    assert finder.is_sparing


def test_notes_on_thousands_of_processes_are_bounded_and_those_on_libvirts_guests_are_kept():
    many = [sized(f"idle{pid}", pid, 256, uid=1001) for pid in range(100, 3100)]
    mine = replace(sized("mine", 7, 1 << 20, uid=64055), origin="libvirt")
    skipped = tuple(Skipped(pid, f"guest g{pid}: its vCPU threads are not known yet") for pid in range(3000))
    notes = wiring.found_of(GuestScan((*many, mine), skipped), 1 << 20).notes
    assert len(notes) == wiring.MOST_NOTES + 1
    assert notes[0].startswith("guest mine: left alone") and "more notes" in notes[-1]


def test_nothing_is_spared_where_all_guests_fit():
    finder = Finder([sized("one", 7, 256, uid=1)])
    assert wiring.looked(cast(GuestFinder, finder), 1 << 20).guests == finder.guests
    assert not finder.is_sparing


def test_a_source_that_keeps_places_hears_of_moves(monkeypatch: pytest.MonkeyPatch):
    world, source = World([]), KvmSource.__new__(KvmSource)
    monkeypatch.setattr(wiring, "best_source", lambda *_: SimpleNamespace(source=source, reasons=()))
    monkeypatch.setattr(wiring, "guest_cost", lambda _: (None, ()))
    parts = wiring.open_parts(Config(libvirt=False), world)
    assert isinstance(parts.actuator, NotifyingActuator) and parts.source is source


def test_a_numad_beside_the_agent_is_reported_with_the_guests_it_may_move():
    large = replace(guest("db1", 7), ram=(replace(guest("db1").ram[0], npages=1 << 18),))
    found = wiring.beside_numad(Discovered((large,), ("other",)), NumadWatch(lambda: Numad(12)))
    assert found.guests == (large,) and found.notes[1] == "other"
    assert "numad (pid 12) may move db1, too" in found.notes[0]


def found_beside(file: Path, monkeypatch: pytest.MonkeyPatch, owner: int) -> Callable[[], Discovered]:
    """Return how the agent with its socket beside ``file`` looks at guests: the real parts find one guest."""
    finder = SimpleNamespace(find=lambda: GuestScan((guest("default_vm1", 7, origin="kvm"),), ()))
    finder.asks_libvirt, finder.ask_again, finder.has_news, finder.holds = False, None, False, None
    source = SimpleNamespace(name="none")
    monkeypatch.setattr(wiring, "best_source", lambda *_: SimpleNamespace(source=source, reasons=()))
    monkeypatch.setattr(wiring, "guest_cost", lambda _: (None, ()))
    monkeypatch.setattr(wiring, "guest_finder", lambda *_: (finder, ()))
    monkeypatch.setattr(wiring, "NumadWatch", lambda: NumadWatch(lambda: None))
    monkeypatch.setattr(wiring, "StatedGuests", partial(StatedGuests, owner=owner))
    config = Config(libvirt=False, socket=str(file.with_name("control.sock")))
    discovery = wiring.open_parts(config, World([])).discovery

    def look() -> Discovered:
        discovery.look_again()
        return discovery.guests()

    return look


def test_what_an_orchestrator_says_beside_the_socket_reaches_the_agent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Under the name that `vmplace kube agent` writes to; what it says is followed as it changes."""
    file, vm = tmp_path / "stated-guests.json", guest("default_vm1", 7, origin="kvm")
    look = found_beside(file, monkeypatch, os.getuid())
    assert look().stated == {} and look().notes == ()
    said = StatedGuest(vm.pid, vm.start_time, "vm1", (("mode", "advise"),), boot_s() + 60)
    file.write_bytes(encoded((said,)))
    file.chmod(0o600)
    found = look()
    assert found.guests == (vm,) and found.notes == ()
    assert found.stated[vm.pid, vm.start_time].annotations == (Word("mode", "advise", 1),)
    assert found.stated_migrating == {(vm.pid, vm.start_time)}


def test_a_file_of_others_beside_the_socket_is_refused_and_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    file, vm = tmp_path / "stated-guests.json", guest("default_vm1", 7, origin="kvm")
    file.write_bytes(encoded((StatedGuest(vm.pid, vm.start_time, "vm1", (("mode", "auto"),)),)))
    found = found_beside(file, monkeypatch, os.getuid() + 1)()
    assert found.guests == (vm,) and found.stated == {}
    assert len(found.notes) == 1 and "others than root may write to it" in found.notes[0]
