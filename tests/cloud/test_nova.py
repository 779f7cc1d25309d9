"""What Nova itself makes of vmplace's provider.yaml and extra specs, and vmplace of Nova's domain XML."""

from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("nova", reason="make test-cloud sets up the services of clouds")
from nova import exception, objects
from nova.api.validation.extra_specs import validators
from nova.compute import provider_config
from nova.scheduler.filters import compute_capabilities_filter
from nova.virt.libvirt import config

from vmplace.agent.policy_text import stated_policies
from vmplace.interfaces.cli import cli
from vmplace.policy.plan import Mode
from vmplace.topology.domain_policy import CloudNames, parse_domain_policy

SPECS = {"vmplace:mode": "advise", "vmplace:allowed_nids": "0-1", "hw:numa_nodes": "2"}


def provider_yaml(folder: Path, *words: str) -> Path:
    answer = CliRunner().invoke(cli, ["openstack", "provider-config", *words])
    assert answer.exit_code == 0, answer.output
    path = folder / "vmplace.yaml"
    path.write_text(answer.output)
    return path


def test_novas_loader_takes_our_provider_yaml(tmp_path: Path) -> None:
    provider_yaml(tmp_path)
    [(provider, found)] = provider_config.get_provider_configs(str(tmp_path)).items()
    assert provider == "$COMPUTE_NODE"
    assert set(found["traits"]["additional"]) == {"CUSTOM_VMPLACE", "CUSTOM_VMPLACE_AUTO"}


def test_novas_loader_would_say_no_to_a_standard_trait(tmp_path: Path) -> None:
    """The loader does look: nova-compute would not start with such a file."""
    path = provider_yaml(tmp_path, "--advise")
    path.write_text(path.read_text().replace("CUSTOM_VMPLACE", "HW_NUMA_ROOT"))
    with pytest.raises(exception.ProviderConfigException):
        provider_config.get_provider_configs(str(tmp_path))


def domain_xml(specs: dict[str, str]) -> str:
    """Return a domain as Nova's libvirt driver writes it, with a flavour in its metadata."""
    objects.register_all()
    flavour = config.LibvirtConfigGuestMetaNovaFlavor()
    flavour.name, flavour.id, flavour.memory, flavour.vcpus = "numa.large", "1", 4096, 8
    flavour.disk = flavour.swap = flavour.ephemeral = 0
    flavour.extra_specs = specs
    meta = config.LibvirtConfigGuestMetaNovaInstance()
    meta.name, meta.package, meta.creationTime, meta.flavor = "db1", "34.0.0", 0, flavour
    meta.owner = config.LibvirtConfigGuestMetaNovaOwner()
    meta.owner.userid, meta.owner.username = "1", "ann"
    meta.owner.projectid, meta.owner.projectname = "2", "sales"
    guest = config.LibvirtConfigGuest()
    guest.virt_type, guest.name, guest.memory, guest.vcpus = "kvm", "instance-00000001", 4096 << 10, 8
    guest.os_type, guest.uuid, guest.metadata = "hvm", "0a1b2c3d-1111-2222-3333-444455556666", [meta]
    return str(guest.to_xml())


def test_the_flavours_words_are_read_from_the_xml_that_nova_writes() -> None:
    said = parse_domain_policy(domain_xml(SPECS))
    policy = stated_policies(said, "instance-00000001").nova
    assert policy.mode == Mode.ADVISE.value
    assert policy.allowed_nids == (0, 1)


def test_the_names_are_read_from_the_xml_that_nova_writes() -> None:
    assert parse_domain_policy(domain_xml(SPECS)).names == CloudNames("", "db1", "sales", "numa.large")


@pytest.mark.parametrize("spec", SPECS)
def test_novas_api_takes_the_extra_specs(spec: str) -> None:
    validators.validate(spec, SPECS[spec])


def test_novas_scheduler_does_not_filter_by_them() -> None:
    """ComputeCapabilitiesFilter matches scoped keys of its own scope alone."""
    objects.register_all()
    flavour = objects.Flavor(extra_specs={"vmplace:mode": "auto"})
    wanted = compute_capabilities_filter.ComputeCapabilitiesFilter()
    assert wanted._satisfies_extra_specs(object(), objects.RequestSpec(flavor=flavour))
