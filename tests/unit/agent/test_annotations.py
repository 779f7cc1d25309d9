"""Annotations of an orchestrator are policies: of that process alone, below XML, and within vmplace.toml."""

import os

import pytest

from tests.unit.agent.agent_world import World, guest
from tests.unit.agent.test_loop import Running
from vmplace.agent.config import LoadedConfig, parse_config
from vmplace.agent.decided import ANNOTATION, decided
from vmplace.agent.discovered import Discovered
from vmplace.agent.guest_policy import KEYS
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
    loaded = configured('[guests."*"]\nmode = "auto"\n', tmp_path)
    holds = decided(loaded, "default_vm1", said(mode="advise"), NIDS, "kvm")
    assert holds.settings.mode is Mode.ADVISE and holds.origins["mode"] == ANNOTATION


OPERATOR = """
[guests."*"]
mode = "advise"
allowed_nids = [0, 1]
preferred_nids = [1]
techniques = ["move", "replicate"]
replica_mb = 100
move_mb_per_s = 50
huge_pages = "leave"
schedule = ["Mon-Fri 22:00-06:00"]
"""


@pytest.mark.parametrize("place", ['guests."*"', "defaults"])
@pytest.mark.parametrize(
    ("key", "text", "holds"),
    [
        ("mode", "auto", None),
        ("mode", "manual", "manual"),
        ("allowed_nids", "0-3", None),
        ("allowed_nids", "1-2", (1,)),
        ("preferred_nids", "0", None),
        ("techniques", "move interleave vcpus replicate", None),
        ("techniques", "move vcpus", ("move",)),
        ("techniques", "vcpus", ()),
        ("replica_mb", "5000", None),
        ("replica_mb", "0", 0),
        ("move_mb_per_s", "5000", None),
        ("move_mb_per_s", "5", 5),
        ("huge_pages", "move", None),
        ("schedule", "Mon-Sun 00:00-24:00", None),
    ],
)
def test_a_tenant_may_only_narrow_what_the_operator_says(
    key: str, text: str, holds: object, place: str, tmp_path
):
    """``holds`` None: the operator's word, who is named for it."""
    loaded = configured(OPERATOR.replace('guests."*"', place), tmp_path)
    before = decided(loaded, "default_vm1", None, range(4), "kvm")
    now = decided(loaded, "default_vm1", said(**{key: text}), range(4), "kvm")
    assert now.problem is None
    assert getattr(now.policy, key) == (getattr(before.policy, key) if holds is None else holds)
    assert (now.origins[key] == ANNOTATION) == (holds is not None)
    others = (one for one in KEYS if one != key)
    assert all(getattr(now.policy, one) == getattr(before.policy, one) for one in others)


def test_a_tenant_says_what_the_operator_does_not_speak_of(tmp_path):
    words = said(allowed_nids="1", replica_mb="7", techniques="move vcpus", huge_pages="leave")
    settings = decided(configured("", tmp_path), "default_vm1", words, NIDS, "kvm").settings
    assert (settings.allowed_nids, settings.replica_bytes) == ((1,), 7 * 10**6)
    assert (settings.place_vcpus, settings.replicates, settings.huge_pages) == (True, False, False)


def test_nodes_that_the_operator_does_not_allow_leave_the_guest_alone(tmp_path):
    loaded = configured('[guests."*"]\nallowed_nids = [0]\n', tmp_path)
    holds = decided(loaded, "default_vm1", said(allowed_nids="1"), NIDS, "kvm")
    assert holds.settings.mode is Mode.MANUAL and "choose of [0]" in str(holds.problem)


def test_xml_counts_more(tmp_path):
    both = DomainPolicy(words=(Word("mode", "advise", 1),), annotations=(Word("mode", "auto", 1),))
    assert decided(configured("", tmp_path), "vm1", both, NIDS).settings.mode is Mode.ADVISE


@pytest.mark.parametrize("text", ["", '[guests."*"]\norigin = "kvm"\nmode = "auto"\n'])
def test_a_tenant_cannot_make_others_give_way(text: str, tmp_path):
    """Whoever may annotate an instance is no operator, and a section for its kind grants nothing."""
    holds = decided(configured(text, tmp_path), "default_vm1", said(priority="protected"), NIDS, "kvm")
    assert not holds.settings.protected and holds.policy.priority == "normal"
    assert any("priority is ignored" in note for note in holds.notes)


def test_an_operators_priority_is_not_the_tenants_to_give_up(tmp_path):
    loaded = configured('[guests."*"]\norigin = "kvm"\npriority = "protected"\n', tmp_path)
    assert decided(loaded, "default_vm1", said(priority="normal"), NIDS, "kvm").settings.protected


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
