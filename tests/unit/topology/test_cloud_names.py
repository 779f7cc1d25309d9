"""What Nova and Kubernetes call a guest is known by what is read anyway, and spoils no policy."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.agent.agent_world import World, guest
from tests.unit.topology.test_stated_guests import written
from vmplace.topology.domain_policy import NOVA, CloudNames, domain_policy
from vmplace.topology.stated_guests import StatedGuest, StatedGuests


def nova_xml(name: str = "shop", project: str = "sales", flavour: str = "m1.large") -> str:
    return (
        "<domain type='kvm'><name>instance-00000001</name><metadata>"
        f"<nova:instance xmlns:nova='{NOVA}'><nova:package version='34.0.0'/><nova:name>{name}</nova:name>"
        f"<nova:flavor name='{flavour}' id='1'><nova:extraSpecs>"
        "<nova:extraSpec name='vmplace:mode'>advise</nova:extraSpec></nova:extraSpecs></nova:flavor>"
        "<nova:owner><nova:user uuid='1'>ann</nova:user>"
        f"<nova:project uuid='2'>{project}</nova:project></nova:owner></nova:instance></metadata></domain>"
    )


def test_novas_names_are_read_beside_the_policy() -> None:
    said = domain_policy(nova_xml())
    assert said.names == CloudNames("", "shop", "sales", "m1.large")
    assert [(word.key, word.text) for word in said.nova] == [("mode", "advise")] and said.error is None


@pytest.mark.parametrize("name", ["x" * 100_000, "a\n  b", "\x85\u2028", "", "<x/>y", "&lt;&#65;"])
def test_whatever_a_tenant_calls_it_is_printable_short_and_no_mistake(name: str) -> None:
    said = domain_policy(nova_xml(name, name, "m1"))
    assert said.error is None and said.nova
    assert said.names.name == said.names.project and said.names.flavour == "m1"
    assert said.names.name.isprintable() and len(said.names.name) <= 256


def test_elsewhere_in_the_xml_they_are_no_names() -> None:
    other = nova_xml().replace(NOVA, "urn:somebody")
    assert domain_policy(other).names == CloudNames()
    assert domain_policy(f"<domain><devices>{nova_xml()}</devices></domain>").names == CloudNames()


def test_kubernetes_names_come_with_the_annotations(tmp_path: Path) -> None:
    long = (("mode", "a" * 5000),)
    written(
        tmp_path / "stated",
        StatedGuest(7, 9, "x", (("mode", "auto"),), 0.0, "default", "vm1"),
        StatedGuest(8, 9, "y", long, 0.0, "default", "vm2"),
    )
    policies = StatedGuests(tmp_path / "stated", owner=os.getuid()).policies()
    names = {pid: said.names for (pid, _), said in policies.items()}
    assert names == {7: CloudNames("default", "vm1"), 8: CloudNames("default", "vm2")}


def test_the_agent_reports_them() -> None:
    world = World([replace(guest("db1"), uuid="u1"), guest("web")])
    world.policies = {"u1": domain_policy(nova_xml())}
    agent = world.agent()
    agent.run(windows=1)
    guests = agent.status.guests
    assert guests["db1"].names.project == "sales" and guests["web"].names == CloudNames()
