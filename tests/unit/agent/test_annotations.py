"""Annotations of an orchestrator are policies: of that process alone, below XML, above vmplace.toml."""

import os

from tests.unit.agent.agent_world import World, guest
from tests.unit.agent.test_loop import Running
from vmplace.agent.config import LoadedConfig, parse_config
from vmplace.agent.decided import ANNOTATION, decided
from vmplace.agent.discovered import Discovered
from vmplace.agent.wiring import with_stated
from vmplace.policy.plan import Mode
from vmplace.topology.domain_policy import DomainPolicy, Word
from vmplace.topology.stated_guests import StatedGuest, StatedGuests, encoded

NIDS = (0, 1)


def said(**words: str) -> DomainPolicy:
    return DomainPolicy(annotations=tuple(Word(key, text, 1) for key, text in words.items()))


def configured(text: str, tmp_path) -> LoadedConfig:
    return parse_config(text, tmp_path / "vmplace.toml")


def test_an_annotation_counts_and_is_named(tmp_path):
    loaded = configured('[guests."*"]\nmode = "advise"\n', tmp_path)
    holds = decided(loaded, "default_vm1", said(mode="auto"), NIDS, "kvm")
    assert holds.settings.mode is Mode.AUTO and holds.origins["mode"] == ANNOTATION


def test_xml_counts_more(tmp_path):
    both = DomainPolicy(words=(Word("mode", "advise", 1),), annotations=(Word("mode", "auto", 1),))
    assert decided(configured("", tmp_path), "vm1", both, NIDS).settings.mode is Mode.ADVISE


def test_a_tenant_cannot_make_others_way(tmp_path):
    """Whoever may annotate an instance is no operator."""
    holds = decided(configured("", tmp_path), "default_vm1", said(protected="true", mode="auto"), NIDS, "kvm")
    assert not holds.settings.protected


def test_a_mistake_leaves_the_guest_alone_and_names_the_annotation(tmp_path):
    holds = decided(configured("", tmp_path), "default_vm1", said(mdoe="auto"), NIDS, "kvm")
    assert holds.settings.mode is Mode.MANUAL
    assert "annotation vmplace.io/mdoe" in str(holds.problem) and "vmplace.io/mode" in str(holds.problem)


class StatedWorld(World):
    """A world beside which somebody writes the file, read as the wiring reads it."""

    stated: StatedGuests

    def guests(self) -> Discovered:
        return with_stated(super().guests(), self.stated)


def test_the_loop_follows_the_file(tmp_path):
    """A guest moves once its annotation says so, and is left alone while it migrates."""

    def say(mode: str, migrating_until_s: float = 0.0) -> None:
        said = StatedGuest(vm.pid, vm.start_time, "vm1", (("mode", mode),), migrating_until_s)
        (tmp_path / "new").write_bytes(encoded((said,)))
        (tmp_path / "new").chmod(0o600)
        (tmp_path / "new").replace(tmp_path / "stated")

    vm = guest("default_vm1", origin="kvm")
    world = StatedWorld([vm])
    world.stated = StatedGuests(tmp_path / "stated", owner=os.getuid(), now_s=lambda: 100.0)
    say("advise")
    with Running(world) as running:
        running.pass_windows(4)
        assert not world.applied
        say("auto", 200.0)
        running.pass_windows(4)
        assert not world.applied
        say("auto")
        running.pass_windows(6)
    assert world.applied
