"""A real compute node: a guest of a flavour with vmplace:mode=auto boots, and the agent places it.

nova-compute of Debian's package, libvirt, KVM and the agent are in the emulated host; the rest of Nova is
outside of it.  Run by make test-compute-node.  The truth is the kernel's numa_maps.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from lab import packet_link, trees
from lab.build import build_all
from lab.channel import GuestProcess
from lab.emulated_host import start_host
from lab.machine import LabHost
from lab.newer_nova import newer_nova
from lab.private_network import PrivateNetwork, private_network
from lab.progress import Progress
from lab.rootfs import rootfs_image
from lab.topology import cpu_nids, read_topology
from tests.lab.compute_guest import FLAVOUR, add_bootable_image, add_flavour, boot_server
from tests.lab.compute_services import FILES, PLACEMENT, Services, compute_services, until
from tests.lab.test_agent import CONFIG, PRESENT, is_away, is_home, pages_by_nid, status
from tests.lab.test_agent import until as wait_for
from vmplace.topology.domain_policy import NOVA

pytestmark = [pytest.mark.lab, pytest.mark.timeout(3600), pytest.mark.flaky(reruns=0)]

TOPOLOGY = "n2"
HOME, AWAY = 0, 1
MASKED = "nova-compute.service open-iscsi.service iscsid.service iscsid.socket rbdmap.service"
"""nova-compute comes up when the services outside are there."""
PROVIDERS = "/etc/nova/provider_config"
SAID_BY = f"flavour {FLAVOUR} (Nova extra specs)"
SPECS = {"vmplace:mode": "auto", "trait:CUSTOM_VMPLACE": "required"}
"""Of the flavour: what the agent may do, and that the scheduler takes a host that has one."""
LINK = "/usr/local/lib/packet_link.py"
ADVISED = CONFIG.format(mb_per_s=512) + '[defaults]\nmode = "advise"\n'


@pytest.fixture(scope="module")
def network() -> Iterator[PrivateNetwork]:
    with private_network() as made:
        yield made


@pytest.fixture(scope="module")
def services(network: PrivateNetwork, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with compute_services(tmp_path_factory.mktemp("cloud"), network) as running:
        yield running


@pytest.fixture(scope="module")
def host(services: Services) -> Iterator[LabHost]:
    """The emulated host, with a way to the services."""
    progress = Progress()
    tree = newer_nova(trees.compute_node(progress), progress)
    image = rootfs_image(progress, tree, masked=MASKED)
    artifacts = replace(build_all(progress), rootfs_image=image)
    files = {LINK: Path(packet_link.__file__), "/etc/nova/nova.conf": FILES / "nova.conf"}
    files |= {"/etc/libvirt/libvirtd.conf": FILES / "libvirtd.conf"}
    topology, ports = read_topology(TOPOLOGY), (packet_link.PORT,)
    with start_host(topology, artifacts, progress, snapshot=None, files=files, ports=ports) as booted:
        services.network.link(booted.port_socket(packet_link.PORT))
        booted.spawn(["python3", LINK, f"/dev/virtio-ports/{packet_link.PORT}", packet_link.INSIDE])
        until(lambda: reaches(booted), "the host reaches the services", 120)
        yield booted


def reaches(host: LabHost) -> bool:
    ask = f"import urllib.request as u; u.urlopen('http://{packet_link.OUTSIDE}:{PLACEMENT}', timeout=30)"
    return host.run(["python3", "-c", ask], check=False).returncode == 0


@pytest.fixture(scope="module")
def node(host: LabHost, services: Services) -> Iterator[LabHost]:
    """The emulated host with a nova-compute that Nova knows of, and Placement."""
    host.run("systemctl restart libvirtd && systemctl unmask nova-compute", timeout=300)
    host.run(f"mkdir -p {PROVIDERS} && vmplace openstack provider-config >{PROVIDERS}/vmplace.yaml")
    host.run("systemctl start --no-block nova-compute")
    try:
        until(lambda: is_up(services), "nova-compute is up, to Nova", 900)
        until(lambda: is_known(services), "Nova's scheduler and Placement know the host", 600)
        yield host
    finally:
        print(host.run("tail -n 60 /var/log/nova/nova-compute.log", check=False).stdout)
        print(services.last_words())


def is_up(services: Services) -> bool:
    found = services.nova("GET", "/os-services?binary=nova-compute")["services"]
    return any(one["state"] == "up" for one in found)


def is_known(services: Services) -> bool:
    providers = placement(services)["resource_providers"]
    is_whole = providers and all(
        placement(services, f"/{providers[0]['uuid']}/{what}")[what] for what in ("inventories", "traits")
    )
    return bool(is_whole and services.nova("GET", "/os-hypervisors")["hypervisors"])


def placement(services: Services, path: str = "") -> Any:
    return services.ask("GET", PLACEMENT, f"/resource_providers{path}")


@pytest.fixture(scope="module")
def bootable(node: LabHost, services: Services) -> tuple[str, str]:
    """The image and the flavour of all guests here."""
    return add_bootable_image(services, build_all(Progress())), add_flavour(services, **SPECS)


@pytest.fixture(scope="module")
def domain(bootable: tuple[str, str], node: LabHost, services: Services) -> str:
    """The name of the guest that Nova booted, with its vCPU on one node and its memory on the other."""
    name = booted_at_home(node, services, "db1", bootable)
    take_away(node, name)
    return name


def cpus_of(nid: int) -> str:
    nids = cpu_nids(read_topology(TOPOLOGY))
    return ",".join(str(cpu) for cpu, at in enumerate(nids) if at == nid)


def booted_at_home(host: LabHost, services: Services, name: str, bootable: tuple[str, str]) -> str:
    """Return the domain of a new server, whose vCPU is on one node."""
    domain = str(boot_server(services, name, *bootable)["OS-EXT-SRV-ATTR:instance_name"])
    host.run(f"virsh -q vcpupin {domain} 0 {cpus_of(HOME)} --live")
    until(lambda: has_grown(host, domain), "the guest has touched its memory", 600)
    return domain


def take_away(host: LabHost, name: str) -> None:
    host.run(f"migratepages $(cat /run/libvirt/qemu/{name}.pid) {HOME} {AWAY}")
    assert is_away(host, name, AWAY)


def take_away_unseen(host: LabHost, name: str, agent: GuestProcess) -> None:
    """Take memory away while the agent stands still: it would have the pages back before anybody looked."""
    agent.kill("STOP")
    try:
        take_away(host, name)
    finally:
        agent.kill("CONT")


def has_grown(host: LabHost, name: str) -> bool:
    return sum(pages_by_nid(host, name).values()) > PRESENT


@pytest.fixture(scope="module")
def agent(domain: str, node: LabHost) -> GuestProcess:
    """The agent, which would only plan of its own accord."""
    node.run("mkdir -p /etc/vmplace")
    node.put(ADVISED.encode(), "/etc/vmplace/vmplace.toml")
    return node.spawn(["vmplace", "agent"])


def extra_specs(xml: str) -> dict[str, str | None]:
    """Return what the domain's XML says of the flavour's extra specs."""
    return {one.attrib["name"]: one.text for one in ET.fromstring(xml).iter(f"{{{NOVA}}}extraSpec")}  # noqa: S314


def test_nova_compute_took_the_provider_yaml(node: LabHost, services: Services) -> None:
    (provider,) = placement(services)["resource_providers"]
    traits = placement(services, f"/{provider['uuid']}/traits")["traits"]
    assert {"CUSTOM_VMPLACE", "CUSTOM_VMPLACE_AUTO", "COMPUTE_NODE"} <= set(traits)
    assert provider["name"] == node.run("hostname").stdout.strip()


def test_the_agent_places_what_nova_booted_and_names_the_flavour(
    domain: str, node: LabHost, agent: GuestProcess
) -> None:
    xml = node.run(["virsh", "dumpxml", domain]).stdout
    assert extra_specs(xml) == SPECS and "vmplace_mode" not in xml
    wait_for(lambda: is_home(node, domain, HOME), "the guest's memory is at home", agent)
    assert status(node)["guests"][domain]["mode"] == "auto"
    explained = json.loads(node.run(["vmplace", "policy", "explain", domain, "--json"]).stdout)
    assert explained["keys"]["mode"] == {"value": "auto", "from": SAID_BY}
    assert why_names_the_flavour(node, domain)


def why_names_the_flavour(host: LabHost, name: str) -> bool:
    return f"mode auto, said by {SAID_BY}" in host.run(["vmplace", "why", name]).stdout


def windows(host: LabHost, seconds: float) -> int:
    before = status(host)["windows"]
    time.sleep(seconds)
    return int(status(host)["windows"] - before)


def last_report(services: Services) -> str:
    """Return when nova-compute reported last: Nova takes a dead one for up for 15 minutes."""
    (found,) = services.nova("GET", "/os-services?binary=nova-compute")["services"]
    return str(found["updated_at"])


def test_a_nova_compute_that_is_killed_takes_nothing_along_and_its_next_guest_is_placed(
    domain: str, bootable: tuple[str, str], node: LabHost, services: Services, agent: GuestProcess
) -> None:
    before, pid = windows(node, 30), status(node)["guests"][domain]["pid"]
    # Its unit may bring it back at once: "stop" keeps it away.
    node.run("systemctl kill --signal KILL nova-compute && systemctl stop nova-compute", timeout=300)
    assert windows(node, 30) > before * 0.7
    take_away_unseen(node, domain, agent)
    wait_for(lambda: is_home(node, domain, HOME), "the guest's memory is at home without Nova", agent)
    reported = last_report(services)
    node.run("systemctl start --no-block nova-compute")
    until(lambda: last_report(services) != reported, "nova-compute is back, to Nova", 900)
    further = booted_at_home(node, services, "db2", bootable)
    take_away_unseen(node, further, agent)
    wait_for(lambda: is_home(node, further, HOME), "the next guest's memory is at home", agent)
    assert why_names_the_flavour(node, further)
    assert status(node)["guests"][domain]["pid"] == pid


def test_without_its_cloud_the_agent_goes_on_as_before(
    domain: str, node: LabHost, services: Services, agent: GuestProcess
) -> None:
    before = windows(node, 30)
    services.kill()
    assert windows(node, 30) > before * 0.7
    take_away_unseen(node, domain, agent)
    wait_for(lambda: is_home(node, domain, HOME), "the guest's memory is at home again", agent)
